//! All configurations of one thread, from the records of its filter.
//!
//! For each size of entry (`Grain`) the pages of the filter are a number of entries, which are the newest of every LRU
//! TLB of that size; what else a TLB has is a list (`Lru`). A page that arrives hits where one of the filter lies in the
//! same entry, or where the list has its entry. The entry of a page that leaves goes to the list when no page of the
//! filter lies in it any more. The first differing bit of two pages says for all sizes at once whether they share one.

use crate::ask::{Ask, Counts, First, Walks};
use crate::filter::{BASE, SLOT_BITS, SLOTS};
use crate::laid::{Layouts, Regions};
use crate::lru::Lru;
use crate::memory::Memory;
use crate::sets::Sets;
use crate::walk::Walker;

/// No page: it shares an entry with none, nor with another of its kind.
pub const EMPTY: u64 = 1 << 63;

pub struct Simulator {
    slots: [u64; SLOTS],
    grains: Vec<Grain>,
    seconds: Vec<[Later; 2]>,
    pub memory: Memory,
    pub layouts: Layouts,
    moves: Vec<Move>,
    feed: fn(&mut Simulator, &[u64]),
}

/// A page that arrives in the filter, one that leaves it, and the least difference of each to those that stay.
#[derive(Clone, Copy)]
pub struct Move {
    pub arrives: u64,
    pub leaves: u64,
    pub arrives_by: u64,
    pub leaves_by: u64,
}

struct Grain {
    shift: u32,
    in_filter: usize,
    firsts: Vec<Level>,
}

/// A TLB of the first level, the batch of pages that it missed, and whose it is.
struct Level {
    lower: Lru,
    entries: usize,
    misses: u64,
    missed: Vec<u64>,
    configurations: Vec<usize>,
}

/// What is behind a first level, under one replacement policy.
struct Later {
    second: Option<Sets>,
    walker: Walker,
}

impl Simulator {
    pub fn new(asked: &Ask, regions: Regions) -> Simulator {
        let mut grains: Vec<Grain> = Vec::new();
        for (at, each) in asked.configurations.iter().enumerate() {
            grain(&mut grains, each.l1).configurations.push(at);
        }
        let later = |random: bool| {
            move |each: &crate::ask::Configuration| Later {
                second: each.l2.map(|l2| Sets::new(l2, BASE, random)),
                walker: Walker::new(each, BASE),
            }
        };
        let seconds = asked.configurations.iter().map(|each| [later(false)(each), later(true)(each)]).collect();
        let slots = std::array::from_fn(|at| EMPTY | (at as u64) << 40);
        let layouts = Layouts::new(asked.laid.as_ref(), regions);
        Simulator { slots, grains, seconds, memory: Memory::default(), layouts, moves: Vec::new(), feed: feed() }
    }

    /// Take records in.
    pub fn feed(&mut self, records: &[u64]) {
        (self.feed)(self, records);
    }

    /// Go on with what the TLBs hold, and count from zero.
    pub fn forget_counts(&mut self) {
        self.grains.iter_mut().flat_map(|grain| &mut grain.firsts).for_each(|level| level.misses = 0);
        self.seconds.iter_mut().flatten().for_each(|later| later.walker.walks = Walks::default());
        self.memory.forget_walks();
    }

    pub fn counts(&self) -> Vec<Counts> {
        let mut counts = vec![Counts::default(); self.seconds.len()];
        for level in self.grains.iter().flat_map(|grain| &grain.firsts) {
            level.configurations.iter().for_each(|&at| counts[at].l1_misses = level.misses);
        }
        for (count, [lru, random]) in counts.iter_mut().zip(&self.seconds) {
            (count.lru, count.random) = (lru.walker.walks, random.walker.walks);
        }
        counts
    }

    #[inline(always)]
    fn take(&mut self, records: &[u64]) {
        self.moves.clear();
        for &record in records {
            let moved = moved(&mut self.slots, record);
            self.memory.touch(moved.arrives);
            self.moves.push(moved);
        }
        self.layouts.take(&self.moves);
        for grain in &mut self.grains {
            grain.take(&self.moves);
            for level in &grain.firsts {
                for &at in &level.configurations {
                    let [lru, random] = &mut self.seconds[at];
                    random.take(&level.missed, |_| {});
                    match at {
                        0 => lru.take(&level.missed, |page| self.memory.walked(page)),
                        _ => lru.take(&level.missed, |_| {}),
                    }
                }
            }
        }
    }
}

fn grain(grains: &mut Vec<Grain>, asked: First) -> &mut Level {
    let shift = asked.shift - BASE;
    let at = grains.iter().position(|grain| grain.shift == shift).unwrap_or_else(|| {
        grains.push(Grain { shift, in_filter: 0, firsts: Vec::new() });
        grains.len() - 1
    });
    let firsts = &mut grains[at].firsts;
    let at = firsts.iter().position(|level| level.entries == asked.entries).unwrap_or_else(|| {
        firsts.push(Level {
            lower: Lru::new(asked.entries + 1),
            entries: asked.entries,
            misses: 0,
            missed: Vec::new(),
            configurations: Vec::new(),
        });
        firsts.len() - 1
    });
    &mut firsts[at]
}

#[inline(always)]
fn moved(slots: &mut [u64; SLOTS], record: u64) -> Move {
    let (arrives, slot) = (record >> SLOT_BITS, record as usize % SLOTS);
    let leaves = slots[slot];
    let arrives_by = slots.iter().fold(u64::MAX, |least, each| least.min(each ^ arrives));
    slots[slot] = arrives;
    let leaves_by = slots.iter().fold(u64::MAX, |least, each| least.min(each ^ leaves));
    Move { arrives, leaves, arrives_by, leaves_by }
}

impl Grain {
    #[inline(always)]
    fn take(&mut self, moves: &[Move]) {
        let shift = self.shift;
        self.firsts.iter_mut().for_each(|level| level.missed.clear());
        for each in moves {
            let arrives = each.arrives_by >> shift != 0;
            let leaves = each.leaves_by >> shift != 0 && each.leaves & EMPTY == 0;
            if !arrives && !leaves {
                continue;
            }
            self.in_filter = self.in_filter + usize::from(arrives) - usize::from(leaves);
            for level in &mut self.firsts {
                if arrives && !level.lower.take(each.arrives >> shift) {
                    level.misses += 1;
                    level.missed.push(each.arrives);
                }
                if leaves {
                    level.lower.push(each.leaves >> shift);
                }
                if self.in_filter + level.lower.length > level.entries {
                    level.lower.drop_oldest();
                }
            }
        }
    }
}

impl Later {
    #[inline(always)]
    fn take(&mut self, missed: &[u64], mut walked: impl FnMut(u64)) {
        for &page in missed {
            if !self.second.as_mut().is_some_and(|second| second.hit(page)) {
                self.walker.walk(page);
                walked(page);
            }
        }
    }
}

/// The same code, compiled for what this processor has.
fn feed() -> fn(&mut Simulator, &[u64]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi1") && is_x86_feature_detected!("bmi2") {
        // SAFETY: the features are there.
        return |simulator, records| unsafe { feed_avx2(simulator, records) };
    }
    |simulator, records| simulator.take(records)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2")]
fn feed_avx2(simulator: &mut Simulator, records: &[u64]) {
    simulator.take(records);
}
