//! The kernel's counters over time: a thread that reads them at a period, keeps them in memory, and says them afterwards.
//!
//! `common` and `protocol` may be imported here. What is read goes into `sources`, how it is kept into `table`. Only what
//! the machine counts as a whole is read, from files that stay open: smaps or pagemap of a process would take the lock
//! of its memory map while it is timed.

mod sources;
mod table;

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::common::clock::now_ns;
use crate::common::usage::Usage;
use crate::protocol::event::{Event, emit};
use crate::protocol::series::Series;
use sources::Sources;
use table::Table;

/// The shortest period: a reading takes some 0.3 ms.
pub const LEAST: Duration = Duration::from_millis(10);

/// A thread that samples until it is stopped.
pub struct Sampler {
    stop: Sender<()>,
    thread: JoinHandle<Series>,
}

impl Sampler {
    /// Open the files and read them once; when this returns, the thread waits for its next turn.
    pub fn start(period: Duration) -> anyhow::Result<Sampler> {
        let (stop, stopped) = channel();
        let (begun, first) = channel();
        let run = move || sample(period, &begun, &stopped);
        let thread = std::thread::Builder::new().name("sampler".into()).spawn(run).context("the sampler's thread")?;
        first.recv().context("the sampler has ended before it began")??;
        Ok(Sampler { stop, thread })
    }

    /// Read once more and end; all that was read.
    pub fn stop(self) -> anyhow::Result<Series> {
        drop(self.stop);
        self.thread.join().map_err(|_| anyhow::anyhow!("the sampler's thread panicked"))
    }
}

fn sample(period: Duration, begun: &Sender<anyhow::Result<()>>, stopped: &Receiver<()>) -> Series {
    let (mut sources, absent) = Sources::open();
    let table = match Table::new(sources.names(), period) {
        Ok(table) => table,
        Err(error) => {
            let _ = begun.send(Err(error));
            return Series::default();
        }
    };
    let mut table = table;
    table.add(now_ns(), own_cpu_ns(), |row| sources.read(row));
    let _ = begun.send(Ok(()));
    let start = Instant::now();
    let mut due = start + table.period();
    while stopped.recv_timeout(due.saturating_duration_since(Instant::now())) == Err(RecvTimeoutError::Timeout) {
        table.add(now_ns(), own_cpu_ns(), |row| sources.read(row));
        // What was missed, on a machine that did not let it run, is not made up for.
        let passed = start.elapsed().as_nanos() / table.period().as_nanos() + 1;
        due = start + table.period() * u32::try_from(passed).unwrap_or(u32::MAX);
    }
    table.add(now_ns(), own_cpu_ns(), |row| sources.read(row));
    table.told(period, absent)
}

/// CPU time of this thread, user and system: only the sum is exact.
fn own_cpu_ns() -> u64 {
    let used = Usage::of(libc::RUSAGE_THREAD);
    ((used.user_s + used.system_s) * 1e9) as u64
}

#[derive(Debug, clap::Args)]
pub struct SampleArgs {
    /// Time between two readings, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    period: f64,
}

/// `sample`: the counters of this machine from now until stdin ends.
pub fn main(args: &SampleArgs) -> anyhow::Result<()> {
    if !(LEAST.as_secs_f64()..=3600.0).contains(&args.period) {
        bail!(crate::common::mistake::Mistake(format!("--period {}: from 0.01 to 3600 seconds", args.period)));
    }
    let sampler = Sampler::start(Duration::from_secs_f64(args.period))?;
    emit(&Event::Phase { t_ns: now_ns(), name: "timed".into() })?;
    io::copy(&mut io::stdin().lock(), &mut io::sink()).context("stdin")?;
    emit(&Event::Series(Box::new(sampler.stop()?)))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happens_between_two_readings_is_in_their_difference() {
        let sampled = |pause: u64| {
            let sampler = Sampler::start(Duration::from_millis(20)).unwrap();
            std::thread::sleep(Duration::from_millis(pause));
            // Some 4,096 faults of this process, in whatever page size they come.
            let touched = vec![1u8; 16 << 20];
            std::thread::sleep(Duration::from_millis(pause));
            let series = sampler.stop().unwrap();
            drop(touched);
            series
        };
        // Where the machine stood still there are fewer readings.
        let series = [60, 1_000, 20_000].into_iter().map(sampled).find(|series| series.t_ns.len() >= 4).unwrap();
        assert!(series.t_ns.windows(2).all(|two| two[0] < two[1]));
        assert!(series.cpu_ns.windows(2).all(|two| two[0] <= two[1]));
        let faults = &series.changed["vmstat.pgfault"];
        assert_eq!(faults.len(), series.t_ns.len());
        assert!(faults.last().unwrap().unwrap() > faults[0].unwrap());
        // What is not here has a reason, and no value.
        for name in series.absent.keys() {
            assert!(!series.changed.contains_key(name) && !series.constant.contains_key(name), "{name}");
        }
    }
}
