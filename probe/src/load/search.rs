//! The highest rate within a limit, by bisection.

use anyhow::Result;

use crate::load::options::Sla;
use crate::protocol::load::{Search, Step, Timed};

/// How far above the closed loop's throughput the search looks, where that passes: so many steps of a quarter more.
const RISES: usize = 4;

/// One probe of a rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Probe {
    pub p99_ns: u64,
    pub achieved: f64,
    pub rate_met: bool,
}

/// Search the highest rate. `probe` measures one; `capacity` is where to begin.
pub fn search(
    sla: Sla,
    capacity: f64,
    repeats: u32,
    resolution: f64,
    mut probe: impl FnMut(f64) -> Result<Probe>,
) -> Result<Search> {
    let mut steps = Vec::new();
    let mut passes = |rate: f64| -> Result<bool> {
        let step = judge(sla, rate, repeats, &mut probe)?;
        let passed = step.passed;
        steps.push(step);
        Ok(passed)
    };
    let (mut low, mut high) = (0.0, None);
    let mut rate = capacity;
    for _ in 0..=RISES {
        if passes(rate)? {
            low = rate;
            rate *= 1.25;
        } else {
            high = Some(rate);
            break;
        }
    }
    if let Some(mut failing) = high {
        while failing - low > resolution * capacity {
            let middle = (low + failing) / 2.0;
            if passes(middle)? {
                low = middle;
            } else {
                failing = middle;
            }
        }
        high = Some(failing);
    }
    Ok(Search { limit_ns: sla.limit_ns, capacity, rate: (low > 0.0).then_some(low), failed: high, steps })
}

/// Probe one rate until most of the repeats agree.
fn judge(sla: Sla, rate: f64, repeats: u32, probe: &mut impl FnMut(f64) -> Result<Probe>) -> Result<Step> {
    let mut step = Step { rate, p99_ns: Vec::new(), achieved: Vec::new(), passed: false };
    let (mut good, mut bad) = (0, 0);
    while 2 * good <= repeats && 2 * bad < repeats {
        let found = probe(rate)?;
        step.p99_ns.push(found.p99_ns);
        step.achieved.push(found.achieved);
        if found.rate_met && found.p99_ns <= sla.limit_ns {
            good += 1;
        } else {
            bad += 1;
        }
    }
    step.passed = 2 * good > repeats;
    Ok(step)
}

/// A probe from a timed phase in an open loop.
pub fn probed(timed: &Timed) -> Probe {
    Probe {
        p99_ns: timed.worst.as_ref().map_or(u64::MAX, |worst| worst.p99_ns),
        achieved: timed.achieved_rate,
        rate_met: timed.rate_met == Some(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Sla = Sla { limit_ns: 1_000_000 };

    /// A server whose p99 is 0.1 ms and grows without bound towards `limit`.
    fn queue(limit: f64) -> impl FnMut(f64) -> Result<Probe> {
        move |rate| {
            let p99_ns = if rate < limit { (1e5 / (1.0 - rate / limit)) as u64 } else { 1 << 40 };
            Ok(Probe { p99_ns, achieved: rate.min(limit), rate_met: rate < limit })
        }
    }

    #[test]
    fn the_bisection_brackets_the_highest_rate() {
        // 0.1 ms / (1 - rate / 1000) is 1 ms at 900.
        for capacity in [950.0, 2000.0, 700.0] {
            let found = search(LIMIT, capacity, 3, 0.01, queue(1000.0)).unwrap();
            let (low, high) = (found.rate.unwrap(), found.failed.unwrap());
            assert!(low <= 900.0 && 900.0 < high && high - low <= 0.01 * capacity, "{low} {high}");
            assert!(found.steps.iter().all(|step| step.passed == (step.rate <= 900.0)));
        }
    }

    #[test]
    fn what_never_passes_and_what_never_fails_is_said() {
        let found = search(LIMIT, 100.0, 1, 0.1, |_| Ok(Probe { p99_ns: 2_000_000, achieved: 1.0, rate_met: true }));
        assert_eq!(found.unwrap().rate, None);
        let found =
            search(LIMIT, 100.0, 1, 0.1, |rate| Ok(Probe { p99_ns: 1, achieved: rate, rate_met: true })).unwrap();
        assert_eq!((found.failed, found.steps.len()), (None, 5));
        assert!(found.rate.unwrap() > 200.0);
    }

    #[test]
    fn the_majority_decides_and_ends_the_probing() {
        let mut answers = [false, true, true].into_iter();
        let mut probe = |rate| {
            let rate_met = answers.next().unwrap();
            Ok(Probe { p99_ns: 5, achieved: rate, rate_met })
        };
        let step = judge(LIMIT, 10.0, 3, &mut probe).unwrap();
        assert!(step.passed && step.p99_ns.len() == 3);
        let mut calls = 0;
        let mut probe = |rate| {
            calls += 1;
            Ok(Probe { p99_ns: 5, achieved: rate, rate_met: false })
        };
        assert!(!judge(LIMIT, 10.0, 3, &mut probe).unwrap().passed);
        assert_eq!(calls, 2);
    }
}
