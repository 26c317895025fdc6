//! mmap-perf, restated from its description of January 2009 on the Linux kernel mailing list: one million pseudo-random
//! mmap, munmap and mremap calls, touching the memory with a certain chance.
//!
//! The original source is not at hand, so that absolute times do not compare with those published. Here: 1,024 slots;
//! each call draws a slot; an empty one is mapped (1 to max pages, equally likely), a full one is unmapped or resized
//! with equal chance; after a map or a resize every page of the slot is written with the touch chance. The sequence
//! depends on the seed and the options alone. It is derived once to be hashed, and again while it is timed: so it needs
//! no memory, and costs some nanoseconds a call.
//!
//! On hugetlb pages (`--map hugetlb:SIZE`) the sequence is the same, in the same base pages. Each map is as many whole
//! pages of the pool as it needs; what is written is the same bytes. The kernel lets no such mapping grow: mremap fails
//! with EINVAL, "because the underlying hugetlb reservation is not yet capable to handle split reservation"
//! (mm/mremap.c). So a map that must grow is mapped anew, its written bytes are copied, and the old one is unmapped:
//! what any program must do there. mremap is still called where a map shrinks, or stays within its pages.

use std::io;
use std::ptr;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::common::mistake::Mistake;
use crate::common::random::{Digest, SplitMix64};
use crate::common::size;
use crate::machine::pages;
use crate::protocol::event::{Range, Value, named};
use crate::work::meter::Meter;
use crate::work::outcome::{Common, Outcome};
use crate::work::region::{Advice, Backing, Region, mmap, touch_pages};

const SLOTS: usize = 1024;

#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Calls in the timed region
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    calls: u64,
    /// Largest map
    #[arg(long, default_value = "256k", value_parser = size::parse)]
    max_bytes: u64,
    /// Chance that a map is touched after it was made or resized, 0 to 1
    #[arg(long, default_value_t = 0.25, value_parser = chance)]
    touch_chance: f64,
    /// Maps are whole multiples of the kernel's huge page (hpage_pmd_size), so that huge pages fit into each
    #[arg(long)]
    huge_maps: bool,
    /// Seed of the sequence
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where the pages come from: anon, or hugetlb:SIZE for the pages of a pool
    #[arg(long, default_value = "anon")]
    map: Backing,
    #[command(flatten)]
    pub common: Common,
}

fn chance(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| format!("'{text}' is not a number"))?;
    if (0.0..=1.0).contains(&value) { Ok(value) } else { Err("a chance lies between 0 and 1".into()) }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Map { pages: u32 },
    Resize { pages: u32 },
    Unmap,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Call {
    slot: usize,
    action: Action,
    touch: bool,
}

/// The calls, one after the other: a pure function of seed, count, largest map and chance.
#[derive(Clone)]
struct Sequence {
    random: SplitMix64,
    left: u64,
    /// Base pages that each map is a multiple of.
    unit: u32,
    /// The largest map in units.
    most: u32,
    touch_chance: f64,
    full: [bool; SLOTS],
}

impl Sequence {
    fn new(options: &Options, page: u64) -> Result<Self> {
        let unit = if options.huge_maps { pages::pmd() } else { page };
        let most = u32::try_from(options.max_bytes / unit).unwrap_or(u32::MAX);
        if most == 0 {
            bail!(Mistake(format!("--max-bytes {} is less than a page ({unit} bytes)", options.max_bytes)));
        }
        let (random, unit) = (SplitMix64::new(options.seed), (unit / page) as u32);
        let touch_chance = options.touch_chance;
        Ok(Self { random, left: options.calls, unit, most, touch_chance, full: [false; SLOTS] })
    }

    fn pages(&mut self) -> u32 {
        self.unit * (1 + self.random.below(u64::from(self.most)) as u32)
    }
}

impl Iterator for Sequence {
    type Item = Call;

