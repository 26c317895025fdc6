//! The threads, each pinned to its CPU, and what they share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::clock::now_ns;
use crate::load::engine::Worker;
use crate::load::keys::Keys;
use crate::load::memcached::Memcached;
use crate::load::options::{Options, Protocol};
use crate::load::order::{Order, Part, Task};
use crate::load::payload::Payloads;
use crate::load::protocol::Dialect;
use crate::load::redis::Redis;
use crate::load::source::Shares;
use crate::spec::Usage;

/// Threads begin together, so long after they are told.
const HEAD_START_NS: u64 = 2_000_000;

/// The server failed: it closed, refused, or answered something else.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Fell(pub String);

/// Which thread has which connections: the instances follow each other in the numbering, and the connections of each
/// instance go round the threads, beginning with another one for each instance.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    pub threads: u64,
    pub instances: u64,
    pub connections: u64,
}

impl Layout {
    pub fn all(&self) -> u64 {
        self.instances * self.connections
    }

    fn thread(&self, instance: u64, connection: u64) -> u64 {
        (connection + instance) % self.threads
    }

    /// Numbers, among all, of the connections that a thread has to an instance.
    pub fn numbers(&self, thread: usize, instance: usize) -> Vec<u64> {
        let instance = instance as u64;
        let is_own = |connection: &u64| self.thread(instance, *connection) == thread as u64;
        (0..self.connections).filter(is_own).map(|connection| connection * self.instances + instance).collect()
    }

    /// How many connections to an instance the threads before this one have. The thread that has its first connection
    /// comes before all.
    pub fn before(&self, thread: usize, instance: usize) -> u64 {
        let turn = |thread: u64| (thread + self.threads - instance as u64 % self.threads) % self.threads;
        (0..self.connections)
            .filter(|connection| turn(self.thread(instance as u64, *connection)) < turn(thread as u64))
            .count() as u64
    }
}

/// What all threads read.
pub struct World {
    pub options: Options,
    pub layout: Layout,
    pub payloads: Payloads,
    pub shares: Shares,
}

impl World {
    pub fn new(options: Options) -> Self {
        let layout = Layout {
            threads: options.cpus.len().max(1) as u64,
            instances: options.server.len() as u64,
            connections: u64::from(options.connections),
        };
        let payloads = Payloads::new(&options.payload, options.seed);
        let keys = Keys::new(options.keys, options.popularity);
        let shares = Shares { keys, count: options.keys, sets: options.set_get.0, hits: options.hit_ratio };
        Self { options, layout, payloads, shares }
    }
}

/// All threads with their connections open. They end when it is dropped.
pub struct Fleet {
    pub world: Arc<World>,
    threads: Vec<Thread>,
    reports: Receiver<Result<Part>>,
    stop: Arc<AtomicBool>,
}

struct Thread {
    orders: Option<Sender<Order>>,
    handle: Option<JoinHandle<()>>,
}

/// What a phase is to be, without its times.
#[derive(Debug, Clone, Copy)]
pub struct Ask {
    pub task: Task,
    pub pipeline: usize,
    pub rate: Option<f64>,
    pub duration_ns: Option<u64>,
    pub operations: Option<u64>,
}

/// What all threads did in a phase.
#[derive(Debug)]
pub struct Done {
    pub ask: Ask,
    pub start_ns: u64,
    pub end_ns: u64,
    /// In the order of the threads.
    pub parts: Vec<Part>,
}

impl Fleet {
    /// Open all connections.
    pub fn open(options: Options) -> Result<Self> {
        let world = Arc::new(World::new(options));
        let stop = Arc::new(AtomicBool::new(false));
        let (report, reports) = channel();
        let (opened, openings) = channel();
        let mut threads = Vec::new();
        for number in 0..world.layout.threads as usize {
            let (orders, inbox) = channel();
            let (world, stop) = (Arc::clone(&world), Arc::clone(&stop));
            let (report, opened) = (report.clone(), opened.clone());
            let live = move || match world.options.protocol {
                Protocol::Redis => live::<Redis>(world, number, &inbox, &opened, &report, &stop),
                Protocol::Memcached => live::<Memcached>(world, number, &inbox, &opened, &report, &stop),
            };
            let handle = std::thread::Builder::new().name(format!("load-{number}")).spawn(live).context("a thread")?;
            threads.push(Thread { orders: Some(orders), handle: Some(handle) });
        }
        let fleet = Self { world, threads, reports, stop };
        for _ in 0..fleet.threads.len() {
            openings.recv().context("a thread has ended")??;
        }
        Ok(fleet)
    }

