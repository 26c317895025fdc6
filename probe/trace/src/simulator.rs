//! All configurations of one thread, from the records of its filter.
//!
//! For each size of entry (`Grain`) the pages of the filter are a number of entries, which are the newest of every LRU
//! TLB of that size; what else the TLBs have is a list (`Lru`). A page that arrives hits where one of the filter lies in
//! the same entry, or where the list has its entry. The entry of a page that leaves goes to the list when no page of the
//! filter lies in it any more. The first differing bit of two pages says for all sizes at once whether they share one.

use std::array;
use std::mem;

use crate::ask::{Ask, Counts, Walks};
use crate::filter::{BASE, SLOT_BITS, SLOTS};
use crate::laid::{Layouts, Regions};
use crate::lru::Lru;
use crate::memory::{Memory, Page};
use crate::sets::Sets;
use crate::walk::Walker;

/// No page: it shares an entry with none, nor with another of its kind.
const EMPTY: u64 = 1 << 63;

pub struct Simulator {
    slots: [u64; SLOTS],
    pages: [Page; SLOTS],
    grains: Vec<Grain>,
    pub memory: Memory,
    pub layouts: Layouts,
    moves: Vec<Move>,
}

/// A page that arrives in the filter, one that leaves it, and the least difference of each to those that stay (0 where
/// none leaves).
#[derive(Clone, Copy)]
pub struct Move {
    pub arrives: Page,
    pub leaves: Page,
    pub arrives_by: u64,
    pub leaves_by: u64,
}

struct Grain {
    shift: u32,
    lru: Lru,
    tlbs: Vec<Tlb>,
}

/// A configuration, the batch of pages that its first level missed, and what is behind that under both policies.
struct Tlb {
    at: usize,
    entries: usize,
    misses: u64,
    missed: Vec<Page>,
    later: [Later; 2],
}

struct Later {
    second: Option<Sets>,
    walker: Walker,
}

impl Simulator {
    pub fn new(asked: &Ask, regions: Regions) -> Simulator {
        let mut grains: Vec<Grain> = Vec::new();
        for (at, each) in asked.configurations.iter().enumerate() {
            let shift = each.l1.shift - BASE;
            let later = [false, true].map(|random| Later {
                second: each.l2.map(|l2| Sets::new(l2, BASE, random)),
                walker: Walker::new(each, BASE),
            });
            let tlb = Tlb { at, entries: each.l1.entries, misses: 0, missed: Vec::new(), later };
            match grains.iter_mut().find(|grain| grain.shift == shift) {
                Some(grain) => grain.tlbs.push(tlb),
                None => grains.push(Grain { shift, lru: Lru::new(0), tlbs: vec![tlb] }),
            }
        }
        for grain in &mut grains {
            grain.lru = Lru::new(grain.tlbs.iter().map(|tlb| tlb.entries).fold(0, usize::max));
        }
        Simulator {
            slots: array::from_fn(|at| EMPTY | (at as u64) << 40),
            pages: [Page::default(); SLOTS],
            grains,
            memory: Memory::default(),
            layouts: Layouts::new(asked.laid.as_ref(), regions),
            moves: Vec::new(),
        }
    }

    /// Take records in: the same code, compiled for what this processor has.
    pub fn feed(&mut self, records: &[u64]) {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi1") && is_x86_feature_detected!("bmi2") {
            // SAFETY: the features are there.
            return unsafe { self.take_avx2(records) };
        }
        self.take(records);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2")]
    fn take_avx2(&mut self, records: &[u64]) {
        self.take(records);
    }

    /// Go on with what the TLBs hold, and count from zero.
    pub fn forget_counts(&mut self) {
        for tlb in self.grains.iter_mut().flat_map(|grain| &mut grain.tlbs) {
            tlb.misses = 0;
            tlb.later.iter_mut().for_each(|later| later.walker.walks = Walks::default());
        }
        self.memory.forget_walks();
    }

    pub fn counts(&self) -> Vec<Counts> {
        let mut tlbs: Vec<&Tlb> = self.grains.iter().flat_map(|grain| &grain.tlbs).collect();
        tlbs.sort_by_key(|tlb| tlb.at);
        let walks = |tlb: &Tlb, policy: usize| tlb.later[policy].walker.walks;
        tlbs.iter().map(|tlb| Counts { l1_misses: tlb.misses, lru: walks(tlb, 0), random: walks(tlb, 1) }).collect()
    }

    #[inline(always)]
    fn take(&mut self, records: &[u64]) {
        self.moves.clear();
        for &record in records {
            self.moved(record);
        }
        self.layouts.take(&self.moves);
        for grain in &mut self.grains {
            grain.take(&self.moves);
            for Tlb { at, missed, later: [lru, random], .. } in &mut grain.tlbs {
                for page in missed.drain(..) {
                    random.walks(page.number);
                    if lru.walks(page.number) && *at == 0 {
                        self.memory.walked(page);
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn moved(&mut self, record: u64) {
        let (number, slot) = (record >> SLOT_BITS, record as usize % SLOTS);
        let arrives = self.memory.touch(number);
        let leaves = self.slots[slot];
        let least = |slots: &[u64; SLOTS], page| slots.iter().fold(u64::MAX, |least, each| least.min(each ^ page));
        let arrives_by = least(&self.slots, number);
        self.slots[slot] = number;
        let leaves_by = if leaves & EMPTY == 0 { least(&self.slots, leaves) } else { 0 };
        let leaves = mem::replace(&mut self.pages[slot], arrives);
        self.moves.push(Move { arrives, leaves, arrives_by, leaves_by });
    }
}

impl Grain {
    #[inline(always)]
    fn take(&mut self, moves: &[Move]) {
        for each in moves {
            if each.arrives_by >> self.shift != 0 {
                let newer = self.lru.arrives(each.arrives.key(self.shift));
                for tlb in self.tlbs.iter_mut().filter(|tlb| newer >= tlb.entries) {
                    tlb.misses += 1;
                    tlb.missed.push(each.arrives);
                }
            }
            if each.leaves_by >> self.shift != 0 {
                self.lru.leaves(each.leaves.key(self.shift));
            }
        }
    }
}

impl Later {
    #[inline(always)]
    fn walks(&mut self, page: u64) -> bool {
        let walks = !self.second.as_mut().is_some_and(|second| second.hit(page));
        if walks {
            self.walker.walk(page);
        }
        walks
    }
}
