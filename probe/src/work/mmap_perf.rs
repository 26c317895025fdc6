//! mmap-perf, restated from its description of January 2009 on the Linux kernel mailing list: one million pseudo-random
//! mmap, munmap and mremap calls, touching the memory with a certain chance.
//!
//! The original source is not at hand, so that absolute times do not compare with those published. Here: 1,024 slots;
//! each call draws a slot; an empty one is mapped (1 to max pages, equally likely), a full one is unmapped or resized
//! with equal chance; after a map or a resize every page of the slot is written with the touch chance. The sequence
//! depends on the seed and the options alone. It is derived once to be hashed, and again while it is timed: so it needs
//! no memory, and costs some nanoseconds a call.

use std::io;
use std::ptr;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::event::{Range, Value};
use crate::scan::sizes;
use crate::spec::Usage;
use crate::work::meter::Meter;
use crate::work::random::{Digest, SplitMix64};
use crate::work::region::touch_pages;
use crate::work::{Common, Outcome, facts, metrics, size};

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
    /// Seed of the sequence
    #[arg(long, default_value_t = 1)]
    seed: u64,
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
    max_pages: u32,
    touch_chance: f64,
    full: [bool; SLOTS],
}

impl Sequence {
    fn new(options: &Options, page: u64) -> Result<Self> {
        let max_pages = u32::try_from(options.max_bytes / page).unwrap_or(u32::MAX);
        if max_pages == 0 {
            bail!(Usage(format!("--max-bytes {} is less than a page ({page} bytes)", options.max_bytes)));
        }
        let random = SplitMix64::new(options.seed);
        Ok(Self { random, left: options.calls, max_pages, touch_chance: options.touch_chance, full: [false; SLOTS] })
    }

    fn pages(&mut self) -> u32 {
        1 + self.random.below(u64::from(self.max_pages)) as u32
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
}

fn summarise(sequence: Sequence) -> Summary {
    let mut summary = Summary::default();
    for call in sequence {
        let (code, pages) = match call.action {
            Action::Map { pages } => (0, pages),
            Action::Resize { pages } => (1, pages),
            Action::Unmap => (2, 0),
        };
        *[&mut summary.maps, &mut summary.resizes, &mut summary.unmaps][code as usize] += 1;
        summary.pages_touched += if call.touch { u64::from(pages) } else { 0 };
        summary.digest.add((call.slot as u64) << 40 | code << 38 | u64::from(call.touch) << 37 | u64::from(pages));
    }
    summary
}

/// The maps that are alive.
struct Slots {
    maps: [(*mut u8, usize); SLOTS],
    page: usize,
}

impl Slots {
    fn new(page: usize) -> Self {
        Self { maps: [(ptr::null_mut(), 0); SLOTS], page }
    }

    fn apply(&mut self, call: Call) -> io::Result<()> {
        let (place, length) = self.maps[call.slot];
        let wanted = match call.action {
            Action::Map { pages } | Action::Resize { pages } => pages as usize * self.page,
            Action::Unmap => 0,
        };
        // SAFETY: place..place+length is a mapping of our own, made by an earlier call, and nothing refers to it.
        let moved = unsafe {
            match call.action {
                Action::Map { .. } => {
                    let protection = libc::PROT_READ | libc::PROT_WRITE;
                    libc::mmap(ptr::null_mut(), wanted, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
                }
                Action::Resize { .. } => libc::mremap(place.cast(), length, wanted, libc::MREMAP_MAYMOVE),
                Action::Unmap if libc::munmap(place.cast(), length) == 0 => ptr::null_mut(),
                Action::Unmap => libc::MAP_FAILED,
            }
        };
        if moved == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        self.maps[call.slot] = (moved.cast(), wanted);
        if call.touch {
            // SAFETY: the kernel has just given us this mapping, writable.
            unsafe { touch_pages(moved.cast(), wanted, self.page) };
        }
        Ok(())
    }

    fn ranges(&self) -> Vec<Range> {
        let alive = self.maps.iter().filter(|(_, length)| *length > 0);
        alive.map(|(place, length)| Range { start: *place as u64, end: *place as u64 + *length as u64 }).collect()
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        for (place, length) in self.maps.iter().filter(|(_, length)| *length > 0) {
            // SAFETY: a live mapping of our own.
            unsafe { libc::munmap(place.cast(), *length) };
        }
    }
}

pub fn measure(options: &Options, meter: &mut Meter) -> Result<Outcome> {
    let page = sizes::base();
    let sequence = Sequence::new(options, page)?;
    let summary = summarise(sequence.clone());
    let mut slots = Box::new(Slots::new(page as usize));
    meter.lap(|| sequence.into_iter().try_for_each(|call| slots.apply(call))).context("a mapping call failed")?;
    Ok(Outcome {
        metrics: metrics([("ns_per_call", meter.wall_ns as f64 / options.calls as f64)]),
        facts: facts([
            ("calls", Value::Integer(options.calls)),
            ("sequence", Value::Text(summary.digest.hex())),
            ("maps", Value::Integer(summary.maps)),
            ("unmaps", Value::Integer(summary.unmaps)),
            ("resizes", Value::Integer(summary.resizes)),
            ("pages_touched", Value::Integer(summary.pages_touched)),
            ("max_bytes", Value::Integer(options.max_bytes)),
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
        Options { calls: 20_000, max_bytes: 256 << 10, touch_chance: 0.25, seed, common }
    }

    #[test]
    fn the_sequence_depends_on_the_seed_alone() {
        let of = |seed| summarise(Sequence::new(&options(seed), 4096).unwrap());
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
        let summary = summarise(Sequence::new(&options(4), 4096).unwrap());
        assert_eq!(summary.maps + summary.unmaps + summary.resizes, 20_000);
        assert!(summary.maps >= summary.unmaps);
    }

    #[test]
    fn live_slots_are_the_held_ranges() {
        let page = sizes::base() as usize;
        let mut slots = Slots::new(page);
        let mut pages = vec![0u64; SLOTS];
        for call in Sequence::new(&options(5), page as u64).unwrap() {
            slots.apply(call).unwrap();
            pages[call.slot] = match call.action {
                Action::Map { pages } | Action::Resize { pages } => u64::from(pages),
                Action::Unmap => 0,
            };
        }
        let held: u64 = slots.ranges().iter().map(|range| range.end - range.start).sum();
        assert_eq!(held, pages.iter().sum::<u64>() * page as u64);
    }

    #[test]
    fn chances_outside_0_and_1_are_refused() {
        assert_eq!(chance("0.5"), Ok(0.5));
        for bad in ["-0.1", "1.1", "x", "nan"] {
            assert!(chance(bad).is_err(), "{bad}");
        }
    }
}
