//! The timed region of a micro-workload: clock, CPU time and in-process counters around one or more laps.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::mem::MaybeUninit;

use crate::clock::{cpu_ns, now_ns};
use crate::event::{Count, Event, Value, emit};
use crate::perf;

/// Times the laps that make up the timed region. Counters are opened before, and count only within laps.
pub struct Meter {
    counters: Option<perf::Counters>,
    pub setup_ns: u64,
    pub timed_ns: Option<u64>,
    pub held_ns: u64,
    pub wall_ns: u64,
    pub cpu_ns: u64,
    usage: Usage,
    gated: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Usage {
    user_s: f64,
    system_s: f64,
    minor_faults: u64,
    major_faults: u64,
}

impl Meter {
    /// Open the counters called `names`; the setup phase begins now.
    pub fn open(names: &[String]) -> Self {
        let setup_ns = now_ns();
        let counters = (!names.is_empty()).then(|| perf::Counters::open(names, perf::Target::Own));
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
            eprintln!("hugewise-probe: nobody let the workload go: {error}");
            std::process::exit(1);
        }
        let before = Usage::now();
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
        self.usage.add(Usage::now(), before);
        self.timed_ns.get_or_insert(start);
        self.held_ns = end;
        self.wall_ns += end - start;
        result
    }

    /// What the laps cost beside time. CPU time is exact only as a sum (the kernel splits it by ticks).
    pub fn facts(&self) -> BTreeMap<String, Value> {
        BTreeMap::from([
            ("user_s".into(), Value::Number(self.usage.user_s)),
            ("system_s".into(), Value::Number(self.usage.system_s)),
            ("minor_faults".into(), Value::Integer(self.usage.minor_faults)),
            ("major_faults".into(), Value::Integer(self.usage.major_faults)),
        ])
    }

    /// The counters over all laps; None when none were asked for.
    pub fn counts(&mut self) -> Option<BTreeMap<String, Count>> {
        self.counters.as_mut().map(perf::Counters::read)
    }
}

impl Usage {
    fn now() -> Self {
        let mut usage = MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: getrusage fills the structure; RUSAGE_SELF cannot fail, and all-zero is a valid rusage.
        let usage = unsafe {
            libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
            usage.assume_init()
        };
        let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 * 1e-6;
        Self {
            user_s: seconds(usage.ru_utime),
            system_s: seconds(usage.ru_stime),
            minor_faults: usage.ru_minflt as u64,
            major_faults: usage.ru_majflt as u64,
        }
    }

    fn add(&mut self, after: Self, before: Self) {
        self.user_s += after.user_s - before.user_s;
        self.system_s += after.system_s - before.system_s;
        self.minor_faults += after.minor_faults - before.minor_faults;
        self.major_faults += after.major_faults - before.major_faults;
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
