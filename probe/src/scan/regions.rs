//! PAGEMAP_SCAN: where a process has pages of a kind, without a word for each page.
//!
//! Source: ioctl_pagemap_scan(2); Documentation/admin-guide/mm/pagemap.rst of the Linux kernel (since 6.7).

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::{io, ptr};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::protocol::event::Range;

/// Pages of files, and shared ones.
pub const FILE: u64 = 1 << 2;
/// Pages that are in memory.
pub const PRESENT: u64 = 1 << 3;
/// The zero page, and the huge one where the kernel says so (see [`tells_huge_zero`]).
pub const ZERO: u64 = 1 << 5;
/// Pages that the page middle directory maps (or one above it): transparent huge pages, and those of pools.
pub const HUGE: u64 = 1 << 6;

/// Address ranges that one call may return.
const REGIONS: usize = 512;

/// struct pm_scan_arg of <linux/fs.h>.
#[repr(C)]
#[derive(Default)]
struct ScanArgument {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// struct page_region of <linux/fs.h>: a range of addresses, and what its pages are.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct PageRegion {
    pub start: u64,
    pub end: u64,
    pub categories: u64,
}

/// _IOWR('f', 16, struct pm_scan_arg), in the encoding of x86-64, arm64, riscv and s390.
const PAGEMAP_SCAN: u64 = 3 << 30 | (size_of::<ScanArgument>() as u64) << 16 | (b'f' as u64) << 8 | 16;

/// Regions within `part` whose pages have all categories `wanted`, each with those of `told` that it has; None where the
/// kernel lacks PAGEMAP_SCAN (before Linux 6.7).
pub fn regions(pagemap: &File, part: Range, wanted: u64, told: u64) -> io::Result<Option<Vec<PageRegion>>> {
    let mut found = Vec::new();
    let mut at = part.start;
    while at < part.end {
        let mut regions = [PageRegion::default(); REGIONS];
        let mut argument = ScanArgument {
            size: size_of::<ScanArgument>() as u64,
            start: at,
            end: part.end,
            vec: regions.as_mut_ptr() as u64,
            vec_len: REGIONS as u64,
            category_mask: wanted,
            return_mask: wanted | told,
            ..ScanArgument::default()
        };
        // SAFETY: the argument is laid out as the kernel's, and names a buffer of vec_len regions that outlives the call.
        let count = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN as _, &mut argument) };
        if count < 0 {
            let error = io::Error::last_os_error();
            return if matches!(error.raw_os_error(), Some(libc::ENOTTY | libc::EINVAL)) {
                Ok(None)
            } else {
                Err(error)
            };
        }
        found.extend_from_slice(&regions[..count as usize]);
        if argument.walk_end <= at {
            break;
        }
        at = argument.walk_end;
    }
    Ok(Some(found))
}

/// Whether `regions` tells the huge zero page from memory. Kernels before 6.17 have the category for the small one alone,
/// so it is tried: on a mapping of this process that is only read. True where the kernel never made a huge zero page.
pub fn tells_huge_zero(pmd: u64) -> bool {
    let events = fs::read_to_string("/proc/vmstat").unwrap_or_default();
    if events.lines().any(|line| line == "thp_zero_page_alloc 0") {
        return true;
    }
    try_huge_zero(pmd as usize).unwrap_or(false)
}

fn try_huge_zero(pmd: usize) -> Option<bool> {
    let length = 2 * pmd;
    // SAFETY: a new mapping of this process, at no address of anybody's.
    let all = unsafe { mmap_anonymous(ptr::null_mut(), length, ProtFlags::READ, MapFlags::PRIVATE) }.ok()?;
    let start = all as usize + all.align_offset(pmd);
    let part = Range { start: start as u64, end: (start + pmd) as u64 };
    // SAFETY: the block lies within the mapping, which is readable, and which nobody else knows.
    let read = unsafe {
        madvise(start as *mut _, pmd, Advice::LinuxHugepage).map(|()| ptr::read_volatile(start as *const u8))
    };
    let told = File::open("/proc/self/pagemap").ok().and_then(|own| regions(&own, part, HUGE, ZERO).ok().flatten());
    // SAFETY: the mapping from above, which is not used any more.
    unsafe { munmap(all, length) }.ok()?;
    read.ok().filter(|byte| *byte == 0)?;
    Some(told?.first()?.categories & ZERO != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ioctl_has_the_kernels_number() {
        assert_eq!(size_of::<ScanArgument>(), 96);
        assert_eq!(PAGEMAP_SCAN, 0xc060_6610);
    }
}
