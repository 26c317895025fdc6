//! A set-associative TLB, with LRU or random replacement in each set.

use crate::ask::Second;
use crate::recent::{LANES, Lanes, equal, lanes, push};

const SEED: u64 = 0x2545_F491_4F6C_DD1D;

pub struct Sets {
    shift: u32,
    sets: u64,
    bits: u32,
    ways: usize,
    /// The newest comes first where the oldest is replaced.
    tags: Vec<Lanes>,
    random: Option<Random>,
}

/// Marsaglia's xorshift64: the same numbers in every run.
pub struct Random(u64);

impl Random {
    pub fn new() -> Random {
        Random(SEED)
    }

    #[inline(always)]
    pub fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (((self.0 >> 32) * most as u64) >> 32) as usize
    }
}

impl Sets {
    pub fn new(asked: Second, base: u32, random: bool) -> Sets {
        Sets {
            shift: asked.shift - base,
            sets: asked.sets as u64 - 1,
            bits: asked.sets.trailing_zeros(),
            ways: asked.ways,
            tags: lanes(asked.sets * asked.ways.next_multiple_of(LANES)),
            random: random.then(Random::new),
        }
    }

    /// Look a page up, and enter it; true where it was there.
    #[inline(always)]
    pub fn hit(&mut self, page: u64) -> bool {
        self.enter(page >> self.shift)
    }

    /// The same of an entry by its key.
    #[inline(always)]
    pub fn enter(&mut self, key: u64) -> bool {
        let tag = (key >> self.bits) as u32 + 1;
        let long = self.ways.div_ceil(LANES);
        let from = (key & self.sets) as usize * long;
        let tags = &mut self.tags[from..from + long];
        let Some(random) = &mut self.random else {
            return push(tags, tag, tag) < self.ways;
        };
        let place = |key| tags.iter().rev().fold(0, |mask, lanes| mask << LANES | equal(lanes, key)).trailing_zeros();
        let hit = place(tag) < u32::BITS;
        if !hit {
            let free = place(0) as usize;
            let at = if free < self.ways { free } else { random.below(self.ways) };
            tags[at / LANES].0[at % LANES] = tag;
        }
        hit
    }
}