    /// Have all threads do one thing, and wait until all have. An error of one stops all.
    pub fn run(&self, ask: Ask) -> Result<Done> {
        let start_ns = now_ns() + HEAD_START_NS;
        let duration_ns = ask.duration_ns.or_else(|| Some((ask.operations? as f64 / ask.rate? * 1e9) as u64));
        let operations = match (ask.operations, ask.rate, ask.duration_ns) {
            (Some(operations), _, _) => operations,
            // Less a trifle: 0.02 s of 50 million a second are a million, not one more by rounding.
            (None, Some(rate), Some(duration)) => (rate * duration as f64 * 1e-9 - 1e-6).ceil() as u64,
            _ => u64::MAX / 2,
        };
        let end_ns = duration_ns.map(|duration| start_ns + duration);
        let order = Order { task: ask.task, start_ns, pipeline: ask.pipeline, rate: ask.rate, end_ns, operations };
        for thread in &self.threads {
            let sender = thread.orders.as_ref().context("the threads have ended")?;
            sender.send(order.clone()).map_err(|_| anyhow!("a thread has ended"))?;
        }
        let mut parts = Vec::new();
        let mut failure = None;
        for _ in 0..self.threads.len() {
            match self.reports.recv().context("a thread has ended")? {
                Ok(part) => parts.push(part),
                Err(error) => {
                    self.stop.store(true, Ordering::Relaxed);
                    failure.get_or_insert(error);
                }
            }
        }
        if let Some(error) = failure {
            return Err(error);
        }
        parts.sort_by_key(|part| part.thread);
        let end_ns = parts.iter().map(|part| part.end_ns).max().unwrap_or(start_ns);
        Ok(Done { ask, start_ns, end_ns, parts })
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in &mut self.threads {
            thread.orders = None;
            if let Some(handle) = thread.handle.take() {
                // A panic of the thread has been printed; there is nothing to add.
                let _ = handle.join();
            }
        }
    }
}

/// A thread's life: open the connections, carry out orders until there are no more.
fn live<D: Dialect>(
    world: Arc<World>,
    number: usize,
    orders: &Receiver<Order>,
    opened: &Sender<Result<()>>,
    report: &Sender<Result<Part>>,
    stop: &AtomicBool,
) {
    let worker = pin(&world.options.cpus, number).and_then(|()| Worker::<D>::open(world, number));
    // Nobody listens any more when the fleet is being given up.
    let mut worker = match worker {
        Ok(worker) => {
            let _ = opened.send(Ok(()));
            worker
        }
        Err(error) => {
            let _ = opened.send(Err(error));
            return;
        }
    };
    while let Ok(order) = orders.recv() {
        let _ = report.send(worker.run(&order, stop));
    }
}

fn pin(cpus: &[usize], number: usize) -> Result<()> {
    let Some(cpu) = cpus.get(number).copied() else {
        return Ok(());
    };
    if cpu >= CpuSet::MAX_CPU {
        return Err(Usage(format!("--cpus {cpu}: numbers go to {}", CpuSet::MAX_CPU - 1)).into());
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).with_context(|| format!("--cpus {cpu}: is it online and in this cpuset?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_connection_has_one_thread_and_the_threads_share_each_instance() {
        for (threads, instances, connections) in [(1, 1, 1), (2, 1, 5), (2, 2, 1), (3, 2, 7), (4, 3, 2)] {
            let layout = Layout { threads, instances, connections };
            let mut all = Vec::new();
            for instance in 0..instances as usize {
                let own: Vec<_> = (0..threads as usize).map(|thread| layout.numbers(thread, instance)).collect();
                let sizes = own.iter().map(Vec::len);
                assert!(sizes.clone().max().unwrap() - sizes.min().unwrap() <= 1, "{layout:?}");
                let mut ranges: Vec<_> = own
                    .iter()
                    .enumerate()
                    .map(|(thread, own)| (layout.before(thread, instance), own.len() as u64))
                    .collect();
                ranges.sort_unstable();
                let mut next = 0;
                for (before, count) in ranges.into_iter().filter(|range| range.1 > 0) {
                    assert_eq!(before, next, "{layout:?}");
                    next += count;
                }
                assert_eq!(next, connections);
                all.extend(own.concat());
            }
            all.sort_unstable();
            assert_eq!(all, (0..layout.all()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn one_connection_to_each_of_two_instances_keeps_two_threads_busy() {
        let layout = Layout { threads: 2, instances: 2, connections: 1 };
        assert_eq!((layout.numbers(0, 0), layout.numbers(1, 1)), (vec![0], vec![1]));
        assert_eq!((layout.before(0, 0), layout.before(1, 1)), (0, 0));
    }
}
