//! What of the free memory can become a huge page at once.
//!
//! Sources: proc(5) for buddyinfo; zone_watermark_ok() and the zones' `protection` in mm/page_alloc.c of the kernel: a
//! zone whose free pages all lie below its reserve for the higher zones serves no program, however large its blocks.

use std::collections::BTreeMap;
use std::fs;
use std::io;

/// Free memory, and the part of it in blocks that a huge page fits into, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Free {
    pub all: u64,
    pub huge: u64,
}

impl Free {
    /// As the machine is now, with base and huge pages of these sizes.
    pub fn now(base: u64, pmd: u64) -> io::Result<Self> {
        let [buddy, zones, memory] =
            ["buddyinfo", "zoneinfo", "meminfo"].map(|name| fs::read_to_string(format!("/proc/{name}")));
        Ok(Self::of(&buddy?, &zones?, &memory?, base, pmd))
    }

    /// Of the texts of /proc/buddyinfo, zoneinfo and meminfo.
    ///
    /// Where the kernel says that more is free than its lists hold, the rest was never given to the lists (kernels that
    /// prepare memory when it is first needed): that comes as huge as one likes.
    fn of(buddy: &str, zones: &str, memory: &str, base: u64, pmd: u64) -> Self {
        let order = (pmd / base).ilog2() as usize;
        let reserved = reserved(zones);
        let mut found = Self::default();
        for line in buddy.lines() {
            let Some((place, counts)) = line.split_once("zone").map(|(node, rest)| {
                let mut words = rest.split_whitespace();
                let name = words.next().unwrap_or_default();
                ((node.trim().trim_end_matches(',').to_owned(), name.to_owned()), words.collect::<Vec<_>>())
            }) else {
                continue;
            };
            let sizes = counts.iter().enumerate().map(|(n, count)| (n, (count.parse().unwrap_or(0u64) * base) << n));
            let all: u64 = sizes.clone().map(|(_, bytes)| bytes).sum();
            let huge: u64 = sizes.filter(|(n, _)| *n >= order).map(|(_, bytes)| bytes).sum();
            found.all += all;
            if all > reserved.get(&place).copied().unwrap_or(0) * base {
                found.huge += huge;
            }
        }
        let unlisted = kilobytes(memory, "MemFree:").saturating_sub(found.all);
        if unlisted > found.all.max(pmd) / 50 {
            found.all += unlisted;
            found.huge += unlisted;
        }
        found
    }
}

/// MemAvailable in bytes; 0 where the kernel does not say it.
pub fn available() -> u64 {
    kilobytes(&fs::read_to_string("/proc/meminfo").unwrap_or_default(), "MemAvailable:")
}

fn kilobytes(meminfo: &str, name: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok()).unwrap_or(0) << 10
}

/// Pages that each zone keeps from programs: its lowest watermark, and what is reserved against movable allocations.
fn reserved(zoneinfo: &str) -> BTreeMap<(String, String), u64> {
    let mut found = BTreeMap::new();
    let (mut names, mut place, mut least) = (Vec::new(), None, 0);
    for line in zoneinfo.lines() {
        let text = line.trim();
        if let Some((node, zone)) = line.strip_prefix("Node").and_then(|rest| rest.split_once(", zone")) {
            let zone = zone.trim().to_owned();
            if !names.contains(&zone) {
                names.push(zone.clone());
            }
            place = Some((format!("Node {}", node.trim()), zone));
        } else if let Some(value) = text.strip_prefix("min ") {
            least = value.trim().parse().unwrap_or(0);
        } else if let Some(list) = text.strip_prefix("protection: (")
            && let Some(place) = place.take()
        {
            found.insert(place, (least, list.trim_end_matches(')').to_owned()));
        }
    }
    let movable = names.iter().position(|name| name == "Movable").unwrap_or(names.len().saturating_sub(1));
    let of = |(least, list): (u64, String)| {
        least + list.split(',').nth(movable).and_then(|each| each.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    found.into_iter().map(|(place, kept)| (place, of(kept))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDDY: &str = "Node 0, zone      DMA      0      0      0      0      0      0      0      0      1      1      3 \n\
                         Node 0, zone   Normal      8      0      0      0      0      0      0      0      0      2      1 \n";
    const ZONES: &str = "Node 0, zone      DMA\n  pages free     3840\n        min      39\n        protection: (0, 3019, 24000, 24000, 24000)\n\
                         Node 0, zone   Normal\n  pages free     100\n        min      10\n        protection: (0, 0, 0, 0, 0)\n\
                         Node 0, zone  Movable\n  pages free     0\n        min      0\n        protection: (0, 0, 0, 0, 0)\n";

    #[test]
    fn what_no_program_reaches_does_not_count_as_huge() {
        let listed = 3840 + 8 + 2048;
        let free = Free::of(BUDDY, ZONES, &format!("MemFree: {} kB\n", listed * 4), 4096, 2 << 20);
        assert_eq!(free, Free { all: listed << 12, huge: 2048 << 12 });
        // Without the reserve the small zone serves everybody: a block of order 9 and three of order 10.
        let free = Free::of(BUDDY, "", &format!("MemFree: {} kB\n", listed * 4), 4096, 2 << 20);
        assert_eq!(free.huge, (2048 + 512 + 3072) << 12);
    }

    #[test]
    fn what_was_never_in_the_lists_counts_as_huge() {
        let free = Free::of(BUDDY, ZONES, "MemFree: 1048576 kB\n", 4096, 2 << 20);
        assert_eq!(free.all, 1 << 30);
        assert_eq!(free.huge, (1 << 30) - ((3840 + 8) << 12));
    }

    #[test]
    fn other_sizes_have_another_order() {
        let free = Free::of("Node 0, zone Normal 1 1 1 1\n", "", "MemFree: 960 kB\n", 65_536, 262_144);
        assert_eq!(free, Free { all: 15 << 16, huge: 12 << 16 });
    }
}
