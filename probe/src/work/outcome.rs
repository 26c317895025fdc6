//! What every micro-workload takes, and what it gives.

use std::any::Any;
use std::collections::BTreeMap;

use anyhow::Result;
use clap::Args;

use crate::protocol::event::{Range, Value};
use crate::work::meter::Meter;

/// What every micro-workload takes.
#[derive(Debug, Clone, Args)]
pub struct Common {
    /// Leave at once instead of holding the memory until stdin ends
    #[arg(long)]
    pub no_hold: bool,
    /// When set up, say `ready` and wait for a byte on stdin before the timed region
    #[arg(long)]
    pub gate: bool,
    /// Counters to open around the timed region, by perf's names
    #[arg(long, value_delimiter = ',')]
    pub counters: Vec<String>,
}

/// What a workload found, and the memory that it keeps mapped for the scan.
pub struct Outcome {
    pub metrics: BTreeMap<String, f64>,
    pub facts: BTreeMap<String, Value>,
    pub ranges: Vec<Range>,
    pub held: Box<dyn Any>,
}

/// A workload that is set up in its memory and then works on it.
pub trait Resident {
    /// Do `amount` of the work: loads, updates, rounds.
    fn work(&mut self, amount: u64);
    /// The metrics of `amount` of work in `wall_ns`, for which it had the CPU for `cpu_ns`.
    fn metrics(&self, amount: u64, wall_ns: u64, cpu_ns: u64) -> BTreeMap<String, f64>;
    /// What was done, in facts; also checks the result.
    fn facts(&mut self, amount: u64) -> Result<BTreeMap<String, Value>>;
    fn range(&self) -> Range;
}

/// Measure `amount` of the work in one lap.
pub fn measure<R: Resident + Any>(mut resident: R, amount: u64, meter: &mut Meter) -> Result<Outcome> {
    meter.lap(|| resident.work(amount));
    let metrics = resident.metrics(amount, meter.wall_ns, meter.cpu_ns);
    let (facts, ranges) = (resident.facts(amount)?, vec![resident.range()]);
    Ok(Outcome { metrics, facts, ranges, held: Box::new(resident) })
}
