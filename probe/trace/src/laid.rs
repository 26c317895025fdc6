//! TLBs under layouts of the heap: some pages of it are huge, and an entry of the TLB is of one size or the other.
//!
//! All layouts are simulated side by side. The layout library advises the kernel of each region that it lays out, which
//! is how `Regions` knows where these begin; all other memory is base pages.

use std::sync::{Arc, PoisonError, RwLock};

use crate::ask::{Both, Laid};
use crate::filter::BASE;
use crate::lru::Lru;
use crate::memory::Page;
use crate::sets::Sets;
use crate::simulator::Move;

/// Pages at which regions begin.
pub type Regions = Arc<RwLock<Vec<u64>>>;

/// Of the key of a huge page, which is no base page's: in the first level, and in the second.
const HUGE: (u32, u64) = (1 << 31, 1 << 36);
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
    asked: Both,
    huge: Vec<[u64; 2]>,
    first: Vec<Lru>,
    second: Vec<Option<Sets>>,
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

    #[inline(always)]
    pub fn take(&mut self, moves: &[Move]) {
        if self.tlbs.is_empty() {
            return;
        }
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        let place = |page: Page| {
            let places = regions.iter().map(|from| page.number.wrapping_sub(*from));
            places.fold(OUTSIDE, |place, each| if each < self.pages { each } else { place })
        };
        self.places.clear();
        self.places.extend(moves.iter().map(|each| [place(each.arrives), place(each.leaves)]));
        for tlb in &mut self.tlbs {
            tlb.take(moves, &self.places);
        }
    }

    /// For each TLB, of each layout.
    pub fn counts(&self) -> Vec<[u64; 3]> {
        self.tlbs.iter().map(|tlb| tlb.counts).collect()
    }
}

impl Tlb {
    fn new(asked: &Both, huge: &[[u64; 2]]) -> Tlb {
        let firsts = if asked.l1[0].entries == asked.l1[1].entries { 1 } else { 2 };
        let [base, large] = asked.l2.map(|l2| l2.map(|l2| (l2.sets, l2.ways)));
        let seconds = if base == large { 1 } else { 2 };
        Tlb {
            asked: asked.clone(),
            huge: huge.iter().map(|range| range.map(|edge| edge >> BASE)).collect(),
            first: asked.l1[..firsts].iter().map(|l1| Lru::new(l1.entries)).collect(),
            second: asked.l2[..seconds].iter().map(|l2| l2.map(|l2| Sets::new(l2, BASE, false))).collect(),
            counts: [0; 3],
        }
    }

    fn is_huge(&self, place: u64) -> usize {
        usize::from(self.huge.iter().any(|range| (range[0]..range[1]).contains(&place)))
    }

    #[inline(always)]
    fn take(&mut self, moves: &[Move], places: &[[u64; 2]]) {
        let shifts = self.asked.l1.map(|l1| l1.shift - BASE);
        let key = |page: Page, huge: usize| page.key(shifts[huge]) | (HUGE.0 * huge as u32);
        for (each, &[arriving, leaving]) in moves.iter().zip(places) {
            let (came, left) = (self.is_huge(arriving), self.is_huge(leaving));
            if each.arrives_by >> shifts[came] != 0 {
                let list = came % self.first.len();
                if self.first[list].arrives(key(each.arrives, came)) >= self.asked.l1[list].entries {
                    let list = came % self.second.len();
                    let hit = self.asked.l2[came].zip(self.second[list].as_mut()).is_some_and(|(l2, second)| {
                        second.enter((each.arrives.number >> (l2.shift - BASE)) | (HUGE.1 * came as u64))
                    });
                    self.counts[if hit { 1 } else { 2 * came }] += 1;
                }
            }
            if each.leaves_by >> shifts[left] != 0 {
                let list = left % self.first.len();
                self.first[list].leaves(key(each.leaves, left));
            }
        }
    }
}
