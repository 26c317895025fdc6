//! What the threads are told to do, and what each says it did.

use crate::common::random::Digest;
use crate::common::usage::Usage;
use crate::load::seconds::BySecond;
use crate::load::tally::Tally;

/// What all threads do together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// Store every key once, by the first connection of each instance.
    Preload,
    /// Read every key once and compare it.
    Touch,
    /// The mix. `stream` keeps the sequences of several phases apart.
    Mix { stream: u64 },
}

/// A task with its limits.
#[derive(Debug, Clone)]
pub struct Order {
    pub task: Task,
    pub start_ns: u64,
    pub pipeline: usize,
    /// Open loop.
    pub rate: Option<f64>,
    /// No request is made after this; an open loop has none after it either.
    pub end_ns: Option<u64>,
    /// Operations over all lanes that work.
    pub operations: u64,
    /// Only the lanes of this group work; None: all.
    pub group: Option<usize>,
}

/// What a thread did.
#[derive(Debug)]
pub struct Part {
    pub thread: usize,
    pub end_ns: u64,
    pub usage: Usage,
    /// It could have run, but another one had the CPU; None where the kernel does not count that.
    pub wait_s: Option<f64>,
    /// Of the mix.
    pub seconds: Option<BySecond>,
    pub lanes: Vec<LanePart>,
}

#[derive(Debug)]
pub struct LanePart {
    pub instance: usize,
    pub tally: Tally,
    pub digest: Option<Digest>,
}
