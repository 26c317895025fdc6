//! The page sizes of this machine, read from the kernel: none is written in.
//!
//! Source: Documentation/admin-guide/mm/{transhuge,hugetlbpage}.rst of the Linux kernel.

use std::fs;
use std::path::Path;

pub const THP: &str = "/sys/kernel/mm/transparent_hugepage";
pub const HUGETLB: &str = "/sys/kernel/mm/hugepages";

/// Collapse a range into huge pages, whatever the settings in sysfs are. Of <asm-generic/mman-common.h>; the libc crate
/// has no name for it with musl.
pub const MADV_COLLAPSE: libc::c_int = 25;

/// The kernel's base page in bytes.
pub fn base() -> u64 {
    rustix::param::page_size() as u64
}

/// What one page-table page maps. Without THP the kernel does not say; then it is one page of 8-byte entries.
pub fn pmd() -> u64 {
    read_number(&format!("{THP}/hpage_pmd_size")).unwrap_or_else(|| base() * (base() / 8))
}

/// Sizes of the hugetlb pools in bytes, smallest first.
pub fn hugetlb() -> Vec<u64> {
    folders(Path::new(HUGETLB))
}

/// Sizes in bytes named by the `hugepages-NkB` folders under `path`, smallest first.
pub fn folders(path: &Path) -> Vec<u64> {
    let mut sizes: Vec<u64> = fs::read_dir(path)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| folder_size(entry.file_name().to_str()?))
        .collect();
    sizes.sort_unstable();
    sizes
}

/// The number in a one-line file, if there is one.
pub fn read_number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn folder_size(name: &str) -> Option<u64> {
    let kilobytes: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
    Some(kilobytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_names_are_read() {
        assert_eq!(folder_size("hugepages-2048kB"), Some(2 << 20));
        assert_eq!(folder_size("khugepaged"), None);
        assert_eq!(folder_size("hugepages-xkB"), None);
    }

    #[test]
    fn this_machine_has_consistent_sizes() {
        assert!(base().is_power_of_two());
        assert!(pmd() > base() && pmd().is_multiple_of(base()));
        assert!(hugetlb().is_sorted());
    }
}
