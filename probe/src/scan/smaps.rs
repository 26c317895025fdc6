//! What an ordinary user can prove of a process's page sizes: from smaps, its status, and the THP settings.
//!
//! smaps tells PMD-mapped huge pages and hugetlb pages; multi-size THP it does not tell from base pages. So the rest is
//! base pages only where nothing else is possible, and `unproven` otherwise.
//!
//! Source: Documentation/filesystems/proc.rst and admin-guide/mm/transhuge.rst of the Linux kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::machine::pages::{self, THP};
use crate::protocol::event::Range;
use crate::scan::area::Area;
use crate::scan::tally::{Bytes, UNPROVEN};

/// A mapping and its fields, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    area: Area,
    fields: BTreeMap<String, u64>,
}

impl Entry {
    fn field(&self, name: &str) -> u64 {
        self.fields.get(name).copied().unwrap_or(0)
    }
}

fn parse(text: &str) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    for line in text.lines() {
        if let Some(area) = Area::parse(line) {
            entries.push(Entry { area, fields: BTreeMap::new() });
        } else if let (Some(entry), Some((name, bytes))) = (entries.last_mut(), field(line)) {
            entry.fields.insert(name.into(), bytes);
        }
    }
    entries
}

/// A line `Name:   number kB`: the name and the bytes.
fn field(line: &str) -> Option<(&str, u64)> {
    let (name, value) = line.split_once(':')?;
    let kilobytes: u64 = value.trim().strip_suffix(" kB")?.parse().ok()?;
    Some((name, kilobytes << 10))
}

/// What is known beside smaps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Knowledge {
    pub base: u64,
    pub pmd: u64,
    /// Anonymous memory of this process can only have base pages.
    pub anon_is_base: bool,
    /// Shared memory of the kernel's own mount (memfd, SysV, shared anonymous) can only have base pages.
    pub shmem_is_base: bool,
    /// Devices of tmpfs mounts, as smaps writes them.
    pub tmpfs: BTreeSet<String>,
}

impl Knowledge {
    /// Ask this machine, for a process whose status says whether THP is disabled for it.
    pub fn gather(thp_disabled: Option<bool>) -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        Self {
            base: pages::base(),
            pmd: pages::pmd(),
            anon_is_base: thp_disabled == Some(true) || all_off(Path::new(THP), "enabled", "enabled"),
            shmem_is_base: all_off(Path::new(THP), "shmem_enabled", "shmem_enabled"),
            tmpfs: tmpfs_devices(&mounts),
        }
    }
}

/// Whether no size can be allocated: the file `global` of `folder` and `own` in each of its size folders allow none.
/// A kernel without the files has no such pages.
fn all_off(folder: &Path, global: &str, own: &str) -> bool {
    let state = |path: &Path| fs::read_to_string(path).ok().map(|text| selected(&text).to_owned());
    let inherited = state(&folder.join(global));
    if inherited.as_deref() == Some("deny") {
        return true;
    }
    let inherited_off = matches!(inherited.as_deref(), None | Some("never"));
    let size_states: Vec<String> = pages::folders(folder)
        .into_iter()
        .filter_map(|size| state(&folder.join(format!("hugepages-{}kB", size >> 10)).join(own)))
        .collect();
    // Before Linux 6.8 there are no settings by size, and the global one stands for the only size.
    if size_states.is_empty() {
        return inherited_off;
    }
    inherited_off && size_states.iter().all(|state| state == "never" || state == "inherit")
        || size_states.iter().all(|state| state == "never") && inherited.as_deref() != Some("force")
}

/// The word in brackets.
fn selected(text: &str) -> &str {
    text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or(text.trim(), |(word, _)| word)
}

/// Devices (`major:minor` in hexadecimal, two digits, as in smaps) of the tmpfs mounts in a mountinfo.
fn tmpfs_devices(mountinfo: &str) -> BTreeSet<String> {
    let device = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        (after.split_whitespace().next()? == "tmpfs").then_some(())?;
        let (major, minor) = before.split_whitespace().nth(2)?.split_once(':')?;
        Some(format!("{:02x}:{:02x}", major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?))
    };
    mountinfo.lines().filter_map(device).collect()
}

