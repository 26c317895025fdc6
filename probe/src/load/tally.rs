//! What one lane counted in a phase.

use hdrhistogram::Histogram;

/// Latencies go up to an hour.
pub const LONGEST_NS: u64 = 3_600_000_000_000;

/// Latencies from 1 ns on with three significant digits.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_NS, 3).unwrap_or_else(|_| unreachable!("the bounds are constants"))
}

/// Operations that were completed, and how long they took.
#[derive(Debug, Clone)]
pub struct Tally {
    pub latency: Histogram<u64>,
    /// How much later than intended requests were sent: open loop only.
    pub lag: Histogram<u64>,
    pub sets: u64,
    pub hits: u64,
    pub misses: u64,
    /// Misses among gets of keys that were stored.
    pub lost: u64,
    /// Completed before the end of the time asked for.
    pub in_time: u64,
    /// Never sent: their time was over. Their age is in `latency`.
    pub unsent: u64,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    /// Completed in each whole second.
    pub per_second: Vec<u64>,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            latency: histogram(),
            lag: histogram(),
            sets: 0,
            hits: 0,
            misses: 0,
            lost: 0,
            in_time: 0,
            unsent: 0,
            bytes_sent: 0,
            bytes_received: 0,
            per_second: Vec::new(),
        }
    }
}

impl Tally {
    pub fn operations(&self) -> u64 {
        self.sets + self.hits + self.misses
    }

    /// `count` operations were completed in the second `second` of the phase.
    pub fn count_in_second(&mut self, second: usize, count: u64) {
        if self.per_second.len() <= second {
            self.per_second.resize(second + 1, 0);
        }
        self.per_second[second] += count;
    }

    /// Take another one's counts in.
    pub fn add(&mut self, other: &Self) {
        let fits = self.latency.add(&other.latency).and(self.lag.add(&other.lag));
        debug_assert!(fits.is_ok(), "all histograms have the same bounds");
        self.sets += other.sets;
        self.hits += other.hits;
        self.misses += other.misses;
        self.lost += other.lost;
        self.in_time += other.in_time;
        self.unsent += other.unsent;
        self.bytes_sent += other.bytes_sent;
        self.bytes_received += other.bytes_received;
        for (second, count) in other.per_second.iter().enumerate() {
            self.count_in_second(second, *count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_merge_is_the_sum_of_its_parts() {
        let part = |factor: u64| {
            let mut tally = Tally { sets: factor, hits: 2 * factor, misses: 1, ..Tally::default() };
            (1..=1000).for_each(|value| tally.latency.saturating_record(value * factor));
            tally.count_in_second(factor as usize, 5);
            tally
        };
        let (a, b) = (part(1), part(3));
        let mut merged = Tally::default();
        merged.add(&a);
        merged.add(&b);
        assert_eq!(merged.operations(), a.operations() + b.operations());
        assert_eq!(merged.per_second, [0, 5, 0, 5]);
        assert_eq!(merged.latency.len(), 2000);
        let mut all = histogram();
        (1..=1000).for_each(|value| all.saturating_record(value));
        (1..=1000).for_each(|value| all.saturating_record(3 * value));
        assert_eq!(merged.latency, all);
        assert_eq!(merged.latency.max(), b.latency.max());
    }
}
