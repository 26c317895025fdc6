//! From what the threads counted to what is said.

use hdrhistogram::Histogram;

use crate::common::random::Digest;
use crate::load::fleet::{Ask, Done};
use crate::load::seconds::BySecond;
use crate::load::tally::Tally;
use crate::load::total::{Total, Worked};
use crate::load::world::World;
use crate::protocol::load::{Buckets, Client, Instance, Late, Latency, Thread, Timed, Worst};

/// A client's thread that has no more than this share of its time left is saturated.
const SATURATED: f64 = 0.95;
/// How near to the asked rate the achieved one must be.
const TOLERANCE: f64 = 0.01;

/// A phase of all servers in numbers.
pub fn timed(world: &World, done: &Done) -> Timed {
    let mut total = Total::new(0..world.options.server.len());
    total.add(done);
    told(world, &done.ask, &total)
}

/// The timed phase in numbers, where all that is in `total` was asked for as in `ask`.
pub fn told(world: &World, ask: &Ask, total: &Total) -> Timed {
    let (instances, all, wall_ns) = (&total.instances, total.all(), total.wall_ns);
    let seconds = wall_ns.max(1) as f64 * 1e-9;
    let operations = all.operations();
    let asked_rate = ask.rate;
    let achieved_rate = match (asked_rate, asked_seconds(ask)) {
        (Some(_), Some(asked)) => all.in_time as f64 / asked,
        _ => operations as f64 / seconds,
    };
    let servers = || world.options.server[total.servers.clone()].iter().map(ToString::to_string);
    let worst = servers().zip(instances).filter(|(_, tally)| !tally.latency.is_empty());
    let worst = worst.map(|(server, tally)| Worst { server, p99_ns: tally.latency.value_at_quantile(0.99) });
    let instance = |(server, tally): (String, &Tally)| Instance {
        server,
        operations: tally.operations(),
        latency: latency(&tally.latency),
    };
    let name = |number: usize| world.options.server[number].to_string();
    let mut per_second = all.per_second.clone();
    per_second.resize((wall_ns / 1_000_000_000) as usize, 0);
    Timed {
        start_ns: total.start_ns.unwrap_or(0),
        wall_ns,
        operations,
        sets: all.sets,
        gets: all.hits + all.misses,
        hits: all.hits,
        misses: all.misses,
        lost: all.lost,
        unsent: all.unsent,
        bytes_sent: all.bytes_sent,
        bytes_received: all.bytes_received,
        asked_rate,
        achieved_rate,
        rate_met: asked_rate.map(|asked| (achieved_rate / asked - 1.0).abs() <= TOLERANCE),
        late: asked_rate.map(|_| late(&all.lag)),
        per_operation: ask.pipeline == 1,
        latency: latency(&all.latency),
        instances: servers().zip(instances).map(instance).collect(),
        worst: worst.max_by_key(|worst| worst.p99_ns),
        per_second,
        buckets: buckets(&all.latency),
        seconds: total.seconds.as_ref().map(BySecond::seconds),
        stalls: total.seconds.as_ref().map_or(Vec::new(), |all| all.stalls(name)),
        client: client(&world.options.cpus, &total.threads, seconds),
        sequence: total.digest.map(Digest::hex),
        turns: None,
    }
}

/// How long an open loop was to last.
fn asked_seconds(ask: &Ask) -> Option<f64> {
    let by_count = || Some(ask.operations? as f64 / ask.rate?);
    ask.duration_ns.map(|duration| duration as f64 * 1e-9).or_else(by_count)
}

/// Quantiles; None where nothing was recorded.
fn latency(histogram: &Histogram<u64>) -> Option<Latency> {
    let quantile = |share| histogram.value_at_quantile(share);
    (!histogram.is_empty()).then(|| Latency {
        count: histogram.len(),
        mean_ns: histogram.mean(),
        p50_ns: quantile(0.5),
        p90_ns: quantile(0.9),
        p99_ns: quantile(0.99),
        p999_ns: quantile(0.999),
        max_ns: histogram.max(),
    })
}

/// All that was recorded; None where nothing was.
fn buckets(histogram: &Histogram<u64>) -> Option<Buckets> {
    let (up_to_ns, counts) =
        histogram.iter_recorded().map(|one| (one.value_iterated_to(), one.count_at_value())).unzip();
    (!histogram.is_empty()).then_some(Buckets { digits: histogram.sigfig(), up_to_ns, counts })
}

fn late(lag: &Histogram<u64>) -> Late {
    let quantile = |share| lag.value_at_quantile(share);
    Late { p50_ns: quantile(0.5), p99_ns: quantile(0.99), max_ns: lag.max() }
}

fn client(cpus: &[usize], threads: &[Worked], seconds: f64) -> Client {
    let thread = |worked: &Worked| Thread {
        cpu: cpus.get(worked.thread).copied(),
        user_s: worked.user_s,
        system_s: worked.system_s,
        wait_s: worked.wait_s,
        busy: (worked.user_s + worked.system_s) / seconds,
    };
    let threads: Vec<Thread> = threads.iter().map(thread).collect();
    let busy = threads.iter().map(|thread| thread.busy).fold(0.0, f64::max);
    let is_full = |thread: &Thread| thread.busy + thread.wait_s.unwrap_or(0.0) / seconds >= SATURATED;
    Client {
        user_s: threads.iter().map(|thread| thread.user_s).sum(),
        system_s: threads.iter().map(|thread| thread.system_s).sum(),
        busy,
        saturated: threads.iter().any(is_full),
        threads,
    }
}
