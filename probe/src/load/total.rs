//! What the threads counted, summed over instances, threads, and phases that belong together.

use std::ops::Range;

use crate::common::random::Digest;
use crate::load::fleet::Done;
use crate::load::order::Part;
use crate::load::seconds::BySecond;
use crate::load::tally::Tally;

/// Sums over one phase, or over several of the same servers.
pub struct Total {
    /// Which of the servers.
    pub servers: Range<usize>,
    pub wall_ns: u64,
    /// When the phase began, and its seconds; those of several phases do not follow each other.
    pub start_ns: Option<u64>,
    pub seconds: Option<BySecond>,
    /// In the order of `servers`.
    pub instances: Vec<Tally>,
    pub threads: Vec<Worked>,
    /// Of all sequences; None where one of them has none.
    pub digest: Option<Digest>,
}

/// A thread's time.
#[derive(Debug, Clone, Copy)]
pub struct Worked {
    pub thread: usize,
    pub user_s: f64,
    pub system_s: f64,
    /// None where the kernel does not count it.
    pub wait_s: Option<f64>,
}

impl Total {
    pub fn new(servers: Range<usize>) -> Self {
        let instances = servers.clone().map(|_| Tally::default()).collect();
        let digest = Some(Digest::default());
        Self { servers, wall_ns: 0, start_ns: None, seconds: None, instances, threads: Vec::new(), digest }
    }

    /// Count a phase.
    pub fn add(&mut self, done: &Done) {
        self.wall_ns += done.wall_ns();
        let is_first = self.start_ns.is_none();
        self.start_ns.get_or_insert(done.start_ns);
        self.seconds = if is_first { seconds(done) } else { None };
        self.follow(done);
        for part in &done.parts {
            for lane in &part.lanes {
                self.instances[lane.instance - self.servers.start].add(&lane.tally);
            }
            match self.threads.iter_mut().find(|worked| worked.thread == part.thread) {
                Some(worked) => worked.add(part),
                None => self.threads.push(Worked::of(part)),
            }
        }
    }

    /// Note what was asked for in a phase, and count nothing of it.
    pub fn follow(&mut self, done: &Done) {
        for lane in done.parts.iter().flat_map(|part| &part.lanes) {
            self.digest = self.digest.zip(lane.digest).map(|(mut all, own)| {
                all.add(own.value());
                all
            });
        }
    }

    /// The sum of all instances.
    pub fn all(&self) -> Tally {
        let mut all = Tally::default();
        self.instances.iter().for_each(|instance| all.add(instance));
        all
    }
}

/// Those of all threads together.
fn seconds(done: &Done) -> Option<BySecond> {
    done.parts.iter().filter_map(|part| part.seconds.clone()).reduce(|mut all, own| {
        all.add(&own);
        all
    })
}

impl Worked {
    fn of(part: &Part) -> Self {
        let usage = &part.usage;
        Self { thread: part.thread, user_s: usage.user_s, system_s: usage.system_s, wait_s: part.wait_s }
    }

    fn add(&mut self, part: &Part) {
        self.user_s += part.usage.user_s;
        self.system_s += part.usage.system_s;
        self.wait_s = self.wait_s.zip(part.wait_s).map(|(all, own)| all + own);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::usage::Usage;
    use crate::load::fleet::Ask;
    use crate::load::order::{LanePart, Task};

    /// Two threads at two instances, the third and the fourth of all; `number` operations of each thread.
    fn done(number: u64, wait_s: Option<f64>, digest: Option<Digest>) -> Done {
        let part = |thread: usize| Part {
            thread,
            end_ns: 500,
            usage: Usage { user_s: 1.0, system_s: thread as f64, ..Usage::default() },
            wait_s,
            seconds: None,
            lanes: vec![LanePart { instance: 2 + thread, tally: Tally { sets: number, ..Tally::default() }, digest }],
        };
        let ask = Ask::every_key(Task::Touch, 1);
        Done { ask, start_ns: 100, end_ns: 500, parts: vec![part(0), part(1)] }
    }

    fn digest(value: u64) -> Option<Digest> {
        let mut digest = Digest::default();
        digest.add(value);
        Some(digest)
    }

    #[test]
    fn phases_are_summed_and_what_is_followed_only_has_its_sequence() {
        let mut total = Total::new(2..4);
        total.add(&done(3, Some(0.5), digest(1)));
        let before = total.digest.unwrap().hex();
        total.follow(&done(100, Some(9.0), digest(2)));
        assert_ne!(total.digest.unwrap().hex(), before);
        total.add(&done(4, Some(0.25), digest(3)));
        assert_eq!((total.wall_ns, total.all().operations()), (800, 14));
        assert_eq!(total.instances.iter().map(Tally::operations).collect::<Vec<_>>(), [7, 7]);
        let threads: Vec<_> = total.threads.iter().map(|own| (own.user_s, own.system_s, own.wait_s)).collect();
        assert_eq!(threads, [(2.0, 0.0, Some(0.75)), (2.0, 2.0, Some(0.75))]);
    }

    #[test]
    fn what_one_part_does_not_know_the_sum_does_not_know() {
        let mut total = Total::new(2..4);
        total.add(&done(3, Some(0.5), digest(1)));
        total.add(&done(3, None, None));
        assert!(total.digest.is_none() && total.threads.iter().all(|own| own.wait_s.is_none()));
    }
}
