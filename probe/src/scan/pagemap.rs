//! Exact page sizes, from a process's pagemap and the physical pages' flags. Needs CAP_SYS_ADMIN.
//!
//! Cost for 1 GiB (measured): base pages some 50 ms, most of it /proc/kpageflags; huge pages 2 ms.
//!
//! Source: Documentation/admin-guide/mm/pagemap.rst of the Linux kernel.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, bail};

use crate::machine::pages;
use crate::protocol::event::Range;
use crate::scan::area::Area;
use crate::scan::folio::{Flags, PFN_MASK, PRESENT, Piece, Splitter, runs};
use crate::scan::smaps;
use crate::scan::tally::{Bytes, Kind, Mapping, Tally};
use crate::scan::task::Task;

/// Entries read at once: 512 KiB of buffer.
const CHUNK: u64 = 64 * 1024;
/// Most flags read at once, when many single pages follow one another.
const LONGEST_LOOK: u64 = 4096;
/// Address ranges that one PAGEMAP_SCAN call may return.
const REGIONS: usize = 512;

/// From this size on a mapping is first asked where it has pages at all: a hole costs 1.3 ns a page to read over, and
/// reserved address space may be endless.
const SPARSE: u64 = 1 << 36;

const CATEGORY_PRESENT: u64 = 1 << 3;
const CATEGORY_HUGE: u64 = 1 << 6;

/// Bytes by kind and page size of `areas`, whole or where they meet `ranges`.
pub fn scan(task: &Task, areas: &[Area], ranges: Option<&[Range]>) -> Result<Bytes> {
    let mut scanner = Scanner::open(task, ranges.is_some())?;
    for area in areas {
        for part in area.wanted(ranges) {
            scanner.area(area, part).with_context(|| format!("cannot read the pages at {:#x}", part.start))?;
        }
    }
    Ok(scanner.tally.into_bytes())
}

struct Scanner<'a> {
    task: &'a Task,
    pagemap: File,
    flags: PageFlags,
    tally: Tally,
    files_count: bool,
    base: u64,
    buffer: Vec<u8>,
}

impl<'a> Scanner<'a> {
    fn open(task: &'a Task, files_count: bool) -> Result<Self> {
        let base = pages::base();
        let flags = PageFlags::open()?;
        let pagemap = File::open(task.path("pagemap")).context("cannot open the process's pagemap")?;
        let tally = Tally::new(base, pages::pmd());
        Ok(Self { task, pagemap, flags, tally, files_count, base, buffer: vec![0; CHUNK as usize * 8] })
    }

    fn area(&mut self, area: &Area, part: Range) -> Result<()> {
        let length = part.end - part.start;
        let filled = if length < SPARSE { None } else { regions(&self.pagemap, part, CATEGORY_PRESENT)? };
        for part in filled.unwrap_or_else(|| vec![part]) {
            let (mut vpn, end) = (part.start / self.base, part.end.div_ceil(self.base));
            while vpn < end {
                let pages = CHUNK.min(end - vpn);
                let entries = self.entries(vpn, pages)?;
                self.chunk(area, vpn, &entries)?;
                vpn += pages;
            }
        }
        Ok(())
    }

    fn entries(&mut self, vpn: u64, pages: u64) -> Result<Vec<u64>> {
        let buffer = &mut self.buffer[..pages as usize * 8];
        // Past the end of user space (vsyscall) there is nothing to read.
        let read = self.pagemap.read_at(buffer, vpn * 8)?;
        Ok(words(&buffer[..read]))
    }

    fn chunk(&mut self, area: &Area, vpn: u64, entries: &[u64]) -> Result<()> {
        if entries.iter().any(|entry| entry & PRESENT != 0) && entries.iter().all(|entry| entry & PFN_MASK == 0) {
            bail!("page frame numbers are hidden: this needs CAP_SYS_ADMIN; run as root, or use --source smaps");
        }
        let mut huge: Option<HugeMap> = None;
        let mut splitter = Splitter::default();
        let mut pieces: Vec<Piece> = Vec::new();
        for run in runs(vpn, entries) {
            splitter.split(run, &mut self.flags, |piece| pieces.push(piece))?;
        }
        for piece in pieces {
            let kind = Kind::of(piece.flags, area.shared);
            if kind == Kind::File && !self.files_count {
                continue;
            }
            if !self.tally.needs_mapping(&piece) {
                self.tally.add(&piece, piece.pages, kind, Mapping::Pte);
                continue;
            }
            let end = vpn + entries.len() as u64;
            let huge = match &mut huge {
                Some(known) => known,
                None => huge.insert(self.huge_map(area, Range { start: vpn * self.base, end: end * self.base })?),
            };
            let mapped = huge.pages_in(&piece, self.base);
            for (pages, mapping) in [(mapped, Mapping::Pmd), (piece.pages - mapped, Mapping::Pte)] {
                if pages > 0 {
                    self.tally.add(&piece, pages, kind, mapping);
                }
            }
        }
        Ok(())
    }

