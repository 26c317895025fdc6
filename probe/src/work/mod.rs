//! Micro-workloads: fixed, seeded work over memory whose layout is the same in every arm.
//!
//! Each sets up, runs its timed region, and then says everything at once: phases, result, counters and the ranges that
//! it holds mapped until its stdin is closed. Nothing is written inside the timed region.

pub mod chase;
pub mod fault;
pub mod gups;
pub mod lat_mmap;
pub mod meter;
pub mod mmap_perf;
pub mod random;
pub mod region;
pub mod size;
pub mod spin;
pub mod stream;
pub mod turns;

use std::any::Any;
use std::collections::BTreeMap;
use std::io::{self, Read};

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::event::{Event, Fault, Range, Scope, Value, emit};
use crate::spec::Usage;
use meter::Meter;

/// The micro-workloads by their command names.
#[derive(Debug, Clone, Subcommand)]
pub enum Work {
    /// Dependent loads in one random cycle: latency
    Chase(chase::Options),
    /// STREAM's triad over three arrays: sequential bandwidth
    Stream(stream::Options),
    /// Independent 64-bit updates at pseudo-random places: throughput
    Gups(gups::Options),
    /// A loop over a table that fits into the first cache: nothing for page sizes to win
    Spin(spin::Options),
    /// First touch of fresh memory: page-fault throughput
    Fault(fault::Options),
    /// Pseudo-random mmap, munmap and mremap calls, touching now and then
    MmapPerf(mmap_perf::Options),
    /// Map, touch and unmap a shared file
    LatMmap(lat_mmap::Options),
}

/// What every micro-workload takes.
#[derive(Debug, Clone, Args)]
pub struct Common {
    /// Leave at once instead of holding the memory until stdin ends
    #[arg(long)]
    no_hold: bool,
    /// When set up, say `ready` and wait for a byte on stdin before the timed region
    #[arg(long)]
    gate: bool,
    /// Counters to open around the timed region, by perf's names
    #[arg(long, value_delimiter = ',')]
    counters: Vec<String>,
}

/// What a workload found, and the memory that it keeps mapped for the scan.
pub struct Outcome {
    pub metrics: BTreeMap<String, f64>,
    pub facts: BTreeMap<String, Value>,
    pub ranges: Vec<Range>,
    pub held: Box<dyn Any>,
}

/// An outcome with the time of its own laps, which is all of it but where several layouts take turns.
pub struct Timed {
    pub outcome: Outcome,
    pub wall_ns: u64,
}

/// Run one micro-workload and hold its memory. A failure is said on stdout too, with whether it came before the
/// timed region: that decides whether an attempt may be repeated.
pub fn run(work: Work) -> Result<()> {
    let common = work.common().clone();
    let mut meter = Meter::open(&common.counters);
    if common.gate {
        meter.gate();
    }
    let outcomes = match work.measure(&mut meter) {
        Ok(outcomes) => outcomes,
        Err(error) => {
            let message = format!("{}: {error:#}", work.name());
            let fault = if error.is::<Usage>() { Fault::Workload } else { Fault::Host };
            emit(&Event::Error { fault, before_timed: meter.timed_ns.is_none(), message })?;
            return Err(error);
        }
    };
    report(&work, outcomes, &mut meter, &common)
}

fn report(work: &Work, outcomes: Vec<Timed>, meter: &mut Meter, common: &Common) -> Result<()> {
    let phase = |name: &str, t_ns| Event::Phase { t_ns, name: name.into() };
    emit(&phase("setup", meter.setup_ns))?;
    emit(&phase("timed", meter.timed_ns.unwrap_or(meter.held_ns)))?;
    emit(&phase("held", meter.held_ns))?;
    let mut kept = Vec::new();
    for Timed { outcome, wall_ns } in outcomes {
        let mut facts = outcome.facts;
        facts.extend(meter.facts());
        emit(&Event::Result { workload: work.name().into(), wall_ns, metrics: outcome.metrics, facts })?;
        kept.push((outcome.ranges, outcome.held));
    }
    if let Some(values) = meter.counts() {
        emit(&Event::Counters { scope: Scope::Timed, values })?;
    }
    let mut left = kept.len();
    for (ranges, _) in &kept {
        left -= 1;
        emit(&Event::Hold { ranges: ranges.clone(), more: left > 0 })?;
    }
    if !common.no_hold {
        wait_for_end(io::stdin().lock())?;
    }
    drop(kept);
    Ok(())
}

/// Read `input` to its end, whatever it says.
fn wait_for_end(mut input: impl Read) -> io::Result<()> {
    let mut ignored = [0; 256];
    loop {
        match input.read(&mut ignored) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

impl Work {
    /// The name in the result: as on the command line.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Chase(_) => "chase",
            Self::Stream(_) => "stream",
            Self::Gups(_) => "gups",
            Self::Spin(_) => "spin",
            Self::Fault(_) => "fault",
            Self::MmapPerf(_) => "mmap-perf",
            Self::LatMmap(_) => "lat-mmap",
        }
    }

    fn common(&self) -> &Common {
        match self {
            Self::Chase(options) => &options.common,
            Self::Stream(options) => &options.common,
            Self::Gups(options) => &options.common,
            Self::Spin(options) => &options.common,
            Self::Fault(options) => &options.common,
            Self::MmapPerf(options) => &options.common,
            Self::LatMmap(options) => &options.common,
        }
    }

    fn measure(&self, meter: &mut Meter) -> Result<Vec<Timed>> {
        let outcome = match self {
            Self::Chase(options) => return chase::measure(options, meter),
            Self::Stream(options) => return stream::measure(options, meter),
            Self::Gups(options) => return gups::measure(options, meter),
            Self::Spin(options) => return spin::measure(options, meter),
            Self::Fault(options) => fault::measure(options, meter),
            Self::MmapPerf(options) => mmap_perf::measure(options, meter),
            Self::LatMmap(options) => lat_mmap::measure(options, meter),
        }?;
        Ok(vec![Timed { outcome, wall_ns: meter.wall_ns }])
    }
}

/// Facts from pairs, for short workload code.
fn facts<const N: usize>(pairs: [(&str, Value); N]) -> BTreeMap<String, Value> {
    pairs.into_iter().map(|(name, value)| (name.into(), value)).collect()
}

/// Metrics from pairs.
fn metrics<const N: usize>(pairs: [(&str, f64); N]) -> BTreeMap<String, f64> {
    pairs.into_iter().map(|(name, value)| (name.into(), value)).collect()
}
