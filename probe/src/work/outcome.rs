//! What every micro-workload takes, and what it gives.

use std::any::Any;
use std::collections::BTreeMap;

use clap::Args;

use crate::protocol::event::{Range, Value};

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

/// An outcome with the time of its own laps, which is all of it but where several layouts take turns.
pub struct Timed {
    pub outcome: Outcome,
    pub wall_ns: u64,
}
