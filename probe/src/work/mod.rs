//! Micro-workloads: fixed, seeded work over memory whose layout is the same in every arm.
//!
//! Each sets up, runs its timed region, and then says everything at once: phases, result, counters and the ranges that
//! it holds mapped until its stdin is closed. Nothing is written inside the timed region.
//!
//! `common`, `protocol`, `machine` and `counters` may be imported here. A new workload for the probe is a file here with
//! `Options` and `measure`, and a variant of `Work`. What its memory is mapped from goes into `region`.

mod chase;
mod fault;
pub mod fault_cost;
mod gups;
mod lat_mmap;
mod meter;
mod mmap_perf;
mod outcome;
mod region;
mod spin;
mod stream;
pub mod touch;

use std::io;

use anyhow::Result;
use clap::Subcommand;

use crate::common::mistake::Mistake;
use crate::protocol::event::{Event, Fault, Scope, emit};
use meter::Meter;
use outcome::{Common, Outcome};

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

/// Run one micro-workload and hold its memory. A failure is said on stdout too, with whether it came before the
/// timed region: that decides whether an attempt may be repeated.
pub fn run(work: Work) -> Result<()> {
    let (name, common) = work.name_and_common();
    let mut meter = Meter::open(&common.counters);
    if common.gate {
        meter.gate();
    }
    let outcome = match work.measure(&mut meter) {
        Ok(outcome) => outcome,
        Err(error) => {
            let message = format!("{name}: {error:#}");
            let fault = if error.is::<Mistake>() { Fault::Workload } else { Fault::Host };
            emit(&Event::Error { fault, before_timed: meter.timed_ns.is_none(), message })?;
            return Err(error);
        }
    };
    report(name, common, outcome, &mut meter)
}

fn report(name: &str, common: &Common, outcome: Outcome, meter: &mut Meter) -> Result<()> {
    let phase = |name: &str, t_ns| Event::Phase { t_ns, name: name.into() };
    emit(&phase("setup", meter.setup_ns))?;
    emit(&phase("timed", meter.timed_ns.unwrap_or(meter.held_ns)))?;
    emit(&phase("held", meter.held_ns))?;
    let mut facts = outcome.facts;
    facts.extend(meter.facts());
    emit(&Event::Result { workload: name.into(), wall_ns: meter.wall_ns, metrics: outcome.metrics, facts })?;
    if let Some(values) = meter.counts() {
        emit(&Event::Counters { scope: Scope::Timed, values })?;
    }
    emit(&Event::Hold { ranges: outcome.ranges })?;
    if !common.no_hold {
        io::copy(&mut io::stdin().lock(), &mut io::sink())?;
    }
    drop(outcome.held);
    Ok(())
}

impl Work {
    /// The name in the result, which is that on the command line, and what every workload takes.
    fn name_and_common(&self) -> (&'static str, &Common) {
        match self {
            Self::Chase(options) => ("chase", &options.common),
            Self::Stream(options) => ("stream", &options.common),
            Self::Gups(options) => ("gups", &options.common),
            Self::Spin(options) => ("spin", &options.common),
            Self::Fault(options) => ("fault", &options.common),
            Self::MmapPerf(options) => ("mmap-perf", &options.common),
            Self::LatMmap(options) => ("lat-mmap", &options.common),
        }
    }

    fn measure(&self, meter: &mut Meter) -> Result<Outcome> {
        match self {
            Self::Chase(options) => chase::measure(options, meter),
            Self::Stream(options) => stream::measure(options, meter),
            Self::Gups(options) => gups::measure(options, meter),
            Self::Spin(options) => spin::measure(options, meter),
            Self::Fault(options) => fault::measure(options, meter),
            Self::MmapPerf(options) => mmap_perf::measure(options, meter),
            Self::LatMmap(options) => lat_mmap::measure(options, meter),
        }
    }
}
