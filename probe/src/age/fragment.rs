//! `fragment`: have no huge page left in what is free, and keep it so.
//!
//! Block for block: a huge page is taken from the kernel, split, one base page of it is pinned (`Pins`) and the rest is
//! given back. So the peak is one batch of blocks, however much memory is free, and what stays is one page of each.
//! Then memory is compacted, which makes huge pages of what is only movable, and those are taken too. The proof that the
//! state is one of unmovable pages is that after it the kernel finds no huge page for this process either, which lets it
//! compact as long as it likes. (compact_memory by itself may end at the first large folio that it has no place for.)
//!
//! The huge pages come at the first touch, and where the settings in sysfs do not allow that, from MADV_COLLAPSE (Linux
//! 6.1), which they do not concern, and which interrupts all CPUs for each of them. Splitting is what MADV_COLD does
//! to a part of a huge page (madvise_cold_or_pageout_pte_range() in mm/madvise.c).
//!
//! Each line on stdin is the most bytes that may be left in free blocks of a huge page, and is answered by `fragmented`.
//! All is undone by the end of the process: of stdin, by its parent's death, by a signal, or by the kernel where memory
//! is short, which looks here first.

use std::fs;
use std::io::{self, BufRead};
use std::process;

use anyhow::{Context, Result, bail};
use rustix::process::{Resource, Signal, getppid, getrlimit, set_parent_process_death_signal, setrlimit};

use crate::age::free::{Free, available};
use crate::age::pins::Pins;
use crate::common::clock::now_ns;
use crate::common::size;
use crate::machine::pages::{self, MADV_COLLAPSE};
use crate::protocol::event::{Event, emit};

const BATCH: usize = 64; // blocks taken at a time: one look at all CPUs' lists each
const ROUNDS: u32 = 24; // of compaction, until nothing comes of it
const FRUITLESS: u32 = 2; // batches without a huge page, after which there is none
const ASKED: usize = 2; // huge pages that the kernel is asked for, to see that it has none
const PRESENT: u64 = 1 << 63; // in /proc/PID/pagemap
const COMPACT: &str = "/proc/sys/vm/compact_memory";

#[derive(Debug, clap::Args)]
pub struct FragmentArgs {
    /// Available memory that is left to everybody else at any time, e.g. 6g
    #[arg(long, value_parser = size::parse)]
    floor: u64,
    /// Keep the pages where compaction can move them: it then undoes everything (for the test of the proof)
    #[arg(long, hide = true)]
    movable: bool,
}

/// `hugewise-probe fragment`.
pub fn main(args: &FragmentArgs) -> Result<()> {
    let parent = getppid();
    set_parent_process_death_signal(Some(Signal::KILL)).context("cannot end with its parent")?;
    if parent != getppid() {
        bail!("its parent is gone");
    }
    fs::write("/proc/self/oom_score_adj", "1000").context("cannot become the first whom the kernel ends")?;
    allow_many_files();
    let mut held = Held { pins: Pins::default(), floor: args.floor, kept: args.movable.then(Vec::new) };
    for line in io::stdin().lock().lines() {
        let line = line.context("stdin")?;
        let target = line.trim().parse().with_context(|| format!("'{line}' is no number of bytes"))?;
        emit(&held.fragment(target)?)?;
    }
    process::exit(0) // the kernel takes everything back at once
}

/// What is held of the machine's memory.
struct Held {
    pins: Pins,
    floor: u64,
    kept: Option<Vec<Mapping>>, // pages that can be moved, instead
}

impl Held {
    /// Have at most `target` bytes of free memory in blocks that a huge page fits into, after compaction.
    fn fragment(&mut self, target: u64) -> Result<Event> {
        let (begun, base, pmd) = (now_ns(), pages::base(), pages::pmd());
        let mut rounds = 0;
        loop {
            self.take_all(base as usize, pmd as usize)?;
            fs::write(COMPACT, "1").with_context(|| COMPACT.to_owned())?;
            rounds += 1;
            let found = self.take(ASKED, base as usize, pmd as usize)?;
            let free = Free::now(base, pmd)?;
            if (found == 0 && free.huge <= target) || rounds == ROUNDS {
                return Ok(Event::Fragmented {
                    free_bytes: free.all,
                    huge_bytes: free.huge,
                    pinned: self.pins.count,
                    rounds,
                    wall_ns: now_ns() - begun,
                });
            }
        }
    }

