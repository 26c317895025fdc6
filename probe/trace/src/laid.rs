//! TLBs under layouts of the heap: some pages of it are huge, and an entry of the TLB is of one size or the other.
//!
//! All layouts are simulated side by side. The layout library advises the kernel of each region that it lays out, which
//! is how `Regions` knows where these begin; all other memory is base pages. As in `simulator`, the pages of the filter
//! are the newest entries, and what else a TLB has is a list.

use std::sync::{Arc, PoisonError, RwLock};

use crate::ask::{Both, Laid};
use crate::filter::BASE;
use crate::lru::Lru;
use crate::sets::Sets;
use crate::simulator::{EMPTY, Move};

/// Pages at which regions begin.
pub type Regions = Arc<RwLock<Vec<u64>>>;

/// Of the key of a huge page, which is no page's number.
const HUGE: u64 = 1 << 36;
const OUTSIDE: u64 = u64::MAX;

/// All TLBs under all layouts.
pub struct Layouts {
    regions: Regions,
    pages: u64,
    tlbs: Vec<Tlb>,
    /// Of each page that arrives and each that leaves, its place in its region.
    places: Vec<[u64; 2]>,
}

/// One TLB under one layout. Of two values the first is of base pages, the second of huge ones.
struct Tlb {
    huge: Vec<[u64; 2]>,
    shifts: [u32; 2],
    /// Where the entries are: in one list, or in one for each.
    lists: [usize; 2],
    entries: [usize; 2],
    in_filter: [usize; 2],
    lower: Vec<Lru>,
    second: Option<Sets>,
    /// As `Answer` has them.
    counts: [u64; 3],
}

impl Layouts {
    pub fn new(asked: Option<&Laid>, regions: Regions) -> Layouts {
        let tlbs = asked.map_or(vec![], |laid| {
            let pairs = laid.tlbs.iter().flat_map(|each| laid.layouts.iter().map(move |huge| (each, huge)));
            pairs.map(|(each, huge)| Tlb::new(each, huge)).collect()
        });
        Layouts { regions, pages: asked.map_or(0, |laid| laid.heap >> BASE), tlbs, places: Vec::new() }
    }

    pub fn take(&mut self, moves: &[Move]) {
        if self.tlbs.is_empty() {
            return;
        }
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        let place = |page: u64| {
            let places = regions.iter().map(|from| page.wrapping_sub(*from));
            places.fold(OUTSIDE, |place, each| if each < self.pages { each } else { place })
        };
        self.places.clear();
        self.places.extend(moves.iter().map(|each| [place(each.arrives), place(each.leaves)]));
        self.tlbs.iter_mut().for_each(|tlb| tlb.take(moves, &self.places));
    }

    /// For each TLB, of each layout.
    pub fn counts(&self) -> Vec<[u64; 3]> {
        self.tlbs.iter().map(|tlb| tlb.counts).collect()
    }
}

impl Tlb {
    fn new(asked: &Both, huge: &[[u64; 2]]) -> Tlb {
        let lists = if asked.shared { [0, 0] } else { [0, 1] };
        let entries = asked.l1.map(|l1| l1.entries);
        Tlb {
            huge: huge.iter().map(|range| range.map(|edge| edge >> BASE)).collect(),
            shifts: asked.l1.map(|l1| l1.shift - BASE),
            lists,
            entries,
            in_filter: [0; 2],
            lower: entries[..=lists[1]].iter().map(|&each| Lru::new(each + 1)).collect(),
            second: asked.l2.map(|l2| Sets::new(l2, BASE, false)),
            counts: [0; 3],
        }
    }

    fn is_huge(&self, place: u64) -> usize {
        usize::from(self.huge.iter().any(|range| (range[0]..range[1]).contains(&place)))
    }

    fn key(&self, page: u64, huge: usize) -> u64 {
        (page >> self.shifts[huge]) | (HUGE * huge as u64)
    }

    fn take(&mut self, moves: &[Move], places: &[[u64; 2]]) {
        for (each, &[arriving, leaving]) in moves.iter().zip(places) {
            let (came, left) = (self.is_huge(arriving), self.is_huge(leaving));
            if each.arrives_by >> self.shifts[came] != 0 {
                let (list, key) = (self.lists[came], self.key(each.arrives, came));
                self.in_filter[list] += 1;
                if !self.lower[list].take(key) {
                    let hit = self.second.as_mut().is_some_and(|second| second.enter(key));
                    self.counts[if hit { 1 } else { 2 * came }] += 1;
                }
            }
            if each.leaves_by >> self.shifts[left] != 0 && each.leaves & EMPTY == 0 {
                let (list, key) = (self.lists[left], self.key(each.leaves, left));
                self.in_filter[list] -= 1;
                self.lower[list].push(key);
            }
            for (list, lower) in self.lower.iter_mut().enumerate() {
                if self.in_filter[list] + lower.length > self.entries[list] {
                    lower.drop_oldest();
                }
            }
        }
    }
}
