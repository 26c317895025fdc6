//! Touch memory once and give it back: a guest's memory that was never used costs many times more at its first touch,
//! because the host must find it first.

use std::num::NonZero;
use std::thread;

use anyhow::{Result, bail};
use clap::Args;

use crate::common::clock::now_ns;
use crate::common::size;
use crate::machine::pages::{self, MADV_COLLAPSE};
use crate::protocol::event::{Event, emit};
use crate::work::region::{Advice, Backing, Region, touch_pages};

#[derive(Debug, Clone, Args)]
pub struct TouchArgs {
    /// Memory to touch, e.g. 1g
    #[arg(long, value_parser = size::parse)]
    bytes: u64,
    /// Where it comes from: anon, or hugetlb:SIZE for the pages of a pool
    #[arg(long, default_value = "anon")]
    map: Backing,
    /// In huge pages of the PMD size, whatever the page settings are: by advice, else by MADV_COLLAPSE (Linux 6.1)
    #[arg(long)]
    huge: bool,
}

/// `hugewise-probe touch`.
pub fn main(args: TouchArgs) -> Result<()> {
    emit(&touch(args.bytes, args.map, args.huge)?)?;
    Ok(())
}

fn touch(bytes: u64, map: Backing, huge: bool) -> Result<Event> {
    let available = available_memory(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default());
    if let Some(available) = available.filter(|available| map == Backing::Anon && bytes > *available) {
        bail!("--bytes {bytes} is more than the {available} bytes of memory that are available now");
    }
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let start = now_ns();
    let region = Region::map(bytes, map, if huge { Advice::Huge } else { Advice::None })?;
    let pmd = pages::pmd() as usize;
    let blocks_ns = thread::scope(|scope| {
        let touching: Vec<_> = parts(region.bytes(), threads, pmd)
            .into_iter()
            .map(|(offset, length)| {
                // Raw pointers do not cross threads; an address does, and the region outlives the scope.
                let place = region.start() as usize + offset;
                // SAFETY: the parts are disjoint and lie within the region.
                scope.spawn(move || unsafe { touch_part(place, length, pmd, huge) })
            })
            .collect();
        touching.into_iter().flat_map(|each| each.join().unwrap_or_default()).collect()
    });
    drop(region);
    Ok(Event::Touched { bytes, wall_ns: now_ns() - start, blocks_ns })
}

/// Touch the part block by block; the time of each block in nanoseconds.
///
/// # Safety
/// `place..place + length` must be mapped writable.
unsafe fn touch_part(place: usize, length: usize, pmd: usize, huge: bool) -> Vec<u64> {
    let mut taken = Vec::with_capacity(length.div_ceil(pmd));
    for offset in (0..length).step_by(pmd) {
        let (block, size, start) = ((place + offset) as *mut u8, pmd.min(length - offset), now_ns());
        // SAFETY: the block lies within the part. This advice changes no content; where it is refused, pages stay small.
        unsafe {
            touch_pages(block, size, pages::base() as usize);
            if huge && size == pmd {
                libc::madvise(block.cast(), size, MADV_COLLAPSE);
            }
        }
        taken.push(now_ns() - start);
    }
    taken
}

/// Cut `bytes` into at most `count` parts (offset, length), on boundaries of `unit`, so that threads share no huge page.
fn parts(bytes: usize, count: usize, unit: usize) -> Vec<(usize, usize)> {
    let length = bytes.div_ceil(count).next_multiple_of(unit);
    (0..bytes).step_by(length).map(|offset| (offset, length.min(bytes - offset))).collect()
}

/// MemAvailable in bytes.
fn available_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kilobytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kilobytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_everything_once() {
        for (bytes, count) in [(1, 4), (4096, 1), (10 << 20, 3), ((1 << 30) + 5, 7), (2 << 20, 64)] {
            let parts = parts(bytes, count, 2 << 20);
            assert!(parts.len() <= count);
            let mut at = 0;
            for (offset, length) in parts {
                assert_eq!(offset, at);
                assert_eq!(offset % (2 << 20), 0);
                at += length;
            }
            assert_eq!(at, bytes);
        }
    }

    #[test]
    fn available_memory_is_read() {
        assert_eq!(available_memory("MemTotal: 5 kB\nMemAvailable:   12 kB\n"), Some(12 << 10));
        assert_eq!(available_memory("MemTotal: 5 kB\n"), None);
    }

    #[test]
    fn memory_is_touched_and_released() {
        for huge in [false, true] {
            let touched = touch(3 * pages::pmd() / 2, Backing::Anon, huge).unwrap();
            let Event::Touched { bytes, wall_ns, blocks_ns } = touched else { panic!("another event") };
            assert_eq!(bytes, 3 * pages::pmd() / 2);
            assert!(wall_ns > 0);
            assert_eq!(blocks_ns.len(), 2);
        }
        assert!(touch(1 << 50, Backing::Anon, false).unwrap_err().to_string().contains("available"));
        assert!(touch(0, Backing::Anon, false).is_err());
    }
}
