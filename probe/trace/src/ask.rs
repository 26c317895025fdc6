//! What is asked, and what is answered: one JSON document each.

use serde::{Deserialize, Serialize};

use crate::filter::{BASE, SLOTS};
use crate::lru::MOST;

/// The configurations to simulate, and the sizes of pages to count memory in.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ask {
    pub configurations: Vec<Configuration>,
    /// Sizes as powers of two, from 16 (64 KiB).
    pub sizes: Vec<u32>,
    #[serde(default)]
    pub laid: Option<Laid>,
}

/// Layouts of the program's heap, to simulate side by side.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Laid {
    /// Bytes of a region of the heap.
    pub heap: u64,
    /// Of each layout the ranges of a region that are huge pages, in bytes.
    pub layouts: Vec<Vec<[u64; 2]>>,
    pub tlbs: Vec<Both>,
}

/// A TLB for base pages and huge pages. A level with as many entries for both has one list of them (AMD, Arm), else each
/// has its own (Intel).
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Both {
    /// The first level for base pages, and for huge pages.
    pub l1: [First; 2],
    pub l2: [Option<Second>; 2],
}

/// One TLB for data accesses: two levels of it, and the page walk.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Configuration {
    pub l1: First,
    pub l2: Option<Second>,
    /// What an entry of each level of the page table covers, as powers of two, from the root to the leaf.
    pub walk: Vec<u32>,
    /// Entries of the page-walk cache for each level but the leaf's.
    pub cached: Vec<usize>,
}

/// A fully associative LRU TLB of the first level; `shift`: the power of two that an entry covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct First {
    pub shift: u32,
    pub entries: usize,
}

/// A set-associative TLB of the second level.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Second {
    pub shift: u32,
    pub sets: usize,
    pub ways: usize,
}

impl Ask {
    /// Why it cannot be simulated.
    pub fn fault(&self) -> Option<&'static str> {
        let is_shift = |shift: u32| (BASE..48).contains(&shift);
        let is_first = |l1: First| is_shift(l1.shift) && (SLOTS..=MOST).contains(&l1.entries);
        let is_second = |l2: Second| {
            let sets = l2.sets.is_power_of_two() && (64..=1 << 16).contains(&l2.sets);
            is_shift(l2.shift) && sets && (1..=32).contains(&l2.ways)
        };
        let is_walk = |each: &Configuration| {
            let falling = each.walk.windows(2).all(|pair| pair[0] > pair[1]);
            let walked = (1..=6).contains(&each.walk.len()) && falling && each.walk.iter().copied().all(is_shift);
            walked && each.cached.len() + 1 == each.walk.len() && each.cached.iter().all(|&each| each <= 4096)
        };
        let both = || self.laid.iter().flat_map(|laid| &laid.tlbs);
        let mut firsts = self.configurations.iter().map(|each| each.l1).chain(both().flat_map(|each| each.l1));
        let mut seconds =
            self.configurations.iter().map(|each| each.l2).chain(both().flat_map(|each| each.l2)).flatten();
        let faults = [
            (self.sizes.iter().all(|size| (16..48).contains(size)), "a size is from 2^16 to 2^47 bytes"),
            (firsts.all(is_first), "the first level has 16 to 250 entries"),
            (seconds.all(is_second), "the second level has 64 to 65536 sets, a power of two, of 1 to 32 ways"),
            (self.configurations.iter().all(is_walk), "a walk has 1 to 6 levels, and a cache for each but the leaf's"),
        ];
        faults.into_iter().find_map(|(good, fault)| (!good).then_some(fault))
    }
}

/// The answer; counts are sums over the threads.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct Answer {
    pub version: u32,
    pub target: String,
    pub instructions: u64,
    pub accesses: u64,
    /// Accesses that the filter passed on.
    pub records: u64,
    pub threads: u64,
    /// Threads beyond those that can be traced.
    pub untraced: u64,
    pub forks: u64,
    /// The program replaced itself by another: nothing was counted of that.
    pub replaced: bool,
    /// Pages of 4 KiB that were touched at any time.
    pub touched: u64,
    pub sizes: Vec<Size>,
    pub configurations: Vec<Counts>,
    /// Regions of the heap that were seen.
    pub regions: usize,
    /// For each TLB of `Laid`, and each layout: misses of base pages, hits in the second level, misses of huge pages.
    pub laid: Vec<[u64; 3]>,
}

/// Memory in pages of one size.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct Size {
    pub shift: u32,
    /// Pages of this size with at least one access.
    pub touched: u64,
    /// The least number of these pages that has 90% of the walks of the first configuration; None without walks.
    pub needed: Option<u64>,
}

/// Misses and walk steps of one configuration.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
pub struct Counts {
    pub l1_misses: u64,
    pub lru: Walks,
    pub random: Walks,
}

/// Walks under one replacement policy of the second level.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Walks {
    pub misses: u64,
    /// With page-walk caches of half the entries, of as many as said, and of twice as many.
    pub steps: [u64; 3],
}

impl Counts {
    pub fn add(&mut self, other: &Counts) {
        self.l1_misses += other.l1_misses;
        for (mine, its) in [(&mut self.lru, other.lru), (&mut self.random, other.random)] {
            mine.misses += its.misses;
            mine.steps.iter_mut().zip(its.steps).for_each(|(sum, each)| *sum += each);
        }
    }
}