    fn next(&mut self) -> Option<Call> {
        self.left = self.left.checked_sub(1)?;
        let slot = self.random.below(SLOTS as u64) as usize;
        let action = if !self.full[slot] {
            Action::Map { pages: self.pages() }
        } else if self.random.happens(0.5) {
            Action::Unmap
        } else {
            Action::Resize { pages: self.pages() }
        };
        self.full[slot] = action != Action::Unmap;
        let touch = action != Action::Unmap && self.random.happens(self.touch_chance);
        Some(Call { slot, action, touch })
    }
}

/// What a sequence amounts to.
#[derive(Debug, Default, PartialEq, Eq)]
struct Summary {
    digest: Digest,
    maps: u64,
    unmaps: u64,
    resizes: u64,
    pages_touched: u64,
    /// Bytes mapped at a time, at most; while a map grows by a copy both of it count.
    peak_bytes: u64,
}

fn summarise(sequence: Sequence, pages: Pages) -> Summary {
    let mut summary = Summary::default();
    let (mut lengths, mut mapped) = ([0; SLOTS], 0);
    for call in sequence {
        let code = match call.action {
            Action::Map { .. } => 0,
            Action::Resize { .. } => 1,
            Action::Unmap => 2,
        };
        *[&mut summary.maps, &mut summary.resizes, &mut summary.unmaps][code as usize] += 1;
        let touched = u64::from(pages_of(call.action));
        summary.pages_touched += if call.touch { touched } else { 0 };
        let length = pages.length(pages_of(call.action));
        let copied = if pages.grows_by_copy(lengths[call.slot], length) { lengths[call.slot] } else { 0 };
        mapped = mapped + length - lengths[call.slot];
        lengths[call.slot] = length;
        summary.peak_bytes = summary.peak_bytes.max((mapped + copied) as u64);
        summary.digest.add((call.slot as u64) << 40 | code << 38 | u64::from(call.touch) << 37 | touched);
    }
    summary
}

fn pages_of(action: Action) -> u32 {
    match action {
        Action::Map { pages } | Action::Resize { pages } => pages,
        Action::Unmap => 0,
    }
}

/// The pages that maps are made of.
#[derive(Debug, Clone, Copy)]
struct Pages {
    base: usize,
    backing: Backing,
}

impl Pages {
    /// The length of a map of so many base pages.
    fn length(self, pages: u32) -> usize {
        (pages as usize * self.base).next_multiple_of(self.backing.unit(self.base as u64) as usize)
    }

    /// Whether the kernel would refuse to resize a live map so.
    fn grows_by_copy(self, old: usize, new: usize) -> bool {
        self.backing != Backing::Anon && old > 0 && new > old
    }

    fn map(self, length: usize) -> io::Result<*mut u8> {
        mmap(ptr::null_mut(), length as u64, libc::PROT_READ | libc::PROT_WRITE, self.backing.flags())
    }
}

