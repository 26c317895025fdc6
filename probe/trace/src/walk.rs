//! A page walk, and its caches: a fully associative LRU cache for each level of the page table but the leaf's.
//!
//! A walk begins below the deepest level whose entry is cached, and enters every level's entry that it passes. One list
//! serves caches of half the entries, of all, and of twice as many: LRU contents of a smaller cache lie in a larger one's.

use crate::ask::{Configuration, Walks};
use crate::recent::{Lanes, lanes, push};

pub struct Walker {
    /// From the level above the leaf up to the root.
    levels: Vec<Level>,
    pub walks: Walks,
}

struct Level {
    shift: u32,
    /// Entries of the three caches. One that is there has at least one.
    rooms: [usize; 3],
    recent: Vec<Lanes>,
}

impl Walker {
    pub fn new(asked: &Configuration, base: u32) -> Walker {
        let levels = asked.walk.iter().zip(&asked.cached).rev();
        let level = |(&shift, &entries): (&u32, &usize)| Level {
            shift: shift - base,
            rooms: [(entries / 2).max(entries.min(1)), entries, 2 * entries],
            recent: lanes(2 * entries),
        };
        Walker { levels: levels.map(level).collect(), walks: Walks::default() }
    }

    #[inline(always)]
    pub fn walk(&mut self, page: u64) {
        self.walks.misses += 1;
        let whole = self.levels.len() + 1;
        let mut steps = [whole; 3];
        for (at, level) in self.levels.iter_mut().enumerate() {
            let key = (page >> level.shift) as u32 + 1;
            let is_newest = level.recent.first().is_some_and(|lanes| lanes.0[0] == key);
            let place = if is_newest { 0 } else { push(&mut level.recent, key, key) };
            for (steps, room) in steps.iter_mut().zip(level.rooms) {
                *steps = (*steps).min(if place < room { at + 1 } else { whole });
            }
        }
        self.walks.steps.iter_mut().zip(steps).for_each(|(sum, each)| *sum += each as u64);
    }
}
