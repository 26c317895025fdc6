//! One thread and its connections: requests go out in batches, a readiness is one read, and nothing is allocated for an
//! operation.
//!
//! The clock is read once for each read of a socket: it is the time of all replies in it, and that of the requests that
//! follow on this connection at once. So putting requests together (some 50 ns each) counts as their latency.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};

use crate::common::clock::now_ns;
use crate::common::usage::{Usage, waited_s};
use crate::load::connection::{Connection, Sent};
use crate::load::fell::Fell;
use crate::load::lane::Lane;
use crate::load::order::{Order, Part, Task};
use crate::load::protocol::{Dialect, Parsed, Requests};
use crate::load::schedule::Places;
use crate::load::seconds::BySecond;
use crate::load::source::{Kind, Source};
use crate::load::tally::Tally;
use crate::load::world::World;

/// A batch ends here, so that large values do not pile up before they are sent.
const MOST_BATCH: usize = 256 << 10;
/// How long after the end of an open loop requests that are late are still sent.
const GRACE_NS: u64 = 2_000_000_000;
/// A server that says nothing for so long while requests are under way is given up.
const PATIENCE_NS: u64 = 60_000_000_000;
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
const TIMER: u64 = u64::MAX;

pub struct Worker<D> {
    world: Arc<World>,
    thread: usize,
    dialect: D,
    lanes: Vec<Lane>,
    /// While the mix is asked for.
    seconds: Option<BySecond>,
    connections: Vec<Connection>,
    epoll: OwnedFd,
    timer: OwnedFd,
    armed_ns: u64,
    scratch: Vec<u8>,
    under_way: u64,
}