/// Bytes by kind and page size in `text` (smaps); with `ranges`, at most what they meet of each mapping.
///
/// Where they meet a mapping only in part, huge pages may lie beside them: then so many count as must meet them.
pub fn tally(text: &str, ranges: Option<&[Range]>, knowledge: &Knowledge) -> Bytes {
    let mut bytes = Bytes::new();
    for entry in parse(text) {
        let parts = entry.area.wanted(ranges);
        let met: u64 = parts.iter().map(|part| part.end - part.start).sum();
        let mut left = met;
        let mut add = |key: String, size: u64| {
            let counted = size.min(left);
            left -= counted;
            if counted > 0 {
                *bytes.entry(key).or_default() += counted;
            }
        };
        let must_meet = |huge: u64| least_met(entry.area.range, &parts, huge, knowledge.pmd);

        let pool = entry.field("Private_Hugetlb") + entry.field("Shared_Hugetlb");
        add(format!("hugetlb:{}", entry.field("KernelPageSize")), pool);

        let (anon, huge) = (entry.field("Anonymous").min(met), entry.field("AnonHugePages"));
        let proven = must_meet(huge).min(anon);
        let is_whole = met == entry.area.range.end - entry.area.range.start;
        let rest_is_base = knowledge.anon_is_base && (huge == 0 || is_whole);
        add(format!("anon:{}", knowledge.pmd), proven);
        add(if rest_is_base { format!("anon:{}", knowledge.base) } else { UNPROVEN.into() }, anon - proven);

        let other = entry.field("Rss").saturating_sub(entry.field("Anonymous")).min(met);
        let (name, huge) = match memory_kind(&entry.area, &knowledge.tmpfs) {
            MemoryKind::File if ranges.is_none() => continue,
            MemoryKind::File => ("file", entry.field("FilePmdMapped")),
            MemoryKind::KernelShmem if knowledge.shmem_is_base && entry.field("ShmemPmdMapped") == 0 => {
                add(format!("shmem:{}", knowledge.base), other);
                continue;
            }
            MemoryKind::KernelShmem | MemoryKind::Tmpfs => ("shmem", entry.field("ShmemPmdMapped")),
        };
        let proven = must_meet(huge).min(other);
        add(format!("{name}:{}", knowledge.pmd), proven);
        add(UNPROVEN.into(), other - proven);
    }
    bytes
}

