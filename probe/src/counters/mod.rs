//! Performance counters by perf's own names.
//!
//! `common`, `protocol`, `machine` and `process` may be imported here. A new counter goes into the table in `names`; one
//! that perf has no generic name for, whose event depends on the processor, gets a file of its own beside `steps`.

pub mod count;
pub mod names;
pub mod perf;
mod steps;

use std::io;

use crate::protocol::event::{Event, emit};
use perf::{Counters, Target};

/// `hugewise-probe counters`.
pub fn main() -> io::Result<()> {
    emit(&Event::Available { counters: Counters::open(&names::tried(), Target::Own).reasons() })
}
