//! The TLBs as CPUID states them. Decoding is pure; only `main` asks the processor.
//!
//! Sources: Intel SDM volume 2A, CPUID (leaves 2 and 18H); AMD64 Architecture Programmer's Manual volume 3, appendix E
//! (Fn8000_0005, 0006, 0019, 0021). The page sizes below are those that the leaves are defined for.

// The tables are of x86-64; elsewhere only their tests use them.
#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]

use anyhow::Result;

use crate::protocol::event::{Event, Tlb, emit};

const K4: u64 = 4 << 10;
const M2: u64 = 2 << 20;
const M4: u64 = 4 << 20;
const G1: u64 = 1 << 30;

/// EAX, EBX, ECX, EDX.
type Registers = [u32; 4];

/// `hugewise-probe cpu`.
pub fn main() -> Result<()> {
    emit(&describe())?;
    Ok(())
}

#[cfg(not(target_arch = "x86_64"))]
fn describe() -> Event {
    let reason = format!("{} processors do not state their TLBs to programs", std::env::consts::ARCH);
    Event::Cpu { vendor: String::new(), model: String::new(), tlbs: vec![], reason: Some(reason) }
}

#[cfg(target_arch = "x86_64")]
fn describe() -> Event {
    let cpuid = |leaf: u32, subleaf: u32| -> Registers {
        let result = std::arch::x86_64::__cpuid_count(leaf, subleaf);
        [result.eax, result.ebx, result.ecx, result.edx]
    };
    decode(cpuid)
}

/// Ask `cpuid` (leaf, subleaf) for everything that is stated about TLBs.
fn decode(cpuid: impl Fn(u32, u32) -> Registers) -> Event {
    let [highest, b, c, d] = cpuid(0, 0);
    let vendor = text(&[b, d, c]);
    let extended = cpuid(0x8000_0000, 0)[0];
    let leaf = |number: u32| {
        let last = if number >= 0x8000_0000 { extended } else { highest };
        if number <= last { cpuid(number, 0) } else { [0; 4] }
    };
    let model = text(&[leaf(0x8000_0002), leaf(0x8000_0003), leaf(0x8000_0004)].concat());
    let tlbs = match vendor.as_str() {
        "AuthenticAMD" | "HygonGenuine" => {
            amd(leaf(0x8000_0005), leaf(0x8000_0006), leaf(0x8000_0019), leaf(0x8000_0021))
        }
        "GenuineIntel" => {
            let deterministic = (0..=leaf(0x18)[0].min(64)).map(|subleaf| cpuid(0x18, subleaf));
            let stated = if highest >= 0x18 { intel_leaf_18(deterministic) } else { vec![] };
            if stated.is_empty() { intel_leaf_2(leaf(2)) } else { stated }
        }
        _ => vec![],
    };
    let guest = leaf(1)[2] >> 31 == 1;
    let reason = match (tlbs.is_empty(), guest) {
        (true, true) => Some("this virtual machine's CPUID states no TLBs".to_owned()),
        (true, false) => Some(format!("the CPUID of vendor '{vendor}' states no TLBs")),
        (false, true) => Some("in a virtual machine: the hypervisor may have altered what CPUID states".to_owned()),
        (false, false) => None,
    };
    Event::Cpu { vendor, model, tlbs, reason }
}

/// Registers as text, without padding.
fn text(registers: &[u32]) -> String {
    let bytes: Vec<u8> = registers.iter().flat_map(|register| register.to_le_bytes()).collect();
    String::from_utf8_lossy(&bytes).trim_matches(|letter: char| letter == '\0' || letter == ' ').to_owned()
}

fn tlb(level: u8, kind: &str, page_sizes: &[u64], entries: u32, ways: u32) -> Tlb {
    Tlb { level, kind: kind.into(), page_sizes: page_sizes.to_vec(), entries, ways }
}

