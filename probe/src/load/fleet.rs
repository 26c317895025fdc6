//! The threads, each pinned to its CPU, and what they share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::common::clock::now_ns;
use crate::common::mistake::Mistake;
use crate::load::engine::Worker;
use crate::load::memcached::Memcached;
use crate::load::options::{Options, Protocol};
use crate::load::order::{Order, Part, Task};
use crate::load::protocol::Dialect;
use crate::load::redis::Redis;
use crate::load::world::World;

/// Threads begin together, so long after they are told.
const HEAD_START_NS: u64 = 2_000_000;

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
    /// Only the connections to this group's servers work; None: all.
    pub group: Option<usize>,
}

impl Ask {
    /// The mix as the options have it.
    pub fn mix(options: &Options, stream: u64) -> Self {
        Self {
            task: Task::Mix { stream },
            pipeline: options.pipeline as usize,
            rate: options.rate,
            duration_ns: options.duration.map(|duration| duration.as_nanos() as u64),
            operations: options.operations,
            group: None,
        }
    }

    pub fn every_key(task: Task, pipeline: usize) -> Self {
        Self { task, pipeline, rate: None, duration_ns: None, operations: None, group: None }
    }
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

impl Done {
    /// From the first request to the last reply.
    pub fn wall_ns(&self) -> u64 {
        self.end_ns - self.start_ns
    }

    pub fn operations(&self) -> u64 {
        self.parts.iter().flat_map(|part| &part.lanes).map(|lane| lane.tally.operations()).sum()
    }
}

impl Fleet {
    /// Open all connections.
    pub fn open(options: Options) -> Result<Self> {
        let world = Arc::new(World::new(options)?);
        let stop = Arc::new(AtomicBool::new(false));
        let (report, reports) = channel();
        let (opened, openings) = channel();
        let mut threads = Vec::new();
        for number in 0..world.assignment.threads as usize {
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
        let Ask { task, pipeline, rate, group, .. } = ask;
        let order = Order { task, start_ns, pipeline, rate, end_ns, operations, group };
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
        return Err(Mistake(format!("--cpus {cpu}: numbers go to {}", CpuSet::MAX_CPU - 1)).into());
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).with_context(|| format!("--cpus {cpu}: is it online and in this cpuset?"))
}
