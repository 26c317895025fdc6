//! The boundary to Python: one JSON object a line on stdout, tagged by `ev`.
//!
//! `hugewise-probe describe --examples` prints one of each kind, and a Python test decodes them: that is the contract.
//! Readers ignore unknown fields; `VERSION` rises when a meaning changes. Nothing is written inside a timed region.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::common::usage::Usage;
use crate::protocol::folios::Folios;
use crate::protocol::load::Load;
use crate::protocol::series::Series;

/// Version of the protocol, in the `start` event.
pub const VERSION: u32 = 1;

/// Who is to blame for an error: the host (or hugewise itself), or the workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fault {
    Host,
    Workload,
}

/// What a set of counters covers: the whole command, or only the timed region of a micro-workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    Command,
    Timed,
}

/// How page sizes were found: physical page flags (root), or smaps alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    Kpageflags,
    Smaps,
}

/// A counter's value, or why there is none. `value` is already scaled by enabled/running time when multiplexed: where
/// `running_ns` is less than `enabled_ns` it is an estimate, and nobody judges by it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Count {
    pub value: Option<u64>,
    pub reason: Option<String>,
    pub enabled_ns: u64,
    pub running_ns: u64,
}

/// A half-open range of virtual addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    pub start: u64,
    pub end: u64,
}

/// One value in a micro-workload's result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    Integer(u64),
    Number(f64),
    Text(String),
}

/// Everything that the probe says on stdout. All times are CLOCK_MONOTONIC nanoseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "ev", rename_all = "snake_case")]
pub enum Event {
    /// First line of `run`: the child exists and will be executed. `counters_open` came before `t_ns`.
    Start {
        v: u32,
        t_ns: u64,
        pid: u32,
        probe: String,
    },
    /// A micro-workload passes from one phase to the next: `setup`, `timed`, `held`. `ready` comes before them, when it is written and
    /// not kept: the workload waits for a byte on its stdin.
    Phase {
        t_ns: u64,
        name: String,
    },
    /// A micro-workload's numbers: `metrics` are judged, `facts` only kept (hash of a sequence, loads, bytes).
    Result {
        workload: String,
        wall_ns: u64,
        metrics: BTreeMap<String, f64>,
        facts: BTreeMap<String, Value>,
    },
    /// The ranges that a micro-workload names as its memory; it holds them mapped until its stdin is closed.
    Hold {
        ranges: Vec<Range>,
    },
    Counters {
        scope: Scope,
        values: BTreeMap<String, Count>,
    },
    /// What really backed the memory of one process. Keys are `kind:page size in bytes` with kind anon, shmem or
    /// hugetlb, or `unproven`; values are bytes. `thp_disable` is PR_GET_THP_DISABLE as found in its status, if any.
    Coverage {
        pid: u32,
        command: String,
        named: bool,
        source: Source,
        bytes: BTreeMap<String, u64>,
        thp_disabled: Option<bool>,
        scan_ns: u64,
    },
    /// Of the whole tree.
    Usage(Usage),
    /// Last line of `run`. `wall_ns` goes from launch to the exit of the root process, scans excluded.
    /// `early_exits` counts processes that left before the root, so that their memory was not scanned. `exceeded` says
    /// which of its limits the workload met, and was ended for. `looked_ns` is when the scan of the root at its exit began
    /// and ended: whoever takes other times out of `wall_ns` must not take that once more. `forked` counts processes that went
    /// on with a copy of their parent's memory (fork without exec), `executed` programs that other processes than the root
    /// began, `threads` those beside each process's first; none of them where nobody followed the tree.
    Exit {
        t_ns: u64,
        wall_ns: u64,
        code: Option<i32>,
        signal: Option<i32>,
        timed_out: bool,
        early_exits: u32,
        killed: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        looked_ns: Option<[u64; 2]>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exceeded: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        forked: Option<u32>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        executed: Option<u32>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        threads: Option<u32>,
    },
    /// The load generator's numbers.
    Load(Box<Load>),
    /// The machine's counters over time.
    Series(Box<Series>),
    /// What went wrong, in words for people. `before_timed`: decided before the timed region started.
    Error {
        fault: Fault,
        before_timed: bool,
        message: String,
    },
    /// `hugewise-probe cpu`: the TLBs as CPUID states them.
    Cpu {
        vendor: String,
        model: String,
        tlbs: Vec<Tlb>,
        reason: Option<String>,
    },
    /// `hugewise-probe touch`: so much memory was touched once and given back. `blocks_ns`: the time of each block of
    /// the PMD size.
    Touched {
        bytes: u64,
        wall_ns: u64,
        blocks_ns: Vec<u64>,
    },
    /// `hugewise-probe fragment`: so much memory is free, so much of it in blocks that a huge page fits into, and so many
    /// blocks have a page of the probe's that cannot be moved, after `rounds` of compaction.
    Fragmented {
        free_bytes: u64,
        huge_bytes: u64,
        pinned: u64,
        rounds: u32,
        wall_ns: u64,
    },
    /// `hugewise-probe counters`: which counters this machine gives, by name, or why not; `slots`: how many events it
    /// counts at once on general counters, null without a PMU; `partial`: those that count user mode alone.
    Available {
        counters: BTreeMap<String, Option<String>>,
        #[serde(default)]
        partial: BTreeSet<String>,
        #[serde(default)]
        slots: Option<u64>,
    },
    /// `hugewise-probe fault-cost`: what the faults of fresh memory cost, a round each.
    FaultCost {
        rounds: Vec<FaultRound>,
    },
    /// `hugewise-probe folios`: what backs each mapping of a process, one event a process.
    Folios(Box<Folios>),
}

/// So many bytes were touched for the first time: page faults, and CPU time of the thread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultRound {
    pub bytes: u64,
    pub faults: u64,
    pub cpu_ns: u64,
}

/// One TLB: `entries` for each of `page_sizes` (bytes); `ways` 0 means fully associative.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tlb {
    pub level: u8,
    pub kind: String,
    pub page_sizes: Vec<u64>,
    pub entries: u32,
    pub ways: u32,
}

/// Values by their names, for short code.
pub fn named<V, const N: usize>(pairs: [(&str, V); N]) -> BTreeMap<String, V> {
    pairs.into_iter().map(|(name, value)| (name.into(), value)).collect()
}

/// Write one event as a line and flush it.
pub fn emit(event: &Event) -> io::Result<()> {
    let mut line = serde_json::to_vec(event).map_err(io::Error::other)?;
    line.push(b'\n');
    let mut out = io::stdout().lock();
    out.write_all(&line)?;
    out.flush()
}
