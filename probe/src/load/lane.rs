//! The connections of one thread to one instance: what they draw, when it is due, and what they counted.

use std::collections::VecDeque;

use crate::common::random::mix;
use crate::load::connection::Sent;
use crate::load::order::{LanePart, Order, Task};
use crate::load::protocol::Reply;
use crate::load::schedule::{Places, Schedule};
use crate::load::seconds::BySecond;
use crate::load::source::{Drawn, Kind, Source};
use crate::load::tally::Tally;
use crate::load::world::World;

/// The connections of one thread to one instance.
pub struct Lane {
    pub instance: usize,
    pub group: usize,
    /// Those of the group's connections: they do not depend on which group it is.
    pub places: Places,
    pub connections: Vec<usize>,
    /// How many connections of other threads to this instance come before.
    pub before: u64,
    pub source: Source,
    /// Open loop: the intended times, and the connections that can take a request.
    pub schedule: Option<Schedule>,
    pub queue: VecDeque<usize>,
    pub tally: Tally,
}

impl Lane {
    pub fn works(&self, order: &Order) -> bool {
        order.group.is_none_or(|group| group == self.group)
    }

    /// Get ready for an order: what to draw, when, and nothing counted.
    pub fn prepare(&mut self, world: &World, order: &Order) {
        if !self.works(order) {
            (self.source, self.schedule) = (Source::nothing(), None);
            return;
        }
        let (keys, each) = (world.options.keys, u64::from(world.options.connections));
        let own = self.connections.len() as u64;
        let part = |count: u64| (u128::from(keys) * u128::from(count) / u128::from(each)) as u64;
        self.source = match order.task {
            Task::Preload if self.before > 0 => Source::nothing(),
            Task::Preload => Source::Each { kind: Kind::Set, next: 0, end: keys },
            Task::Touch => Source::Each { kind: Kind::Get, next: part(self.before), end: part(self.before + own) },
            Task::Mix { stream } => {
                let seed = mix(mix(world.options.seed ^ stream << 32).wrapping_add(self.places.numbers[0]));
                let share = self.places.share(order.operations);
                Source::Drawn(Box::new(Drawn::new(seed, world.shares.clone(), share)))
            }
        };
        let grid = |rate| Schedule::new(&self.places, order.start_ns, rate, order.operations);
        self.schedule = order.rate.map(grid);
        self.queue = if order.rate.is_some() { self.connections.iter().copied().collect() } else { VecDeque::new() };
        self.tally = Tally::default();
    }

    /// What it did; its counts are gone.
    pub fn told(&mut self) -> LanePart {
        LanePart { instance: self.instance, digest: self.source.digest(), tally: std::mem::take(&mut self.tally) }
    }

    /// The time is over: what was never sent counts with the age it has reached.
    #[cold]
    pub fn abandon(&mut self, now: u64, mut seconds: Option<&mut BySecond>) {
        let Some(schedule) = &mut self.schedule else {
            return;
        };
        while let Some(due) = schedule.due_ns() {
            let age = now.saturating_sub(due);
            self.tally.latency.saturating_record(age);
            if let Some(seconds) = &mut seconds {
                seconds.record(now, age, 1, self.instance);
            }
            self.tally.lag.saturating_record(age);
            self.tally.unsent += 1;
            schedule.advance();
        }
    }

    /// `count` operations that were answered at `now` took as long.
    #[inline]
    pub fn took(&mut self, now: u64, latency_ns: u64, count: u64, seconds: Option<&mut BySecond>) {
        self.tally.latency.saturating_record_n(latency_ns, count);
        if let Some(seconds) = seconds {
            seconds.record(now, latency_ns, count, self.instance);
        }
    }

    /// Count a reply, or say what is wrong with it.
    #[inline]
    pub fn judge(&mut self, world: &World, sent: Sent, reply: Reply<'_>, is_compared: bool) -> Option<String> {
        let key = sent.op.key;
        match (sent.op.kind, reply) {
            (Kind::Set, Reply::Stored) => self.tally.sets += 1,
            (Kind::Absent, Reply::Miss) => self.tally.misses += 1,
            (Kind::Get, Reply::Miss) if is_compared => {
                return Some(format!("does not have key number {key}: is it filled, and with enough memory for it?"));
            }
            (Kind::Get, Reply::Miss) => {
                self.tally.misses += 1;
                self.tally.lost += 1;
            }
            (Kind::Get, Reply::Value(value)) => {
                let payload = world.payloads.of(key);
                let is_same = value.len() == payload.size as usize;
                if !is_same || (is_compared && value != world.payloads.bytes(payload)) {
                    let (has, due) = (value.len(), payload.size);
                    return Some(format!(
                        "has another value of {has} B for key number {key}, not the one of {due} B; was it filled with another \
                     --seed or --payload?"
                    ));
                }
                self.tally.hits += 1;
            }
            (Kind::Absent, Reply::Value(_)) => {
                return Some(format!("has key number {key}, which is above --keys; was it filled with more keys?"));
            }
            (Kind::Set, _) | (_, Reply::Stored) => return Some("answered another request".into()),
        }
        None
    }
}
