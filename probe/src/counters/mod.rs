//! Performance counters by perf's own names.
//!
//! `common`, `protocol`, `machine` and `process` may be imported here. A new counter goes into the table in `names`; one
//! that perf has no generic name for is asked for by its raw event, which the caller knows by the processor.

mod calibrate;
pub mod count;
pub mod names;
mod opening;
pub mod perf;

use std::io;

use crate::protocol::event::{Event, emit};
use perf::{Counters, Target};

#[derive(Debug, clap::Args)]
pub struct CountersArgs {
    /// Try this one over work that must make it count: perf's name, or LABEL=rCONFIG, with :u or :k for one mode (may be
    /// repeated)
    #[arg(long = "try", value_name = "NAME")]
    tries: Vec<String>,
    /// A label of those whose count may be 0 (may be repeated)
    #[arg(long, value_name = "LABEL")]
    silent: Vec<String>,
}

/// `hugewise-probe counters`.
pub fn main(args: &CountersArgs) -> io::Result<()> {
    let opened = Counters::open(&names::tried(), Target::Own);
    let (mut counters, mut partial) = (opened.reasons(), opened.partial());
    drop(opened);
    let slots = calibrate::slots();
    let (tried, tried_partial) = calibrate::tried(&args.tries, &args.silent);
    counters.extend(tried);
    partial.extend(tried_partial);
    emit(&Event::Available { counters, partial, slots })
}
