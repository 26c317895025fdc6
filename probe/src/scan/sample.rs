//! Which blocks of a process are looked at where not all are: a simple random sample without replacement.
//!
//! Source: the partial shuffle of Fisher and Yates (Knuth, The Art of Computer Programming 2, 3.4.2, algorithm P).

use std::collections::HashMap;

use crate::common::random::SplitMix64;
use crate::protocol::event::Range;

/// A range of a mapping (by its place in the list) that has blocks to draw from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stretch {
    pub mapping: usize,
    pub range: Range,
}

impl Stretch {
    /// Aligned blocks of `block` bytes that it meets.
    fn blocks(&self, block: u64) -> u64 {
        self.range.end.div_ceil(block) - self.range.start / block
    }

    fn block(&self, number: u64, block: u64) -> Range {
        let start = (self.range.start / block + number) * block;
        Range { start: start.max(self.range.start), end: start.saturating_add(block).min(self.range.end) }
    }
}

/// Blocks that all stretches together have.
pub fn population(stretches: &[Stretch], block: u64) -> u64 {
    stretches.iter().map(|one| one.blocks(block)).sum()
}

/// `count` of the blocks, each set of them as likely as any other, in random order.
pub fn draw(stretches: &[Stretch], block: u64, count: u64, seed: u64) -> Vec<Stretch> {
    let mut ends = Vec::with_capacity(stretches.len());
    let mut total = 0;
    for one in stretches {
        total += one.blocks(block);
        ends.push(total);
    }
    let (mut random, mut moved) = (SplitMix64::new(seed), HashMap::new());
    (0..count.min(total))
        .map(|place| {
            let other = place + random.below(total - place);
            let drawn = moved.get(&other).copied().unwrap_or(other);
            let here = moved.get(&place).copied().unwrap_or(place);
            moved.insert(other, here);
            let at = ends.partition_point(|end| *end <= drawn);
            let first = if at == 0 { 0 } else { ends[at - 1] };
            Stretch { mapping: stretches[at].mapping, range: stretches[at].block(drawn - first, block) }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const BLOCK: u64 = 16;

    fn stretches() -> Vec<Stretch> {
        let one = |mapping, start, end| Stretch { mapping, range: Range { start, end } };
        vec![one(0, 8, 40), one(1, 48, 50), one(1, 64, 96)]
    }

    #[test]
    fn all_of_them_are_every_block_once() {
        assert_eq!(population(&stretches(), BLOCK), 3 + 1 + 2);
        for seed in 0..20 {
            let drawn = draw(&stretches(), BLOCK, 99, seed);
            let ranges: BTreeSet<(u64, u64)> = drawn.iter().map(|one| (one.range.start, one.range.end)).collect();
            let expected = [(8, 16), (16, 32), (32, 40), (48, 50), (64, 80), (80, 96)];
            assert_eq!(ranges, expected.into_iter().collect());
            assert!(drawn.iter().all(|one| (one.mapping == 0) == (one.range.start < 48)));
        }
    }

    /// Each pair of blocks comes up as often as any other: 2,000 seeds, 15 pairs, within five standard deviations.
    #[test]
    fn each_set_is_as_likely_as_another() {
        let mut counts: HashMap<BTreeSet<u64>, u32> = HashMap::new();
        for seed in 0..2000 {
            let drawn = draw(&stretches(), BLOCK, 2, seed);
            *counts.entry(drawn.iter().map(|one| one.range.start).collect()).or_default() += 1;
        }
        let (expected, deviation) = (2000.0 / 15.0, (2000.0 * 14.0 / 225.0_f64).sqrt());
        assert_eq!(counts.len(), 15);
        assert!(counts.values().all(|count| (f64::from(*count) - expected).abs() < 5.0 * deviation), "{counts:?}");
    }
}
