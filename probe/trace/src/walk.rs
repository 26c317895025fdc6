//! A page walk, and its caches: a fully associative LRU cache for each level of the page table but the leaf's.
//!
//! A walk begins below the deepest level whose entry is cached, and enters every level's entry that it passes. One list
//! serves caches of half the entries, of all, and of twice as many: LRU contents of a smaller cache lie in a larger one's.

use crate::ask::{Configuration, Walks};
use crate::recent::{LANES, renew};

pub struct Walker {
    /// From the level above the leaf up to the root.
    levels: Vec<Level>,
    pub walks: Walks,
}

struct Level {
    shift: u32,
    entries: usize,
    recent: Vec<u32>,
}

impl Walker {
    pub fn new(asked: &Configuration, base: u32) -> Walker {
        let levels = asked.walk.iter().zip(&asked.cached).rev();
        let level = |(&shift, &entries): (&u32, &usize)| Level {
            shift: shift - base,
            entries,
            recent: vec![0; (2 * entries).next_multiple_of(LANES)],
        };
        Walker { levels: levels.map(level).collect(), walks: Walks::default() }
    }

    #[inline(always)]
    pub fn walk(&mut self, page: u64) {
        self.walks.misses += 1;
        let whole = self.levels.len() + 1;
        let mut steps = [whole; 3];
        for (at, level) in self.levels.iter_mut().enumerate() {
            let Some(place) = level.enter(page) else { continue };
            for (steps, room) in steps.iter_mut().zip(level.rooms()) {
                if place < room {
                    *steps = (*steps).min(at + 1);
                }
            }
        }
        self.walks.steps.iter_mut().zip(steps).for_each(|(sum, each)| *sum += each as u64);
    }
}

impl Level {
    /// A cache that is there has at least one entry.
    fn rooms(&self) -> [usize; 3] {
        [(self.entries / 2).max(self.entries.min(1)), self.entries, 2 * self.entries]
    }

    /// Make the page's entry the newest; where it was, None where it was not there.
    #[inline(always)]
    fn enter(&mut self, page: u64) -> Option<usize> {
        if self.entries == 0 {
            return None;
        }
        let key = (page >> self.shift) as u32 + 1;
        if self.recent[0] == key {
            return Some(0);
        }
        renew(&mut self.recent, 2 * self.entries, key)
    }
}