/// AMD: level 1 by one byte each for ways and entries, level 2 and 1 GiB pages by four and twelve bits.
fn amd(level_1: Registers, level_2: Registers, gigabyte: Registers, features: Registers) -> Vec<Tlb> {
    let mut tlbs = Vec::new();
    for (register, size) in [(level_1[1], K4), (level_1[0], M2)] {
        for (kind, half) in [("data", register >> 16), ("instruction", register & 0xffff)] {
            let (ways, entries) = (half >> 8 & 0xff, half & 0xff);
            if entries > 0 {
                tlbs.push(tlb(1, kind, &[size], entries, if ways == 0xff { 0 } else { ways }));
            }
        }
    }
    // Fn8000_0021 EAX bit 14: sizes of level 2 are multiples of 32.
    let scale = if features[0] >> 14 & 1 == 1 { 32 } else { 1 };
    let nibbled =
        [(1, gigabyte[0], G1, 1), (2, level_2[1], K4, scale), (2, level_2[0], M2, scale), (2, gigabyte[1], G1, scale)];
    for (level, register, size, scale) in nibbled {
        // A level 2 whose upper half is zero is one for data and instructions, and the lower half describes it.
        let lower = if level == 2 && register >> 16 == 0 { "unified" } else { "instruction" };
        for (kind, half) in [("data", register >> 16), (lower, register & 0xffff)] {
            if let (Some(ways), entries @ 1..) = (amd_ways(half >> 12), half & 0xfff) {
                tlbs.push(tlb(level, kind, &[size], entries * scale, ways));
            }
        }
    }
    tlbs
}

/// AMD's four-bit code of associativity; None when there is no such TLB (or another leaf would say).
fn amd_ways(code: u32) -> Option<u32> {
    let ways = [0, 1, 2, 3, 4, 6, 8, 0, 16, 0, 32, 48, 64, 96, 128, 0];
    match code {
        0xf => Some(0),
        code => ways.get(code as usize).copied().filter(|ways| *ways > 0),
    }
}

/// Intel: the deterministic address translation parameters, one TLB a subleaf.
fn intel_leaf_18(subleaves: impl IntoIterator<Item = Registers>) -> Vec<Tlb> {
    let kinds = ["", "data", "instruction", "unified", "load", "store"];
    let describe = |[_, b, sets, d]: Registers| {
        let kind = kinds.get((d & 0x1f) as usize).copied().filter(|kind| !kind.is_empty())?;
        let sizes: Vec<u64> = [K4, M2, M4, G1]
            .into_iter()
            .enumerate()
            .filter(|(bit, _)| b >> bit & 1 == 1)
            .map(|(_, size)| size)
            .collect();
        let ways = b >> 16;
        let fully = d >> 8 & 1 == 1;
        Some(tlb((d >> 5 & 7) as u8, kind, &sizes, ways.saturating_mul(sets), if fully { 0 } else { ways }))
    };
    subleaves.into_iter().filter_map(describe).collect()
}

/// Intel: one descriptor a byte (SDM table 3-12). AL is a count; a register with bit 31 set holds none.
fn intel_leaf_2(registers: Registers) -> Vec<Tlb> {
    let bytes = registers
        .iter()
        .enumerate()
        .filter(|(_, register)| **register >> 31 == 0)
        .flat_map(|(index, register)| register.to_le_bytes().into_iter().skip(usize::from(index == 0)));
    bytes.flat_map(descriptor).collect()
}