    /// What the PMD maps within `part`: exactly by PAGEMAP_SCAN, before Linux 6.7 by the sum that smaps gives.
    fn huge_map(&self, area: &Area, part: Range) -> Result<HugeMap> {
        Ok(match regions(&self.pagemap, part, CATEGORY_HUGE)? {
            Some(regions) => HugeMap::Exact(regions),
            None => HugeMap::Sum(smaps::pmd_mapped(&self.task.read("smaps")?, area.range)),
        })
    }
}

/// Where huge pages are mapped as such.
#[derive(Debug)]
enum HugeMap {
    /// Sorted, disjoint address ranges.
    Exact(Vec<Range>),
    /// So many bytes of the mapping, its folios of that size taken in order.
    Sum(u64),
}

impl HugeMap {
    /// Pages of `piece` that the PMD maps.
    fn pages_in(&mut self, piece: &Piece, base: u64) -> u64 {
        match self {
            Self::Exact(ranges) => {
                let (start, end) = (piece.vpn * base, (piece.vpn + piece.pages) * base);
                let from = ranges.partition_point(|range| range.end <= start);
                let meeting = ranges[from..].iter().take_while(|range| range.start < end);
                meeting.map(|range| range.end.min(end) - range.start.max(start)).sum::<u64>() / base
            }
            Self::Sum(left) => {
                let pages = piece.pages.min(*left / base);
                *left -= pages * base;
                pages
            }
        }
    }
}

/// /proc/kpageflags, as far ahead as is asked for: one entry of a long read costs a third of a short one.
struct PageFlags {
    file: File,
    first: u64,
    window: Vec<u64>,
    buffer: Vec<u8>,
}

impl PageFlags {
    fn open() -> Result<Self> {
        let path = "/proc/kpageflags";
        let file = File::open(path).with_context(|| {
            format!(
                "cannot open {path}: it needs root and a kernel with CONFIG_PROC_PAGE_MONITOR; else use --source smaps"
            )
        })?;
        Ok(Self { file, first: 0, window: Vec::new(), buffer: vec![0; LONGEST_LOOK as usize * 8] })
    }

    fn load(&mut self, first: u64, count: u64) -> io::Result<()> {
        let buffer = &mut self.buffer[..count as usize * 8];
        let read = self.file.read_at(buffer, first * 8)?;
        self.window = words(&buffer[..read]);
        self.first = first;
        // Beyond the last page of the machine there are no flags.
        if self.window.is_empty() {
            self.window.push(0);
        }
        Ok(())
    }
}

impl Flags for PageFlags {
    fn get(&mut self, pfn: u64, ahead: u64) -> io::Result<u64> {
        if !(self.first..self.first + self.window.len() as u64).contains(&pfn) {
            self.load(pfn, ahead.clamp(1, LONGEST_LOOK))?;
        }
        Ok(self.window.get((pfn - self.first) as usize).copied().unwrap_or(0))
    }
}

fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(|chunk| u64::from_ne_bytes(chunk.try_into().expect("chunks of 8"))).collect()
}

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

/// struct page_region of <linux/fs.h>.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

/// _IOWR('f', 16, struct pm_scan_arg), in the encoding of x86-64, arm64, riscv and s390.
const PAGEMAP_SCAN: u64 = 3 << 30 | (size_of::<ScanArgument>() as u64) << 16 | (b'f' as u64) << 8 | 16;

/// Ranges within `part` whose pages have `category`; None where the kernel lacks PAGEMAP_SCAN (before Linux 6.7).
fn regions(pagemap: &File, part: Range, category: u64) -> io::Result<Option<Vec<Range>>> {
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
            category_mask: category,
            return_mask: category,
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
        found.extend(regions[..count as usize].iter().map(|region| Range { start: region.start, end: region.end }));
        if argument.walk_end <= at {
            break;
        }
        at = argument.walk_end;
    }
    Ok(Some(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(vpn: u64, pages: u64) -> Piece {
        Piece { vpn, pages, folio: 512, aligned: true, flags: 0 }
    }

    #[test]
    fn exact_huge_maps_count_what_they_meet() {
        let range = |start: u64, end: u64| Range { start: start * 4096, end: end * 4096 };
        let mut map = HugeMap::Exact(vec![range(512, 1024), range(2048, 2560)]);
        assert_eq!(map.pages_in(&piece(512, 512), 4096), 512);
        assert_eq!(map.pages_in(&piece(600, 100), 4096), 100);
        assert_eq!(map.pages_in(&piece(1024, 512), 4096), 0);
        assert_eq!(map.pages_in(&piece(1000, 1100), 4096), 24 + 52);
        assert_eq!(map.pages_in(&piece(3000, 10), 4096), 0);
    }

    #[test]
    fn a_sum_is_used_up_in_order() {
        let mut map = HugeMap::Sum(600 * 4096);
        assert_eq!(map.pages_in(&piece(0, 512), 4096), 512);
        assert_eq!(map.pages_in(&piece(512, 512), 4096), 88);
        assert_eq!(map.pages_in(&piece(1024, 512), 4096), 0);
    }

    #[test]
    fn the_ioctl_has_the_kernels_number() {
        assert_eq!(size_of::<ScanArgument>(), 96);
        assert_eq!(PAGEMAP_SCAN, 0xc060_6610);
    }
}
