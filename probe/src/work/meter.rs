//! The timed region of a micro-workload: clock, CPU time and in-process counters around one or more laps.

use std::collections::BTreeMap;
use std::io::{self, Read};

use crate::common::clock::{cpu_ns, now_ns};
use crate::common::complain::complain;
use crate::common::usage::Usage;
use crate::counters::perf::{Counters, Target};
use crate::protocol::event::{Count, Event, Value, emit, named};

/// Times the laps that make up the timed region. Counters are opened before, and count only within laps.
pub struct Meter {
    counters: Option<Counters>,
    pub setup_ns: u64,
    pub timed_ns: Option<u64>,
    pub held_ns: u64,
    pub wall_ns: u64,
    pub cpu_ns: u64,
    usage: Usage,
    gated: bool,
}

impl Meter {
    /// Open the counters called `names`; the setup phase begins now.
    pub fn open(names: &[String]) -> Self {
        let setup_ns = now_ns();
        let counters = (!names.is_empty()).then(|| Counters::open(names, Target::Own));
        let usage = Usage::default();
        Self { counters, setup_ns, timed_ns: None, held_ns: setup_ns, wall_ns: 0, cpu_ns: 0, usage, gated: false }
    }

    /// Have the first lap wait until it is let go: it says `ready`, and reads a byte from stdin.
    pub fn gate(&mut self) {
        self.gated = true;
    }

    /// Wait at the gate, once. A workload whose launcher has gone ends here.
    fn pass(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.gated) {
            emit(&Event::Phase { t_ns: now_ns(), name: "ready".into() })?;
            io::stdin().lock().read_exact(&mut [0])?;
        }
        Ok(())
    }

    /// Run `work` within the timed region. Only the laps count; what lies between them does not.
    pub fn lap<T>(&mut self, work: impl FnOnce() -> T) -> T {
        if let Err(error) = self.pass() {
            complain(format_args!("nobody let the workload go: {error}"));
            std::process::exit(1);
        }
        let before = Usage::of(libc::RUSAGE_SELF);
        if let Some(counters) = &mut self.counters {
            counters.enable();
        }
        let cpu = cpu_ns();
        let start = now_ns();
        let result = work();
        let end = now_ns();
        self.cpu_ns += cpu_ns() - cpu;
        if let Some(counters) = &mut self.counters {
            counters.disable();
        }
        // What came before the laps and between them is taken away.
        self.usage = Usage::of(libc::RUSAGE_SELF).since(before.since(self.usage));
        self.timed_ns.get_or_insert(start);
        self.held_ns = end;
        self.wall_ns += end - start;
        result
    }

    /// What the laps cost beside time. CPU time is exact only as a sum (the kernel splits it by ticks).
    pub fn facts(&self) -> BTreeMap<String, Value> {
        named([
            ("user_s", Value::Number(self.usage.user_s)),
            ("system_s", Value::Number(self.usage.system_s)),
            ("minor_faults", Value::Integer(self.usage.minor_faults)),
            ("major_faults", Value::Integer(self.usage.major_faults)),
        ])
    }

    /// The counters over all laps; None when none were asked for.
    pub fn counts(&mut self) -> Option<BTreeMap<String, Count>> {
        self.counters.as_mut().map(Counters::read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_laps_count() {
        let mut meter = Meter::open(&[]);
        assert_eq!(meter.timed_ns, None);
        meter.lap(|| std::thread::sleep(std::time::Duration::from_millis(3)));
        std::thread::sleep(std::time::Duration::from_millis(30));
        assert_eq!(meter.lap(|| 7), 7);
        assert!(meter.wall_ns >= 3_000_000);
        let between = meter.held_ns - meter.timed_ns.unwrap() - meter.wall_ns;
        assert!(between >= 30_000_000, "{between}");
        assert!(meter.setup_ns <= meter.timed_ns.unwrap());
        assert_eq!(meter.counts(), None);
    }
}