fn descriptor(byte: u8) -> Vec<Tlb> {
    let (data, code, both) = ("data", "instruction", "unified");
    let one = |level, kind, sizes: &[u64], entries, ways| vec![tlb(level, kind, sizes, entries, ways)];
    match byte {
        0x01 => one(1, code, &[K4], 32, 4),
        0x02 => one(1, code, &[M4], 2, 0),
        0x03 => one(1, data, &[K4], 64, 4),
        0x04 => one(1, data, &[M4], 8, 4),
        0x05 => one(2, data, &[M4], 32, 4),
        0x0b => one(1, code, &[M4], 4, 4),
        0x4f => one(1, code, &[K4], 32, 0),
        0x50 => one(1, code, &[K4, M2, M4], 64, 0),
        0x51 => one(1, code, &[K4, M2, M4], 128, 0),
        0x52 => one(1, code, &[K4, M2, M4], 256, 0),
        0x55 => one(1, code, &[M2, M4], 7, 0),
        0x56 => one(1, data, &[M4], 16, 4),
        0x57 => one(1, data, &[K4], 16, 4),
        0x59 => one(1, data, &[K4], 16, 0),
        0x5a => one(1, data, &[M2, M4], 32, 4),
        0x5b => one(1, data, &[K4, M4], 64, 0),
        0x5c => one(1, data, &[K4, M4], 128, 0),
        0x5d => one(1, data, &[K4, M4], 256, 0),
        0x61 => one(1, code, &[K4], 48, 0),
        0x63 => vec![tlb(1, data, &[M2, M4], 32, 4), tlb(1, data, &[G1], 4, 4)],
        0x64 => one(1, data, &[K4], 512, 4),
        0x6a => one(1, data, &[K4], 64, 8),
        0x6b => one(2, data, &[K4], 256, 8),
        0x6c => one(2, data, &[M2, M4], 128, 8),
        0x6d => one(2, data, &[G1], 16, 0),
        0x76 => one(1, code, &[M2, M4], 8, 0),
        0xa0 => one(1, data, &[K4], 32, 0),
        0xb0 => one(1, code, &[K4], 128, 4),
        0xb1 => one(1, code, &[M2], 8, 4),
        0xb2 => one(1, code, &[K4], 64, 4),
        0xb3 => one(1, data, &[K4], 128, 4),
        0xb4 => one(2, data, &[K4], 256, 4),
        0xb5 => one(1, code, &[K4], 64, 8),
        0xb6 => one(1, code, &[K4], 128, 8),
        0xba => one(2, data, &[K4], 64, 4),
        0xc0 => one(1, data, &[K4, M4], 8, 4),
        0xc1 => one(2, both, &[K4, M2], 1024, 8),
        0xc2 => one(1, data, &[K4, M2], 16, 4),
        0xc3 => vec![tlb(2, both, &[K4, M2], 1536, 6), tlb(2, both, &[G1], 16, 4)],
        0xc4 => one(1, data, &[M2, M4], 32, 4),
        0xca => one(2, both, &[K4], 512, 4),
        _ => vec![],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    use crate::common::fuzz;

    /// A processor whose recorded leaves are `leaves`: (leaf, subleaf, registers).
    fn recorded(leaves: &[(u32, u32, Registers)]) -> (String, String, Vec<Tlb>, Option<String>) {
        let find = |leaf, subleaf| leaves.iter().find(|known| (known.0, known.1) == (leaf, subleaf));
        match decode(|leaf, subleaf| find(leaf, subleaf).map_or([0; 4], |known| known.2)) {
            Event::Cpu { vendor, model, tlbs, reason } => (vendor, model, tlbs, reason),
            other => panic!("another event: {other:?}"),
        }
    }

    const AMD: Registers = [0x10, 0x6874_7541, 0x444d_4163, 0x6974_6e65];
    const INTEL: Registers = [0x20, 0x756e_6547, 0x6c65_746e, 0x4965_6e69];

    #[test]
    fn ryzen_matisse_zen_2() {
        let (vendor, _, tlbs, reason) = recorded(&[
            (0, 0, AMD),
            (0x8000_0000, 0, [0x8000_0020, 0, 0, 0]),
            (0x8000_0005, 0, [0xff40_ff40, 0xff40_ff40, 0x2008_0140, 0x2008_0140]),
            (0x8000_0006, 0, [0x4800_6400, 0x6800_6400, 0x0200_6140, 0x0100_9140]),
            (0x8000_0019, 0, [0xf040_f040, 0, 0, 0]),
        ]);
        assert_eq!((vendor.as_str(), reason), ("AuthenticAMD", None));
        assert_eq!(
            tlbs,
            [
                tlb(1, "data", &[K4], 64, 0),
                tlb(1, "instruction", &[K4], 64, 0),
                tlb(1, "data", &[M2], 64, 0),
                tlb(1, "instruction", &[M2], 64, 0),
                tlb(1, "data", &[G1], 64, 0),
                tlb(1, "instruction", &[G1], 64, 0),
                tlb(2, "data", &[K4], 2048, 8),
                tlb(2, "instruction", &[K4], 1024, 8),
                tlb(2, "data", &[M2], 2048, 4),
                tlb(2, "instruction", &[M2], 1024, 8),
            ]
        );
    }

    #[test]
    fn epyc_zen_5_counts_level_2_in_units_of_32() {
        let level_2 = [0x4080_2040, 0x6080_4040, 0x0400_8140, 0x0c00_9140];
        let data = |features| {
            let tlbs = amd([0xff60_ff40, 0xff60_ff40, 0, 0], level_2, [0; 4], [features, 0, 0, 0]);
            tlbs.into_iter().find(|tlb| tlb.level == 2 && tlb.page_sizes == [K4]).unwrap()
        };
        assert_eq!(data(1 << 14), tlb(2, "data", &[K4], 4096, 8));
        assert_eq!(data(0), tlb(2, "data", &[K4], 128, 8));
    }

    #[test]
    fn core_i7_12700k_by_leaf_18() {
        let (vendor, _, tlbs, _) = recorded(&[
            (0, 0, INTEL),
            (2, 0, [0x00fe_ff01, 0xf0, 0, 0]),
            (0x18, 0, [8, 0, 0, 0]),
            (0x18, 1, [0, 0x0008_0001, 0x20, 0x4022]),
            (0x18, 2, [0, 0x0008_0006, 0x4, 0x4022]),
            (0x18, 3, [0, 0x0010_000f, 0x1, 0x4125]),
            (0x18, 4, [0, 0x0004_0001, 0x10, 0x4024]),
            (0x18, 5, [0, 0x0004_0006, 0x8, 0x4024]),
            (0x18, 6, [0, 0x0008_0008, 0x1, 0x4124]),
            (0x18, 7, [0, 0x0008_0007, 0x80, 0x4043]),
            (0x18, 8, [0, 0x0008_0009, 0x80, 0x4043]),
        ]);
        assert_eq!(vendor, "GenuineIntel");
        assert_eq!(
            tlbs,
            [
                tlb(1, "instruction", &[K4], 256, 8),
                tlb(1, "instruction", &[M2, M4], 32, 8),
                tlb(1, "store", &[K4, M2, M4, G1], 16, 0),
                tlb(1, "load", &[K4], 64, 4),
                tlb(1, "load", &[M2, M4], 32, 4),
                tlb(1, "load", &[G1], 8, 0),
                tlb(2, "unified", &[K4, M2, M4], 1024, 8),
                tlb(2, "unified", &[K4, G1], 1024, 8),
            ]
        );
    }

    #[test]
    fn xeon_gold_6252_by_leaf_2() {
        let (_, _, tlbs, _) = recorded(&[
            (0, 0, [0x16, INTEL[1], INTEL[2], INTEL[3]]),
            (2, 0, [0x7603_6301, 0x00f0_b5ff, 0, 0x00c3_0000]),
        ]);
        assert_eq!(
            tlbs,
            [
                tlb(1, "data", &[M2, M4], 32, 4),
                tlb(1, "data", &[G1], 4, 4),
                tlb(1, "data", &[K4], 64, 4),
                tlb(1, "instruction", &[M2, M4], 8, 0),
                tlb(1, "instruction", &[K4], 64, 8),
                tlb(2, "unified", &[K4, M2], 1536, 6),
                tlb(2, "unified", &[G1], 16, 4),
            ]
        );
    }

    #[test]
    fn a_guest_is_told_apart() {
        let hypervisor = [0, 0, 1 << 31, 0];
        let (_, _, tlbs, reason) = recorded(&[(0, 0, AMD), (1, 0, hypervisor)]);
        assert!(tlbs.is_empty() && reason.unwrap().contains("virtual machine"));
    }

    #[test]
    fn an_unknown_vendor_has_a_reason() {
        let (_, _, tlbs, reason) = recorded(&[]);
        assert!(tlbs.is_empty() && reason.is_some());
    }

    #[test]
    fn the_model_is_the_brand_string() {
        let (_, model, _, _) =
            recorded(&[(0x8000_0000, 0, [0x8000_0004, 0, 0, 0]), (0x8000_0002, 0, [0x2044_4d41, 0x4359_5045, 0, 0])]);
        assert_eq!(model, "AMD EPYC");
    }

    proptest! {
        #![proptest_config(fuzz::config())]

        #[test]
        fn whatever_a_processor_states_is_described(seed in any::<u64>(), vendor in 0..3usize) {
            let mix = |value: u64| crate::common::random::mix(value ^ seed);
            let name = [b"AuthenticAMD", b"GenuineIntel", b"xxxxxxxxxxxx"][vendor];
            let word = |at: usize| u32::from_le_bytes(name[at..at + 4].try_into().unwrap());
            decode(|leaf, subleaf| match leaf {
                0 => [mix(1) as u32, word(0), word(8), word(4)],
                0x8000_0000 => [u32::MAX, 0, 0, 0],
                _ => [0, 1, 2, 3].map(|register| mix(u64::from(leaf) << 20 | u64::from(subleaf) << 2 | register) as u32),
            });
        }
    }
}