    /// Take every free block that a huge page fits into.
    fn take_all(&mut self, base: usize, pmd: usize) -> Result<()> {
        let mut fruitless = 0;
        while fruitless < FRUITLESS {
            let huge = Free::now(base as u64, pmd as u64)?.huge as usize / pmd;
            if huge == 0 {
                break;
            }
            let blocks = huge.min(BATCH);
            enough(available(), self.floor, (blocks * (pmd + base)) as u64)?;
            fruitless = if self.take(blocks, base, pmd)? == 0 { fruitless + 1 } else { 0 };
        }
        Ok(())
    }

    /// Take so many blocks, as far as the kernel has them; returns how many there were.
    fn take(&mut self, blocks: usize, base: usize, pmd: usize) -> Result<usize> {
        let mapping = Mapping::new(blocks, pmd)?;
        mapping.advise(0, blocks * pmd, libc::MADV_HUGEPAGE);
        for number in 0..blocks {
            // SAFETY: within the mapping, which is this function's own.
            unsafe { mapping.block(number).write_volatile(1) };
        }
        // Only its first page was touched: where the last is there too, they are one. (A smaller folio ends before it.)
        let huge = |number| present(mapping.block(number).wrapping_add(pmd - base));
        if !huge(0)? {
            mapping.advise(0, blocks * pmd, MADV_COLLAPSE); // it ends at the first block that there is none for
        }
        let mut taken = 0;
        for number in 0..blocks {
            if !huge(number)? {
                continue;
            }
            if !mapping.advise(number * pmd, base, libc::MADV_COLD) {
                return Err(io::Error::last_os_error()).context("cannot split a huge page");
            }
            if self.kept.is_none() {
                // SAFETY: mapped, and not written to again.
                unsafe { self.pins.pin(mapping.block(number), base) }.context("cannot pin a page")?;
            }
            taken += 1;
        }
        if let Some(kept) = &mut self.kept {
            for number in 0..blocks {
                mapping.advise(number * pmd + base, pmd - base, libc::MADV_DONTNEED);
            }
            kept.push(mapping);
        }
        Ok(taken)
    }
}

/// That everybody else has what they are to be left while so many bytes more are held.
fn enough(left: u64, floor: u64, needed: u64) -> Result<()> {
    if left < floor + needed {
        bail!(
            "{} MiB of memory are available, and {} MiB are to be left to others: not enough to fragment it",
            left >> 20,
            floor >> 20
        );
    }
    Ok(())
}

/// Whether a page is mapped there.
fn present(address: *const u8) -> io::Result<bool> {
    use std::os::unix::fs::FileExt;
    thread_local! {
        static PAGEMAP: io::Result<fs::File> = fs::File::open("/proc/self/pagemap");
    }
    PAGEMAP.with(|file| {
        let file = file.as_ref().map_err(|error| io::Error::new(error.kind(), error.to_string()))?;
        let mut entry = [0; 8];
        file.read_exact_at(&mut entry, address as u64 / pages::base() * 8)?;
        Ok(u64::from_ne_bytes(entry) & PRESENT != 0)
    })
}

/// Memory of whole blocks, on the boundary of one; given back when it goes.
struct Mapping {
    start: *mut u8,
    length: usize,
    first: *mut u8,
    pmd: usize,
}

impl Mapping {
    fn new(blocks: usize, pmd: usize) -> io::Result<Self> {
        let length = (blocks + 1) * pmd;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, at no address of the caller's choice.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0).cast::<u8>()
        };
        if start.cast() == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { start, length, first: start.wrapping_add(start.align_offset(pmd)), pmd })
    }

    fn block(&self, number: usize) -> *mut u8 {
        self.first.wrapping_add(number * self.pmd)
    }

    /// Whether the kernel took the whole of the advice.
    fn advise(&self, offset: usize, length: usize, advice: libc::c_int) -> bool {
        // SAFETY: within this mapping, whose contents nobody needs.
        unsafe { libc::madvise(self.first.wrapping_add(offset).cast(), length, advice) == 0 }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it is this value's own.
        unsafe { libc::munmap(self.start.cast(), self.length) };
    }
}

/// A pipe for some hundred blocks: on a machine of many TiB more than a process usually may have.
fn allow_many_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit); // then opening one too many says so
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_leaves_one_pinned_page_of_each_block() {
        let mut held = Held { pins: Pins::default(), floor: 0, kept: None };
        let taken = held.take(2, pages::base() as usize, pages::pmd() as usize).unwrap();
        assert_eq!(held.pins.count, taken as u64);
        assert!(taken <= 2);
    }

    #[test]
    fn it_stops_before_others_have_too_little() {
        enough(8 << 30, 6 << 30, 2 << 30).unwrap();
        let told = enough((8 << 30) - 1, 6 << 30, 2 << 30).unwrap_err().to_string();
        assert!(told.starts_with("8191 MiB") && told.contains("6144 MiB are to be left"), "{told}");
    }
}
