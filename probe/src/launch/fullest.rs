//! The fullest look at each process of an untimed twin: many programs give their memory back before they leave (an
//! encoder that closes its buffers), so that what is left at the exit stop is no proof of what was used.
//!
//! Every some milliseconds the living processes are asked how much they have resident, and one that has grown is looked
//! at while it runs. At its exit the fuller of the two looks stands for it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::process::change::Pid;
use crate::protocol::event::{Event, Source};
use crate::scan::scan_process;

const EVERY: Duration = Duration::from_millis(20);

/// How much a process must have grown since it was last looked at, so that looking costs a bounded part of the run.
const GROWTH: f64 = 1.1;

/// Below this nobody looks before the exit: a program's own data and libraries.
const WORTH_LOOKING: u64 = 4 << 20;

struct Look {
    resident: u64,
    coverage: Option<Event>,
}

/// What was seen of each living process.
pub struct Fullest {
    source: Source,
    due: Instant,
    looks: BTreeMap<Pid, Look>,
}

impl Fullest {
    pub fn new(source: Source) -> Fullest {
        Fullest { source, due: Instant::now() + EVERY, looks: BTreeMap::new() }
    }

    /// When to look around again.
    pub fn due(&self) -> Instant {
        self.due
    }

    /// Look at those of `living` (process and a thread of it) that have grown. One that changes or leaves meanwhile is
    /// left for the next time, or for its exit.
    pub fn look_around(&mut self, living: &[(Pid, Pid)]) {
        for &(pid, task) in living {
            let Some(resident) = resident(pid, task) else { continue };
            if !self.has_grown(pid, resident) {
                continue;
            }
            let Ok(seen) = scan_process(pid as u32, task as u32, None, self.source) else { continue };
            let kept = self.looks.remove(&pid).and_then(|look| look.coverage);
            let fuller = kept.into_iter().fold(seen, fuller);
            self.looks.insert(pid, Look { resident, coverage: Some(fuller) });
        }
        self.due = Instant::now() + EVERY;
    }

    fn has_grown(&self, pid: Pid, resident: u64) -> bool {
        let before = self.looks.get(&pid).map_or(WORTH_LOOKING, |look| look.resident);
        resident as f64 > before as f64 * GROWTH
    }

    /// The process leaves, and `at_exit` is what it still has: the fuller of this and what was seen before.
    pub fn leave(&mut self, pid: Pid, at_exit: Event) -> Event {
        self.looks.remove(&pid).and_then(|look| look.coverage).into_iter().fold(at_exit, fuller)
    }
}

/// The one of two looks that saw more memory.
fn fuller(one: Event, other: Event) -> Event {
    if bytes(&other) > bytes(&one) { other } else { one }
}

fn bytes(event: &Event) -> u64 {
    if let Event::Coverage { bytes, .. } = event { bytes.values().sum() } else { 0 }
}

/// Bytes of anonymous, shared and hugetlb memory that a process has resident; None when it has left.
fn resident(pid: Pid, task: Pid) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/task/{task}/status")).ok()?;
    let kib = |name: &str| {
        let value = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("0 kB");
        value.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0)
    };
    Some(["RssAnon:", "RssShmem:", "HugetlbPages:"].into_iter().map(kib).sum::<u64>() * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn coverage(bytes: u64) -> Event {
        Event::Coverage {
            pid: 1,
            command: "x".into(),
            named: false,
            source: Source::Smaps,
            bytes: BTreeMap::from([("anon:4096".to_string(), bytes)]),
            thp_disabled: None,
            scan_ns: 0,
        }
    }

    #[test]
    fn the_fuller_look_stands_for_a_process() {
        let mut fullest = Fullest::new(Source::Smaps);
        fullest.looks.insert(7, Look { resident: 9, coverage: Some(coverage(9)) });
        assert_eq!(bytes(&fullest.leave(7, coverage(2))), 9);
        assert_eq!(bytes(&fullest.leave(7, coverage(2))), 2, "its number may be another process's by then");
        fullest.looks.insert(7, Look { resident: 9, coverage: Some(coverage(9)) });
        assert_eq!(bytes(&fullest.leave(7, coverage(12))), 12);
    }

    #[test]
    fn a_process_is_looked_at_again_only_when_it_has_grown() {
        let mut fullest = Fullest::new(Source::Smaps);
        assert!(!fullest.has_grown(7, 4 << 20) && fullest.has_grown(7, 5 << 20));
        fullest.looks.insert(7, Look { resident: 20 << 20, coverage: None });
        assert!(!fullest.has_grown(7, 22 << 20) && fullest.has_grown(7, 23 << 20));
    }

    #[test]
    fn a_process_that_is_there_is_looked_at() {
        let own = std::process::id() as Pid;
        let block = std::hint::black_box(vec![1u8; 16 << 20]);
        let mut fullest = Fullest::new(Source::Smaps);
        fullest.look_around(&[(own, own), (Pid::MAX, Pid::MAX)]);
        assert!(fullest.looks[&own].resident > 16 << 20 && fullest.looks.len() == 1);
        assert!(bytes(fullest.looks[&own].coverage.as_ref().unwrap()) > 16 << 20);
        drop(block);
    }
}
