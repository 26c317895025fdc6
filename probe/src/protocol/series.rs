//! What the sampler says: the body of the event `series`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Counters of the whole machine over time: what other processes did is in them. Times are CLOCK_MONOTONIC nanoseconds.
///
/// Names are `vmstat.NAME`, `khugepaged.NAME`, `thp.BYTES.NAME`, `hugetlb.BYTES.NAME`, `pressure.RESOURCE.some` or `.full`
/// (microseconds stalled), `free.orderN` (free blocks), `processes.last_pid`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// The period asked for, and as it was in the end: rows are dropped when there are too many.
    pub asked_ns: u64,
    pub period_ns: u64,
    /// When each reading began.
    pub t_ns: Vec<u64>,
    /// CPU time that the sampler had taken until then (RUSAGE_THREAD).
    pub cpu_ns: Vec<u64>,
    /// What had one value throughout.
    pub constant: BTreeMap<String, u64>,
    /// A value for each reading; null where it could not be read then.
    pub changed: BTreeMap<String, Vec<Option<u64>>>,
    /// What this machine does not have, and why.
    pub absent: BTreeMap<String, String>,
}

impl Series {
    /// For the readers of the protocol.
    pub fn example() -> Self {
        Self {
            asked_ns: 1_000_000_000,
            period_ns: 1_000_000_000,
            t_ns: vec![1_000_000_000, 2_000_000_000],
            cpu_ns: vec![200_000, 450_000],
            constant: BTreeMap::from([("thp.65536.nr_anon".into(), 0)]),
            changed: BTreeMap::from([("vmstat.pgfault".into(), vec![Some(100), None])]),
            absent: BTreeMap::from([("pressure.cpu".into(), "/proc/pressure/cpu: No such file or directory".into())]),
        }
    }
}
