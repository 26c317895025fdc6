//! Latencies by second, and the slowest operation of each tenth of one: what shows when a tail was made.
//!
//! It is bounded: when there are too many seconds, two become one. A thread has one of these for all of its lanes.

use hdrhistogram::Histogram;

use crate::load::tally::LONGEST_NS;
use crate::protocol::load::{Seconds, Stall};

/// Intervals that are kept at most: over half an hour of seconds, of 18 KiB each.
const MOST: usize = 2048;
/// The slowest operation is kept of so many parts of an interval.
const PARTS: usize = 10;
/// The worst stalls that are told.
const STALLS: usize = 10;

/// An operation that was answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Slow {
    latency_ns: u64,
    answered_ns: u64,
    instance: usize,
}

#[derive(Debug, Clone)]
pub struct BySecond {
    start_ns: u64,
    interval_ns: u64,
    latencies: Vec<Histogram<u32>>,
    slowest: Vec<Slow>,
}

/// Two significant digits: 1% at most.
fn empty() -> Histogram<u32> {
    Histogram::new_with_bounds(1, LONGEST_NS, 2).unwrap_or_else(|_| unreachable!("the bounds are constants"))
}

impl BySecond {
    pub fn new(start_ns: u64) -> Self {
        Self { start_ns, interval_ns: 1_000_000_000, latencies: Vec::new(), slowest: Vec::new() }
    }

    /// `count` operations of `instance` took `latency_ns` and were answered at `now`.
    #[inline]
    pub fn record(&mut self, now: u64, latency_ns: u64, count: u64, instance: usize) {
        let since = now.saturating_sub(self.start_ns);
        let mut place = (since / self.interval_ns) as usize;
        if place >= self.latencies.len() {
            place = self.reach(since);
        }
        self.latencies[place].saturating_record_n(latency_ns, count as u32);
        let part = (since / (self.interval_ns / PARTS as u64)) as usize;
        if latency_ns > self.slowest[part].latency_ns {
            self.slowest[part] = Slow { latency_ns, answered_ns: now, instance };
        }
    }

    /// Have room for that time; which interval is its.
    #[cold]
    fn reach(&mut self, since: u64) -> usize {
        while since / self.interval_ns >= MOST as u64 {
            self.thin();
        }
        let place = (since / self.interval_ns) as usize;
        self.latencies.resize_with((place + 1).max(self.latencies.len()), empty);
        self.slowest.resize(PARTS * self.latencies.len(), Slow::default());
        place
    }

    fn thin(&mut self) {
        let mut pairs = std::mem::take(&mut self.latencies).into_iter();
        while let Some(mut first) = pairs.next() {
            if let Some(second) = pairs.next() {
                add(&mut first, &second);
            }
            self.latencies.push(first);
        }
        let worse = |two: &[Slow]| two.iter().copied().max_by_key(|one| one.latency_ns).unwrap_or_default();
        self.slowest = self.slowest.chunks(2).map(worse).collect();
        self.slowest.resize(PARTS * self.latencies.len(), Slow::default());
        self.interval_ns *= 2;
    }

    /// Take in what another thread recorded of the same phase.
    pub fn add(&mut self, other: &Self) {
        let mut other = other.clone();
        while self.interval_ns < other.interval_ns {
            self.thin();
        }
        while other.interval_ns < self.interval_ns {
            other.thin();
        }
        let length = self.latencies.len().max(other.latencies.len());
        self.latencies.resize_with(length, empty);
        self.slowest.resize(PARTS * length, Slow::default());
        self.latencies.iter_mut().zip(&other.latencies).for_each(|(own, more)| add(own, more));
        for (own, more) in self.slowest.iter_mut().zip(&other.slowest) {
            if more.latency_ns > own.latency_ns {
                *own = *more;
            }
        }
    }

    /// Quantiles of each interval; null where nothing was answered in it.
    pub fn seconds(&self) -> Seconds {
        let of = |share: f64| {
            let quantile = |one: &Histogram<u32>| (!one.is_empty()).then(|| one.value_at_quantile(share));
            self.latencies.iter().map(quantile).collect::<Vec<Option<u64>>>()
        };
        Seconds {
            interval_ns: self.interval_ns,
            operations: self.latencies.iter().map(Histogram::len).collect(),
            p50_ns: of(0.5),
            p90_ns: of(0.9),
            p99_ns: of(0.99),
            p999_ns: of(0.999),
            max_ns: self.slowest.chunks(PARTS).map(longest).collect(),
        }
    }

