//! Page-walk steps: reads of translation-table entries by walks for data. perf has no generic name for them, and most
//! processors no event, so that the events stand here by processor.
//!
//! Sources: Arm Architecture Reference Manual, PMU event DTLB_STEP (0x8136), which the Neoverse N3 has; for AmpereOne and
//! AmpereOneX MMU_D_WALK_STEPS (0xD80D), tools/perf/pmu-events/arch/arm64/ampere of the Linux kernel.

/// Implementer and part number of MIDR_EL1, and the raw event.
#[cfg(any(target_arch = "aarch64", test))]
const ARM: [(u64, u64, u64); 3] = [(0x41, 0xd8e, 0x8136), (0xc0, 0xac3, 0xd80d), (0xc0, 0xac4, 0xd80d)];

/// The raw event of this machine's processor, or the reason why there is none.
#[cfg(target_arch = "aarch64")]
pub fn event() -> Result<u64, String> {
    let path = "/sys/devices/system/cpu/cpu0/regs/identification/midr_el1";
    let text =
        std::fs::read_to_string(path).map_err(|error| format!("which processor this is, {path} says: {error}"))?;
    let midr = u64::from_str_radix(text.trim().trim_start_matches("0x"), 16);
    arm(midr.map_err(|_| format!("{path} holds no number: {:?}", text.trim()))?)
}

#[cfg(target_arch = "x86_64")]
pub fn event() -> Result<u64, String> {
    Err(x86(&crate::machine::cpu::vendor()))
}

#[cfg(not(any(target_arch = "aarch64", target_arch = "x86_64")))]
pub fn event() -> Result<u64, String> {
    Err(format!("no event of page-walk steps is known for {} processors", std::env::consts::ARCH))
}

#[cfg(any(target_arch = "aarch64", test))]
fn arm(midr: u64) -> Result<u64, String> {
    let (implementer, part) = (midr >> 24 & 0xff, midr >> 4 & 0xfff);
    let known = ARM.iter().find(|(maker, number, _)| (*maker, *number) == (implementer, part));
    known.map(|(_, _, event)| *event).ok_or_else(|| {
        format!(
            "no event of page-walk steps is known for this Arm processor (implementer {implementer:#x}, part {part:#x})"
        )
    })
}

#[cfg(target_arch = "x86_64")]
fn x86(vendor: &str) -> String {
    match vendor {
        "AuthenticAMD" | "HygonGenuine" => "AMD processors count page walks, not their steps".into(),
        "GenuineIntel" => {
            "Intel processors count page walks and the cycles in them; no event of their steps is known".into()
        }
        _ => format!("no event of page-walk steps is known for processors of {vendor}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_with_such_an_event_are_told_by_implementer_and_part() {
        assert_eq!(arm(0x0000_0000_410f_d8e0), Ok(0x8136));
        assert_eq!(arm(0x0000_0000_413f_d8e1), Ok(0x8136), "whatever the revision");
        assert_eq!(arm(0x0000_0000_c00f_ac30), Ok(0xd80d));
        assert_eq!(arm(0x0000_0000_c00f_ac40), Ok(0xd80d));
        let reason = arm(0x0000_0000_413f_d0c1).unwrap_err();
        assert!(reason.contains("implementer 0x41, part 0xd0c"), "{reason}");
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn others_say_what_they_count_instead() {
        assert!(x86("AuthenticAMD").contains("walks"));
        assert!(x86("GenuineIntel").contains("cycles"));
        assert!(x86("CentaurHauls").contains("CentaurHauls"));
    }
}
