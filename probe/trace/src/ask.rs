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
    pub fn fault(&self) -> Option<String> {
        let sizes = self.sizes.iter().find(|size| !(16..48).contains(*size));
        let laid = || Some(format!("a layout: {}", self.laid.as_ref()?.tlbs.iter().find_map(Both::fault)?));
        sizes.map(|size| format!("a size of 2^{size} bytes")).or_else(laid).or_else(|| {
            self.configurations.iter().enumerate().find_map(|(at, each)| Some(format!("{at}: {}", each.fault()?)))
        })
    }
}

impl Both {
    fn fault(&self) -> Option<&'static str> {
        self.l1.iter().find_map(First::fault).or_else(|| self.l2.iter().flatten().find_map(Second::fault))
    }
}

fn is_shift(shift: u32) -> bool {
    (BASE..48).contains(&shift)
}

impl First {
    fn fault(&self) -> Option<&'static str> {
        let good = is_shift(self.shift) && (SLOTS..=MOST).contains(&self.entries);
        (!good).then_some("the first level has 16 to 250 entries")
    }
}

impl Second {
    fn fault(&self) -> Option<&'static str> {
        let sets = self.sets.is_power_of_two() && (64..=1 << 16).contains(&self.sets);
        let good = is_shift(self.shift) && sets && (1..=32).contains(&self.ways);
        (!good).then_some("the second level has 64 to 65536 sets, a power of two, of 1 to 32 ways")
    }
}

impl Configuration {
    fn fault(&self) -> Option<&'static str> {
        if let Some(fault) = self.l1.fault().or_else(|| self.l2?.fault()) {
            return Some(fault);
        }
        let falling = self.walk.windows(2).all(|pair| pair[0] > pair[1]);
        let walked = (1..=6).contains(&self.walk.len()) && falling && self.walk.iter().all(|&each| is_shift(each));
        let cached = self.cached.len() + 1 == self.walk.len() && self.cached.iter().all(|&each| each <= 4096);
        (!walked || !cached).then_some("a walk has 1 to 6 levels, and a cache for each but the leaf's")
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