    /// The slowest operations, each of a time in which none that was slower was under way.
    pub fn stalls(&self, server: impl Fn(usize) -> String) -> Vec<Stall> {
        let mut slowest: Vec<Slow> = self.slowest.iter().copied().filter(|one| one.latency_ns > 0).collect();
        slowest.sort_by_key(|one| std::cmp::Reverse(one.latency_ns));
        let mut found: Vec<Stall> = Vec::new();
        for one in slowest {
            let sent_ns = one.answered_ns.saturating_sub(one.latency_ns);
            let is_apart = |other: &Stall| one.answered_ns < other.sent_ns || other.answered_ns < sent_ns;
            if found.iter().all(is_apart) {
                found.push(Stall {
                    sent_ns,
                    answered_ns: one.answered_ns,
                    latency_ns: one.latency_ns,
                    server: server(one.instance),
                    operations: self.as_slow(sent_ns, one.answered_ns, one.latency_ns / 2),
                });
            }
            if found.len() == STALLS {
                break;
            }
        }
        found
    }

    /// Operations that took at least `least_ns` and were answered in the intervals between two times.
    fn as_slow(&self, from_ns: u64, to_ns: u64, least_ns: u64) -> u64 {
        let place = |t_ns: u64| (t_ns.saturating_sub(self.start_ns) / self.interval_ns) as usize;
        let (first, last) = (place(from_ns), place(to_ns));
        let of = |one: &Histogram<u32>| -> u64 {
            one.iter_recorded()
                .filter(|value| value.value_iterated_to() >= least_ns)
                .map(|value| u64::from(value.count_at_value()))
                .sum()
        };
        self.latencies.iter().skip(first).take(last + 1 - first).map(of).sum()
    }
}

/// The longest latency; None where nothing was answered.
fn longest(parts: &[Slow]) -> Option<u64> {
    parts.iter().map(|one| one.latency_ns).max().filter(|latency| *latency > 0)
}

fn add(own: &mut Histogram<u32>, more: &Histogram<u32>) {
    let fits = own.add(more);
    debug_assert!(fits.is_ok(), "all histograms have the same bounds");
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_stall_is_where_it_was_and_is_told_once() {
        let mut found = BySecond::new(SECOND);
        for step in 0..5000u64 {
            // An answer each millisecond, from 1 s on; from 3 s to 3.2 s none comes, and then 200 at once.
            let now = SECOND + step * 1_000_000;
            match now {
                now if now == 3 * SECOND + 200_000_000 => {
                    (0..200u64).for_each(|late| found.record(now, late * 1_000_000, 1, 1));
                }
                now if !(3 * SECOND..3 * SECOND + 200_000_000).contains(&now) => found.record(now, 50_000, 1, 0),
                _ => {}
            }
        }
        let stalls = found.stalls(|instance| format!("server {instance}"));
        let worst = &stalls[0];
        assert_eq!((worst.latency_ns, worst.sent_ns), (199_000_000, 3 * SECOND + 1_000_000));
        assert_eq!((worst.server.as_str(), worst.answered_ns), ("server 1", 3 * SECOND + 200_000_000));
        // Those that waited for half of that time or longer: 99 ms is in the same step of two digits as 99.5 ms.
        assert!((100..=101).contains(&worst.operations), "{}", worst.operations);
        assert!(stalls[1..].iter().all(|one| one.latency_ns == 50_000), "{stalls:?}");
        let seconds = found.seconds();
        assert_eq!((seconds.interval_ns, seconds.operations.len()), (SECOND, 5));
        assert_eq!(seconds.max_ns[2], Some(199_000_000));
        assert!(seconds.p99_ns[2].unwrap() > 150_000_000 && seconds.p99_ns[1].unwrap() < 51_000);
    }

    #[test]
    fn threads_are_summed_and_a_long_phase_keeps_all_of_its_time() {
        let (mut long, mut short) = (BySecond::new(0), BySecond::new(0));
        for second in 0..3 * MOST as u64 {
            long.record(second * SECOND, 1000 + second, 2, 0);
        }
        short.record(5 * SECOND, 777_777, 3, 4);
        short.add(&long);
        let seconds = short.seconds();
        assert_eq!(seconds.interval_ns, 4 * SECOND);
        assert_eq!(seconds.operations.iter().sum::<u64>(), 6 * MOST as u64 + 3);
        assert_eq!((seconds.operations[0], seconds.operations[1]), (8, 11));
        assert_eq!(short.stalls(|instance| instance.to_string())[0].server, "4");
        assert_eq!(seconds.max_ns[1], Some(777_777));
    }

    #[test]
    fn a_second_without_an_answer_has_no_quantile() {
        let mut found = BySecond::new(0);
        found.record(2 * SECOND, 5, 1, 0);
        let seconds = found.seconds();
        assert_eq!((seconds.operations, seconds.p99_ns), (vec![0, 0, 1], vec![None, None, Some(5)]));
        assert_eq!(seconds.max_ns, [None, None, Some(5)]);
    }
}