impl<D: Dialect> Worker<D> {
    /// Open this thread's connections.
    pub fn open(world: Arc<World>, thread: usize) -> Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).context("epoll")?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC).context("timerfd")?;
        epoll::add(&epoll, &timer, epoll::EventData::new_u64(TIMER), epoll::EventFlags::IN).context("epoll")?;
        let (mut lanes, mut connections) = (Vec::new(), Vec::new());
        for (instance, address) in world.options.server.iter().enumerate() {
            let (group, place) = world.place(instance);
            let numbers = world.assignment.numbers(thread, place);
            if numbers.is_empty() {
                continue;
            }
            let first = connections.len();
            for _ in &numbers {
                let connection = Connection::open(address, world.secret.as_ref(), lanes.len())?;
                let data = epoll::EventData::new_u64(connections.len() as u64);
                epoll::add(&epoll, connection.socket(), data, epoll::EventFlags::IN).context("epoll")?;
                connections.push(connection);
            }
            lanes.push(Lane {
                instance,
                group,
                before: world.assignment.before(thread, place),
                places: Places { numbers, all: world.assignment.all() },
                connections: (first..connections.len()).collect(),
                source: Source::nothing(),
                schedule: None,
                queue: VecDeque::new(),
                tally: Tally::default(),
            });
        }
        let dialect = D::new(&world.options.key_name, &world.payloads);
        let scratch = Vec::with_capacity(2 * MOST_BATCH);
        let seconds = None;
        Ok(Self {
            world,
            thread,
            dialect,
            lanes,
            seconds,
            connections,
            epoll,
            timer,
            armed_ns: 0,
            scratch,
            under_way: 0,
        })
    }

    /// Carry out one order. All threads begin at the same time; each ends with its last reply.
    pub fn run(&mut self, order: &Order, stop: &AtomicBool) -> Result<Part> {
        self.prepare(order);
        sleep_until(order.start_ns);
        let (before, waited_before) = (Usage::of(libc::RUSAGE_THREAD), waited_s());
        let mut now = now_ns();
        let mut heard_ns = now;
        let mut events = Vec::with_capacity(256);
        if order.rate.is_none() {
            (0..self.connections.len()).try_for_each(|number| self.refill(number, order, now))?;
        }
        loop {
            if order.rate.is_some() {
                let is_over = self.send_due(order)?;
                if is_over && self.under_way == 0 {
                    break;
                }
            } else if self.under_way == 0 {
                break;
            }
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&TICK)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error).context("epoll"),
            }
            if stop.load(Ordering::Relaxed) {
                bail!("another thread has failed");
            }
            for event in &events {
                let (flags, data) = (event.flags, event.data.u64());
                if data == TIMER {
                    continue;
                }
                let number = data as usize;
                if flags.contains(epoll::EventFlags::OUT) {
                    self.flush(number)?;
                }
                if flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
                    now = self.receive(number, order)?;
                    heard_ns = now;
                    if order.rate.is_none() {
                        self.refill(number, order, now)?;
                    }
                }
            }
            if self.under_way > 0 && now_ns().saturating_sub(heard_ns) > PATIENCE_NS {
                bail!(self.fallen(self.silent(), "has not answered for a minute; is it stopped?"));
            }
        }
        let usage = Usage::of(libc::RUSAGE_THREAD).since(before);
        Ok(Part {
            thread: self.thread,
            end_ns: now.max(order.start_ns),
            usage,
            wait_s: waited_s().zip(waited_before).map(|(now, then)| now - then),
            seconds: self.seconds.take(),
            lanes: self.lanes.iter_mut().filter(|lane| lane.works(order)).map(Lane::told).collect(),
        })
    }

    fn prepare(&mut self, order: &Order) {
        self.lanes.iter_mut().for_each(|lane| lane.prepare(&self.world, order));
        for connection in &mut self.connections {
            connection.is_queued = order.rate.is_some();
        }
        self.seconds = matches!(order.task, Task::Mix { .. }).then(|| BySecond::new(order.start_ns));
        self.under_way = 0;
    }

    /// Closed loop: when all of a connection's requests are answered, the next batch.
    #[inline]
    fn refill(&mut self, number: usize, order: &Order, now: u64) -> Result<()> {
        let connection = &mut self.connections[number];
        let lane = &mut self.lanes[connection.lane];
        let is_idle = connection.waiting.is_empty();
        let is_over = order.end_ns.is_some_and(|end| now >= end);
        if !is_idle || is_over || (order.task == Task::Preload && lane.connections[0] != number) {
            return Ok(());
        }
        self.scratch.clear();
        while connection.waiting.len() < order.pipeline && self.scratch.len() < MOST_BATCH {
            let Some(op) = lane.source.draw() else {
                break;
            };
            let sent = Sent { at_ns: now, op };
            compose(self.dialect.requests(), &self.world, &mut self.scratch, sent);
            connection.waiting.push_back(sent);
        }
        self.under_way += connection.waiting.len() as u64;
        self.post(number)
    }

    /// Open loop: send what is due as far as there are connections for it, and wake up for the next. True: nothing is left.
    fn send_due(&mut self, order: &Order) -> Result<bool> {
        let mut wake_ns = u64::MAX;
        let mut is_over = true;
        let mut now = now_ns();
        for index in 0..self.lanes.len() {
            loop {
                let lane = &mut self.lanes[index];
                let Some(schedule) = &mut lane.schedule else {
                    break;
                };
                let Some(due) = schedule.due_ns() else {
                    break;
                };
                if order.end_ns.is_some_and(|end| now > end + GRACE_NS) {
                    lane.abandon(now, self.seconds.as_mut());
                    break;
                }
                is_over = false;
                if due > now {
                    wake_ns = wake_ns.min(due);
                    break;
                }
                let Some(number) = lane.queue.pop_front() else {
                    break;
                };
                let connection = &mut self.connections[number];
                // What is late is spread over the connections that can take it.
                let batch = 1 + schedule.backlog(now) as usize / (lane.queue.len() + 1);
                let most = order.pipeline.min(connection.waiting.len() + batch);
                self.scratch.clear();
                while connection.waiting.len() < most && self.scratch.len() < MOST_BATCH {
                    let Some(due) = schedule.due_ns().filter(|due| *due <= now) else {
                        break;
                    };
                    let Some(op) = lane.source.draw() else {
                        break;
                    };
                    schedule.advance();
                    lane.tally.lag.saturating_record(now - due);
                    let sent = Sent { at_ns: due, op };
                    compose(self.dialect.requests(), &self.world, &mut self.scratch, sent);
                    connection.waiting.push_back(sent);
                    self.under_way += 1;
                }
                connection.is_queued = connection.waiting.len() < order.pipeline;
                if connection.is_queued {
                    lane.queue.push_back(number);
                }
                self.post(number)?;
                now = now_ns();
            }
        }
        self.arm(wake_ns)?;
        Ok(is_over)
    }

    /// Have the timer end the waiting at `wake_ns`; setting it also clears that it went off before.
    fn arm(&mut self, wake_ns: u64) -> Result<()> {
        let wake_ns = if wake_ns == u64::MAX { 0 } else { wake_ns };
        if self.armed_ns == wake_ns {
            return Ok(());
        }
        self.armed_ns = wake_ns;
        let value = Timespec { tv_sec: (wake_ns / 1_000_000_000) as i64, tv_nsec: (wake_ns % 1_000_000_000) as _ };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &once).context("timerfd")?;
        Ok(())
    }

    /// Send what is in the scratch buffer.
    #[inline]
    fn post(&mut self, number: usize) -> Result<()> {
        if self.scratch.is_empty() {
            return Ok(());
        }
        let connection = &mut self.connections[number];
        let lane = &mut self.lanes[connection.lane];
        lane.tally.bytes_sent += self.scratch.len() as u64;
        match connection.send(&self.scratch) {
            Ok(false) => Ok(()),
            Ok(true) => self.watch(number, epoll::EventFlags::IN | epoll::EventFlags::OUT),
            Err(error) => bail!(self.fallen(number, &format!("does not take requests: {error}"))),
        }
    }

    fn flush(&mut self, number: usize) -> Result<()> {
        match self.connections[number].flush() {
            Ok(true) => Ok(()),
            Ok(false) => self.watch(number, epoll::EventFlags::IN),
            Err(error) => bail!(self.fallen(number, &format!("does not take requests: {error}"))),
        }
    }

    fn watch(&self, number: usize, flags: epoll::EventFlags) -> Result<()> {
        let data = epoll::EventData::new_u64(number as u64);
        epoll::modify(&self.epoll, self.connections[number].socket(), data, flags).context("epoll")
    }

    /// Read once and take the replies that are whole. Returns the time of reading.
    #[inline]
    fn receive(&mut self, number: usize, order: &Order) -> Result<u64> {
        let connection = &mut self.connections[number];
        let lane = &mut self.lanes[connection.lane];
        let filled = connection.fill();
        let now = now_ns();
        let (mut count, mut same, mut latency) = (0, 0, 0);
        let mut trouble = None;
        while !connection.input().is_empty() {
            let (reply, used) = match self.dialect.parse(connection.input()) {
                Parsed::Whole(reply, used) => (reply, used),
                Parsed::Partial => break,
                Parsed::Refused(words) => {
                    trouble = Some(format!("answered: {}", String::from_utf8_lossy(words)));
                    break;
                }
                Parsed::Wrong => {
                    trouble = Some(format!("does not speak {}", self.world.options.protocol.name()));
                    break;
                }
            };
            let Some(sent) = connection.waiting.front().copied() else {
                trouble = Some("answered what was not asked".into());
                break;
            };
            if let Some(words) = lane.judge(&self.world, sent, reply, order.task == Task::Touch) {
                trouble = Some(words);
                break;
            }
            connection.waiting.pop_front();
            connection.consume(used);
            lane.tally.bytes_received += used as u64;
            count += 1;
            let taken = now.saturating_sub(sent.at_ns);
            if taken != latency && same > 0 {
                lane.took(now, latency, same, self.seconds.as_mut());
                same = 0;
            }
            (latency, same) = (taken, same + 1);
        }
        if same > 0 {
            lane.took(now, latency, same, self.seconds.as_mut());
        }
        self.under_way -= count;
        lane.tally.count_in_second((now.saturating_sub(order.start_ns) / 1_000_000_000) as usize, count);
        if order.end_ns.is_none_or(|end| now <= end) {
            lane.tally.in_time += count;
        }
        if order.rate.is_some() && !connection.is_queued && connection.waiting.len() < order.pipeline {
            connection.is_queued = true;
            lane.queue.push_back(number);
        }
        match (trouble, filled) {
            (Some(words), _) => bail!(self.fallen(number, &words)),
            (None, Ok(true)) => Ok(now),
            (None, Ok(false) | Err(Errno::CONNRESET)) => {
                bail!(self.fallen(number, "closed a connection; has it ended?"))
            }
            (None, Err(error)) => bail!(self.fallen(number, &format!("broke a connection ({error}); has it ended?"))),
        }
    }

    /// A connection whose server owes a reply.
    fn silent(&self) -> usize {
        self.connections.iter().position(|connection| !connection.waiting.is_empty()).unwrap_or(0)
    }

    fn fallen(&self, number: usize, words: &str) -> Fell {
        let instance = self.lanes[self.connections[number].lane].instance;
        Fell(format!("{} at {} {words}", self.world.options.protocol.name(), self.world.options.server[instance]))
    }
}

#[inline]
fn compose(requests: &Requests, world: &World, out: &mut Vec<u8>, sent: Sent) {
    let key = sent.op.key;
    match sent.op.kind {
        Kind::Set => {
            let payload = world.payloads.of(key);
            requests.set(out, key, payload, world.payloads.bytes(payload));
        }
        Kind::Get | Kind::Absent => requests.get(out, key),
    }
}

fn sleep_until(moment_ns: u64) {
    std::thread::sleep(std::time::Duration::from_nanos(moment_ns.saturating_sub(now_ns())));
}
