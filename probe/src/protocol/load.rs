//! What `load` says: the body of the event `load`. Times are nanoseconds; latencies those of single requests.

use serde::{Deserialize, Serialize};

/// Everything of one invocation; what was not asked for is null.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Load {
    pub protocol: String,
    pub connections: u32,
    pub pipeline: u32,
    pub stored: Option<Stored>,
    pub touched: Option<Touched>,
    pub timed: Option<Timed>,
    pub search: Option<Search>,
}

/// The preload of each instance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stored {
    pub keys: u64,
    /// Names and values of one instance.
    pub bytes: u64,
    /// Of the names' form and of all values; equal where the same was stored.
    pub hash: String,
    /// What each server says that it holds.
    pub counts: Vec<u64>,
    pub wall_ns: u64,
}

/// Every key was read once and had its value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Touched {
    pub keys: u64,
    pub wall_ns: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    pub count: u64,
    pub mean_ns: f64,
    pub p50_ns: u64,
    pub p90_ns: u64,
    pub p99_ns: u64,
    pub p999_ns: u64,
    pub max_ns: u64,
}

/// Everything that a latency histogram recorded: `counts` operations took up to `up_to_ns` and more than the bucket before.
/// Buckets are those of an HDR histogram with so many significant digits: three are 0.1% at most.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buckets {
    pub digits: u8,
    pub up_to_ns: Vec<u64>,
    pub counts: Vec<u64>,
}

/// Operations that were answered in each interval from `start_ns` on, and quantiles of their latency with two significant
/// digits (the longest is exact); null where there was none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seconds {
    /// A second; longer where there would be more than 2,048 of them.
    pub interval_ns: u64,
    pub operations: Vec<u64>,
    pub p50_ns: Vec<Option<u64>>,
    pub p90_ns: Vec<Option<u64>>,
    pub p99_ns: Vec<Option<u64>>,
    pub p999_ns: Vec<Option<u64>>,
    pub max_ns: Vec<Option<u64>>,
}

/// One of the slowest operations, of a time in which none that was slower was under way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stall {
    /// When it was sent (in an open loop: was to be sent), and answered.
    pub sent_ns: u64,
    pub answered_ns: u64,
    pub latency_ns: u64,
    pub server: String,
    /// Operations that took at least half as long and were answered in the same seconds.
    pub operations: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Instance {
    pub server: String,
    pub operations: u64,
    pub latency: Option<Latency>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Worst {
    pub server: String,
    pub p99_ns: u64,
}

/// How much later than intended requests were sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Late {
    pub p50_ns: u64,
    pub p99_ns: u64,
    pub max_ns: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Thread {
    pub cpu: Option<usize>,
    pub user_s: f64,
    pub system_s: f64,
    /// Ready to run while another process had the CPU; null where the kernel does not count it.
    pub wait_s: Option<f64>,
    /// CPU time over wall time.
    pub busy: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Client {
    pub user_s: f64,
    pub system_s: f64,
    /// The busiest thread's.
    pub busy: f64,
    /// A thread was busy, or waited for its CPU, for 95% of the time or more: what was measured may be the client.
    pub saturated: bool,
    pub threads: Vec<Thread>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Timed {
    /// When the phase began: CLOCK_MONOTONIC of the client's host.
    pub start_ns: u64,
    /// From the first request to the last reply.
    pub wall_ns: u64,
    pub operations: u64,
    pub sets: u64,
    pub gets: u64,
    pub hits: u64,
    pub misses: u64,
    /// Misses of keys that were stored: evicted.
    pub lost: u64,
    /// Due in an open loop, but never sent.
    pub unsent: u64,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    /// Open loop: operations a second.
    pub asked_rate: Option<f64>,
    /// Of those answered within the time asked for; in a closed loop of all.
    pub achieved_rate: f64,
    /// Within 1% of the one asked for.
    pub rate_met: Option<bool>,
    pub late: Option<Late>,
    /// At pipeline 1 a request is alone on its connection.
    pub per_operation: bool,
    pub latency: Option<Latency>,
    pub instances: Vec<Instance>,
    pub worst: Option<Worst>,
    /// Operations answered in each whole second.
    pub per_second: Vec<u64>,
    /// The whole histogram of `latency`.
    pub buckets: Option<Buckets>,
    /// Null where its parts do not follow each other.
    pub seconds: Option<Seconds>,
    /// The slowest first.
    pub stalls: Vec<Stall>,
    pub client: Client,
    /// Hash of the first 1,024 operations drawn for each thread and instance; null where fewer were drawn than that.
    pub sequence: Option<String>,
    /// Of a group that was asked in turns: all above is of its counted parts.
    pub turns: Option<Turns>,
}

/// A group's turns, all of the same number of operations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Turns {
    pub count: u64,
    /// Of each turn.
    pub slice_operations: u64,
    /// Of all turns, asked for before what is counted.
    pub washed: u64,
    /// Of all turns, washed out or counted.
    pub operations: u64,
    /// Of all turns, from the first request to the last reply of both parts.
    pub wall_ns: u64,
    /// Of what is counted, for each turn.
    pub turn_ns: Vec<u64>,
}

/// One rate of a search.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    pub rate: f64,
    /// Of each probe: the worst instance's p99, and the rate achieved.
    pub p99_ns: Vec<u64>,
    pub achieved: Vec<f64>,
    /// Most probes were within the limit and achieved the rate.
    pub passed: bool,
}

/// The highest rate within the limit lies between `rate` and `failed`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Search {
    pub limit_ns: u64,
    /// Throughput of the closed loop, where the search began.
    pub capacity: f64,
    /// The highest rate that passed; null: none did.
    pub rate: Option<f64>,
    /// The lowest rate above it that did not; null: none was found.
    pub failed: Option<f64>,
    pub steps: Vec<Step>,
}