/// The least bytes that `huge` bytes of huge pages, somewhere in the mapping `whole`, share with its disjoint `parts`:
/// huge pages lie on boundaries of `pmd`, and may all lie where they share least.
fn least_met(whole: Range, parts: &[Range], huge: u64, pmd: u64) -> u64 {
    let (first, last) = (whole.start.div_ceil(pmd), whole.end / pmd);
    // Blocks that are met whole are counted, and only those at the ends of parts are listed: who reserves 100 TiB of
    // addresses does not make a list of 50 million blocks.
    let (mut met, mut edges) = (0, BTreeMap::<u64, u64>::new());
    for part in parts {
        let inner = part.start.div_ceil(pmd).max(first)..(part.end / pmd).min(last);
        met += inner.end.saturating_sub(inner.start);
        let outer = (part.start / pmd).max(first)..part.end.div_ceil(pmd).min(last);
        for block in BTreeSet::from([outer.start, outer.end.saturating_sub(1)]) {
            if outer.contains(&block) && !inner.contains(&block) {
                let (start, end) = (block * pmd, (block + 1) * pmd);
                *edges.entry(block).or_default() += part.end.min(end) - part.start.max(start);
            }
        }
    }
    let beside = last.saturating_sub(first) - met - edges.len() as u64;
    let inside = (huge / pmd).saturating_sub(beside);
    let mut shares: Vec<u64> = edges.into_values().collect();
    shares.sort_unstable();
    let listed = inside.min(shares.len() as u64);
    shares.iter().take(listed as usize).sum::<u64>() + (inside - listed).min(met) * pmd
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MemoryKind {
    /// Of the kernel's internal mount: its page sizes follow shmem_enabled.
    KernelShmem,
    /// A file of a tmpfs mount: its page sizes follow the mount's options.
    Tmpfs,
    /// Any other file, and no file at all (pages there that are not anonymous are the kernel's own).
    File,
}

fn memory_kind(area: &Area, tmpfs: &BTreeSet<String>) -> MemoryKind {
    let internal = ["/memfd:", "/SYSV", "/dev/zero (deleted)"];
    if !area.shared {
        MemoryKind::File
    } else if internal.iter().any(|prefix| area.name.starts_with(prefix)) {
        MemoryKind::KernelShmem
    } else if tmpfs.contains(&area.device) {
        MemoryKind::Tmpfs
    } else {
        MemoryKind::File
    }
}

/// Bytes that the PMD maps, by the mapping's first address, by `text` (smaps).
pub fn pmd_mapped(text: &str) -> BTreeMap<u64, u64> {
    let fields = ["AnonHugePages", "ShmemPmdMapped", "FilePmdMapped"];
    let sum = |entry: &Entry| fields.iter().map(|name| entry.field(name)).sum();
    parse(text).iter().map(|entry| (entry.area.range.start, sum(entry))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    use crate::common::fuzz;

    // Recorded on Linux 6.18 and shortened: 4 MiB advised (2 MiB huge), a memfd, a pool of 2 MiB pages, a library.
    const RECORDED: &str = "\
7f0000000000-7f0000800000 rw-p 00000000 00:00 0 
Size:               8192 kB
KernelPageSize:        4 kB
MMUPageSize:           4 kB
Rss:                4096 kB
Anonymous:          4096 kB
AnonHugePages:      2048 kB
ShmemPmdMapped:        0 kB
THPeligible:           1
VmFlags: rd wr mr mw me ac sd hg 
7f0001000000-7f0001100000 rw-s 00000000 00:01 2054                       /memfd:x (deleted)
KernelPageSize:        4 kB
Rss:                 100 kB
Anonymous:             0 kB
AnonHugePages:         0 kB
ShmemPmdMapped:        0 kB
7f0002000000-7f0002400000 rw-p 00000000 00:10 9                          /anon_hugepage (deleted)
KernelPageSize:     2048 kB
Rss:                   0 kB
Anonymous:             0 kB
Private_Hugetlb:    4096 kB
7f0003000000-7f0003100000 r-xp 00000000 fe:00 77                         /usr/lib/libc.so.6
KernelPageSize:        4 kB
Rss:                 500 kB
Anonymous:             8 kB
";

    fn knowledge(base: bool) -> Knowledge {
        Knowledge { base: 4096, pmd: 2 << 20, anon_is_base: base, shmem_is_base: base, tmpfs: BTreeSet::new() }
    }

    fn bytes(pairs: &[(&str, u64)]) -> Bytes {
        pairs.iter().map(|(key, kilobytes)| ((*key).into(), kilobytes << 10)).collect()
    }

    #[test]
    fn only_what_is_proven_has_a_size() {
        let expected = [("anon:2097152", 2048), ("hugetlb:2097152", 4096), ("unproven", 2048 + 100 + 8)];
        assert_eq!(tally(RECORDED, None, &knowledge(false)), bytes(&expected));
        let expected =
            [("anon:2097152", 2048), ("anon:4096", 2048 + 8), ("hugetlb:2097152", 4096), ("shmem:4096", 100)];
        assert_eq!(tally(RECORDED, None, &knowledge(true)), bytes(&expected));
    }

    #[test]
    fn ranges_cap_what_counts() {
        let range = |start, end| Range { start, end };
        let one = [range(0x7f00_0000_0000, 0x7f00_0030_0000)];
        assert_eq!(tally(RECORDED, Some(&one), &knowledge(true)), bytes(&[("unproven", 3072)]));
        let memfd = [range(0x7f00_0100_0000, 0x7f00_0100_4000)];
        assert_eq!(tally(RECORDED, Some(&memfd), &knowledge(true)), bytes(&[("shmem:4096", 16)]));
        let pool = [range(0x7f00_0200_0000, 0x7f00_0200_1000)];
        assert_eq!(tally(RECORDED, Some(&pool), &knowledge(true)), bytes(&[("hugetlb:2097152", 4)]));
        let library = [range(0x7f00_0300_0000, 0x7f00_0310_0000)];
        assert_eq!(
            tally(RECORDED, Some(&library), &knowledge(true)),
            bytes(&[("anon:4096", 8), ("unproven", 500 - 8)])
        );
    }

    #[test]
    fn huge_pages_count_only_as_far_as_they_must_meet() {
        const M: u64 = 1 << 20;
        let least = |parts: &[(u64, u64)], huge| {
            let parts: Vec<Range> = parts.iter().map(|(start, end)| Range { start: *start, end: *end }).collect();
            least_met(Range { start: M, end: 9 * M }, &parts, huge, 2 * M)
        };
        // Blocks of the mapping 1m-9m: 2-4, 4-6, 6-8.
        assert_eq!(least(&[(M, 9 * M)], 4 * M), 4 * M);
        assert_eq!(least(&[(2 * M, 4 * M)], 4 * M), 0);
        assert_eq!(least(&[(2 * M, 4 * M)], 6 * M), 2 * M);
        assert_eq!(least(&[(2 * M, 5 * M)], 6 * M), 3 * M);
        assert_eq!(least(&[(2 * M, 5 * M)], 4 * M), M);
        assert_eq!(least(&[(3 * M, 4 * M), (5 * M, 9 * M)], 4 * M), 2 * M);
        assert_eq!(least(&[(M, 2 * M)], 6 * M), 0);
        assert_eq!(least(&[(2 * M, 3 * M), (3 * M, 4 * M)], 6 * M), 2 * M);
        assert_eq!(least(&[], 6 * M), 0);
    }

    #[test]
    fn a_reservation_of_all_addresses_takes_no_time() {
        let text =
            "1000-fffffffff000 rw-p 00000000 00:00 0 \nRss: 4096 kB\nAnonymous: 4096 kB\nAnonHugePages: 2048 kB\n";
        assert_eq!(tally(text, None, &knowledge(true)), bytes(&[("anon:2097152", 2048), ("anon:4096", 2048)]));
    }

    #[test]
    fn the_pmds_share_is_found_by_address() {
        assert_eq!(pmd_mapped(RECORDED)[&0x7f00_0000_0000], 2 << 20);
        assert_eq!(pmd_mapped(RECORDED).values().sum::<u64>(), 2 << 20);
    }

    #[test]
    fn tmpfs_mounts_are_known_by_their_device() {
        let mounts = "24 1 0:22 / /dev/shm rw shared:3 - tmpfs tmpfs rw\n25 1 254:0 / / rw - ext4 /dev/vda rw\n";
        assert_eq!(tmpfs_devices(mounts), BTreeSet::from(["00:16".to_owned()]));
        let area = Area::parse("1000-2000 rw-s 00000000 00:16 5 /dev/shm/x").unwrap();
        assert_eq!(memory_kind(&area, &tmpfs_devices(mounts)), MemoryKind::Tmpfs);
        assert_eq!(memory_kind(&area, &BTreeSet::new()), MemoryKind::File);
    }

    fn settings(global: &str, by_size: &[(u64, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("enabled"), global).unwrap();
        for (kilobytes, state) in by_size {
            let size = folder.path().join(format!("hugepages-{kilobytes}kB"));
            fs::create_dir(&size).unwrap();
            fs::write(size.join("enabled"), state).unwrap();
        }
        folder
    }

    #[test]
    fn settings_are_off_only_when_every_size_is() {
        let off = |global: &str, sizes: &[(u64, &str)]| all_off(settings(global, sizes).path(), "enabled", "enabled");
        let (never, madvise) = ("always madvise [never]", "always [madvise] never");
        let (inherit, none) = ("always [inherit] madvise never", "always inherit madvise [never]");
        assert!(off(never, &[(64, none), (2048, inherit)]));
        assert!(off(madvise, &[(64, none), (2048, none)]));
        assert!(off(never, &[]));
        assert!(!off(madvise, &[]));
        assert!(!off(madvise, &[(64, none), (2048, inherit)]));
        assert!(!off(never, &[(64, "[always] inherit madvise never"), (2048, inherit)]));
        assert!(!off(never, &[(64, "always inherit [madvise] never")]));
        assert!(all_off(Path::new("/nonexistent"), "enabled", "enabled"));
        assert!(off("always within_size advise never [deny] force", &[(64, "[always] inherit never")]));
        assert!(!off("always within_size advise never deny [force]", &[(64, none)]));
    }

    proptest! {
        #![proptest_config(fuzz::config())]

        #[test]
        fn whatever_smaps_says_no_more_is_found_than_is_mapped(
            text in fuzz::broken_text(&[RECORDED]),
            parts in prop::collection::vec(any::<(u64, u64)>(), 0..4),
            near in any::<bool>(),
        ) {
            let base = if near { 0x7f00_0000_0000 } else { 0 };
            let parts: Vec<Range> = parts
                .iter()
                .map(|(start, size)| (base + (start >> 20), size >> 40))
                .map(|(start, size)| Range { start, end: start.saturating_add(size) })
                .collect();
            let parts = crate::scan::area::merged(&parts);
            for ranges in [None, Some(&parts[..])] {
                let most: u128 = parse(&text)
                    .iter()
                    .flat_map(|entry| entry.area.wanted(ranges))
                    .map(|part| u128::from(part.end - part.start))
                    .sum();
                let found: u128 = tally(&text, ranges, &knowledge(near)).values().map(|bytes| u128::from(*bytes)).sum();
                prop_assert!(found <= most, "{found} of {most}");
            }
            pmd_mapped(&text);
        }

        #[test]
        fn whatever_is_mounted_has_devices_or_none(
            text in fuzz::broken_text(&["24 1 0:22 / /dev/shm rw shared:3 - tmpfs tmpfs rw\n25 1 254:0 / / rw - ext4 /dev/vda rw\n"]),
        ) {
            tmpfs_devices(&text);
            selected(&text);
        }
    }
}
