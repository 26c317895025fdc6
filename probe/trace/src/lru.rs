//! Fully associative LRU TLBs of one size of entry, for all numbers of entries at once.
//!
//! The entries of the filter's pages are the newest; the list has those below. Where an entry was taken out, the next one
//! that is added has its place, or an empty one. Empty places are never more than the entries in the filter.

use crate::recent::{Lanes, before, lanes, push};

/// The most entries.
pub const MOST: usize = 250;

pub struct Lru {
    in_filter: usize,
    lower: Vec<Lanes>,
    /// An entry that came into the filter, and is still in the list; 0: none.
    came: u32,
}

impl Lru {
    /// For TLBs of so many entries, and of fewer.
    pub fn new(entries: usize) -> Lru {
        Lru { in_filter: 0, lower: lanes(entries), came: 0 }
    }

    /// An entry comes into the filter: how many were newer. A TLB that has as many misses it.
    #[inline(always)]
    pub fn arrives(&mut self, key: u32) -> usize {
        if self.came != 0 {
            self.clear();
        }
        let newer = before(&self.lower, key);
        self.came = if newer.is_some() { key } else { 0 };
        self.in_filter += 1;
        newer.map_or(usize::MAX, |before| before + self.in_filter - 1)
    }

    /// An entry leaves the filter.
    #[inline(always)]
    pub fn leaves(&mut self, key: u32) {
        self.in_filter -= 1;
        push(&mut self.lower, key, self.came);
        self.came = 0;
    }

    #[cold]
    fn clear(&mut self) {
        for lanes in &mut self.lower {
            lanes.0.iter_mut().filter(|each| **each == self.came).for_each(|each| *each = 0);
        }
    }
}