impl Load {
    /// For the readers of the protocol: one of everything.
    pub fn example() -> Self {
        let server = || "unix:/run/redis.sock".to_string();
        let latency = Latency {
            count: 3,
            mean_ns: 2e4,
            p50_ns: 20_000,
            p90_ns: 25_000,
            p99_ns: 31_000,
            p999_ns: 31_000,
            max_ns: 31_000,
        };
        let thread = Thread { cpu: Some(1), user_s: 0.25, system_s: 0.5, wait_s: Some(0.125), busy: 0.75 };
        Self {
            protocol: "redis".into(),
            connections: 8,
            pipeline: 1,
            stored: Some(Stored {
                keys: 1000,
                bytes: 66_000,
                hash: "9f86d081884c7d65".into(),
                counts: vec![1000],
                wall_ns: 2_000_000,
            }),
            touched: Some(Touched { keys: 1000, wall_ns: 1_500_000 }),
            timed: Some(Timed {
                start_ns: 1_000_000_000,
                wall_ns: 1_000_000_000,
                operations: 3,
                sets: 1,
                gets: 2,
                hits: 1,
                misses: 1,
                lost: 0,
                unsent: 0,
                bytes_sent: 150,
                bytes_received: 80,
                asked_rate: Some(3.0),
                achieved_rate: 3.0,
                rate_met: Some(true),
                late: Some(Late { p50_ns: 900, p99_ns: 4_000, max_ns: 4_000 }),
                per_operation: true,
                latency: Some(latency),
                instances: vec![Instance { server: server(), operations: 3, latency: Some(latency) }],
                worst: Some(Worst { server: server(), p99_ns: 31_000 }),
                per_second: vec![3],
                buckets: Some(Buckets { digits: 3, up_to_ns: vec![20_000, 31_000], counts: vec![2, 1] }),
                seconds: Some(Seconds {
                    interval_ns: 1_000_000_000,
                    operations: vec![3, 0],
                    p50_ns: vec![Some(20_000), None],
                    p90_ns: vec![Some(31_000), None],
                    p99_ns: vec![Some(31_000), None],
                    p999_ns: vec![Some(31_000), None],
                    max_ns: vec![Some(31_000), None],
                }),
                stalls: vec![Stall {
                    sent_ns: 1_500_000_000,
                    answered_ns: 1_500_031_000,
                    latency_ns: 31_000,
                    server: server(),
                    operations: 1,
                }],
                client: Client { user_s: 0.25, system_s: 0.5, busy: 0.75, saturated: false, threads: vec![thread] },
                sequence: Some("3f39d5c348e5b79d".into()),
                turns: Some(Turns {
                    count: 2,
                    slice_operations: 2,
                    washed: 1,
                    operations: 4,
                    wall_ns: 1_250_000_000,
                    turn_ns: vec![600_000_000, 400_000_000],
                }),
            }),
            search: Some(Search {
                limit_ns: 1_000_000,
                capacity: 4.0,
                rate: Some(3.0),
                failed: Some(4.0),
                steps: vec![Step { rate: 4.0, p99_ns: vec![2_000_000], achieved: vec![3.5], passed: false }],
            }),
        }
    }
}