fn unmap(place: *mut u8, length: usize) -> io::Result<()> {
    // SAFETY: the callers give a mapping of their own, to which nothing refers.
    if unsafe { libc::munmap(place.cast(), length) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A live map, or nothing (length 0). What was written lies at its start.
#[derive(Debug, Clone, Copy)]
struct Map {
    place: *mut u8,
    length: usize,
    written: usize,
}

const NOTHING: Map = Map { place: ptr::null_mut(), length: 0, written: 0 };

/// The maps that are alive.
struct Slots {
    maps: [Map; SLOTS],
    pages: Pages,
}

impl Slots {
    fn new(pages: Pages) -> Self {
        Self { maps: [NOTHING; SLOTS], pages }
    }

    fn apply(&mut self, call: Call) -> io::Result<()> {
        let map = &mut self.maps[call.slot];
        let bytes = pages_of(call.action) as usize * self.pages.base;
        let length = self.pages.length(pages_of(call.action));
        *map = match call.action {
            Action::Map { .. } => Map { place: self.pages.map(length)?, length, written: 0 },
            Action::Resize { .. } => resized(*map, length, map.written.min(bytes), self.pages)?,
            Action::Unmap => {
                unmap(map.place, map.length)?;
                NOTHING
            }
        };
        if call.touch {
            // SAFETY: the kernel has just given us this mapping, writable, of at least so many bytes.
            unsafe { touch_pages(map.place, bytes, self.pages.base) };
            map.written = bytes;
        }
        Ok(())
    }

    fn ranges(&self) -> Vec<Range> {
        let alive = self.maps.iter().filter(|map| map.length > 0);
        alive.map(|map| Range { start: map.place as u64, end: map.place as u64 + map.length as u64 }).collect()
    }
}

/// `old` at its new length, with the first `written` bytes.
fn resized(old: Map, length: usize, written: usize, pages: Pages) -> io::Result<Map> {
    if pages.grows_by_copy(old.length, length) {
        return moved_to(pages.map(length)?, length, old);
    }
    // SAFETY: the mapping is our own, and nothing refers to it.
    match unsafe { libc::mremap(old.place.cast(), old.length, length, libc::MREMAP_MAYMOVE) } {
        libc::MAP_FAILED => Err(io::Error::last_os_error()),
        place => Ok(Map { place: place.cast(), length, written }),
    }
}

/// The content of `old`, which is unmapped, at `place`, a new mapping of `length` bytes, no fewer than were written.
fn moved_to(place: *mut u8, length: usize, old: Map) -> io::Result<Map> {
    // SAFETY: both are mappings of our own, of at least so many bytes, and two mappings do not overlap.
    unsafe { ptr::copy_nonoverlapping(old.place, place, old.written) };
    unmap(old.place, old.length)?;
    Ok(Map { place, length, written: old.written })
}

impl Drop for Slots {
    fn drop(&mut self) {
        for map in self.maps.iter().filter(|map| map.length > 0) {
            let _ = unmap(map.place, map.length);
        }
    }
}

pub fn measure(options: &Options, meter: &mut Meter) -> Result<Outcome> {
    let pages = Pages { base: pages::base() as usize, backing: options.map };
    let sequence = Sequence::new(options, pages::base())?;
    let summary = summarise(sequence.clone(), pages);
    if options.map != Backing::Anon {
        // A short pool is found before the clock runs.
        drop(Region::map(summary.peak_bytes, options.map, Advice::None)?);
    }
    let mut slots = Box::new(Slots::new(pages));
    meter.lap(|| sequence.into_iter().try_for_each(|call| slots.apply(call))).context("a mapping call failed")?;
    Ok(Outcome {
        metrics: named([
            ("ns_per_call", meter.wall_ns as f64 / options.calls as f64),
            ("calls_per_s", options.calls as f64 * 1e9 / meter.wall_ns as f64),
        ]),
        facts: named([
            ("calls", Value::Integer(options.calls)),
            ("sequence", Value::Text(summary.digest.hex())),
            ("maps", Value::Integer(summary.maps)),
            ("unmaps", Value::Integer(summary.unmaps)),
            ("resizes", Value::Integer(summary.resizes)),
            ("pages_touched", Value::Integer(summary.pages_touched)),
            ("max_bytes", Value::Integer(options.max_bytes)),
            ("map", Value::Text(options.map.to_string())),
            ("peak_bytes", Value::Integer(summary.peak_bytes)),
        ]),
        ranges: slots.ranges(),
        held: slots,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(seed: u64) -> Options {
        let common = Common { no_hold: true, gate: false, counters: vec![] };
        Options {
            calls: 20_000,
            max_bytes: 256 << 10,
            touch_chance: 0.25,
            huge_maps: false,
            seed,
            map: Backing::Anon,
            common,
        }
    }

    fn summary(seed: u64, backing: Backing) -> Summary {
        summarise(Sequence::new(&options(seed), 4096).unwrap(), Pages { base: 4096, backing })
    }

    #[test]
    fn the_sequence_depends_on_the_seed_alone() {
        let of = |seed| summary(seed, Backing::Anon);
        assert_eq!(of(1), of(1));
        assert_ne!(of(1).digest, of(2).digest);
    }

    #[test]
    fn calls_fit_the_state_of_their_slots() {
        let mut pages = vec![0u32; SLOTS];
        let mut touched = 0;
        for call in Sequence::new(&options(3), 4096).unwrap() {
            let before = pages[call.slot];
            match call.action {
                Action::Map { pages: wanted } => {
                    assert_eq!(before, 0);
                    pages[call.slot] = wanted;
                }
                Action::Resize { pages: wanted } => {
                    assert_ne!(before, 0);
                    pages[call.slot] = wanted;
                }
                Action::Unmap => {
                    assert_ne!(before, 0);
                    assert!(!call.touch);
                    pages[call.slot] = 0;
                }
            }
            assert!(pages[call.slot] <= 64);
            touched += u32::from(call.touch);
        }
        assert!((2800..4000).contains(&touched), "{touched}");
    }

    #[test]
    fn the_counts_add_up() {
        let summary = summary(4, Backing::Anon);
        assert_eq!(summary.maps + summary.unmaps + summary.resizes, 20_000);
        assert!(summary.maps >= summary.unmaps);
    }

    #[test]
    fn maps_that_are_to_fit_huge_pages_are_multiples_of_them() {
        let (page, pmd) = (pages::base(), pages::pmd());
        let huge = Options { huge_maps: true, max_bytes: 4 * pmd, ..options(7) };
        let sizes: Vec<u64> = Sequence::new(&huge, page)
            .unwrap()
            .map(|call| u64::from(pages_of(call.action)) * page)
            .filter(|size| *size > 0)
            .collect();
        assert!(sizes.iter().all(|size| size.is_multiple_of(pmd) && *size <= 4 * pmd));
        assert_eq!(sizes.iter().collect::<std::collections::HashSet<_>>().len(), 4);
        let refused = Sequence::new(&Options { max_bytes: pmd - page, ..huge }, page).err().unwrap();
        assert!(refused.to_string().contains("is less than a page"), "{refused}");
    }

    #[test]
    fn live_slots_are_the_held_ranges() {
        let page = pages::base() as usize;
        let mut slots = Slots::new(Pages { base: page, backing: Backing::Anon });
        let mut pages = vec![0u64; SLOTS];
        for call in Sequence::new(&options(5), page as u64).unwrap() {
            slots.apply(call).unwrap();
            pages[call.slot] = u64::from(pages_of(call.action));
        }
        let held: u64 = slots.ranges().iter().map(|range| range.end - range.start).sum();
        assert_eq!(held, pages.iter().sum::<u64>() * page as u64);
    }

    #[test]
    fn a_pool_gets_the_same_sequence_in_whole_pages_of_its_own() {
        let (base, huge) = (summary(6, Backing::Anon), summary(6, Backing::Hugetlb(2 << 20)));
        assert_eq!(Summary { peak_bytes: 0, ..base }, Summary { peak_bytes: 0, ..huge });
        // Every map of up to 256 KiB is one page of the pool: none ever grows.
        assert!(huge.peak_bytes.is_multiple_of(2 << 20) && huge.peak_bytes <= 1024 * (2 << 20), "{}", huge.peak_bytes);
        let pages = Pages { base: 4096, backing: Backing::Hugetlb(2 << 20) };
        assert_eq!((pages.length(0), pages.length(1), pages.length(513)), (0, 2 << 20, 4 << 20));
        assert!(!pages.grows_by_copy(0, 2 << 20) && !pages.grows_by_copy(4 << 20, 2 << 20));
        assert!(pages.grows_by_copy(2 << 20, 4 << 20));
    }

    #[test]
    fn what_was_written_moves_with_a_map_that_grows() {
        let page = pages::base() as usize;
        let pages = Pages { base: page, backing: Backing::Anon };
        let old = Map { place: pages.map(page).unwrap(), length: page, written: 3 };
        // SAFETY: just mapped.
        unsafe { old.place.add(2).write(7) };
        let grown = moved_to(pages.map(2 * page).unwrap(), 2 * page, old).unwrap();
        assert_eq!((grown.length, grown.written), (2 * page, 3));
        // SAFETY: mapped until the next line.
        assert_eq!(unsafe { grown.place.add(2).read() }, 7);
        unmap(grown.place, grown.length).unwrap();
    }

    #[test]
    fn chances_outside_0_and_1_are_refused() {
        assert_eq!(chance("0.5"), Ok(0.5));
        for bad in ["-0.1", "1.1", "x", "nan"] {
            assert!(chance(bad).is_err(), "{bad}");
        }
    }
}
