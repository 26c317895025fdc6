//! The load generator: redis and memcached over TCP and unix sockets, from threads pinned to their own CPUs.
//!
//! One invocation goes through the phases that were asked for, in order: preload, touch, lead, timed (or a search,
//! or groups of servers in turns), over the same connections. What it found is said at the end, in one event for
//! each group.
//!
//! `common` and `protocol` may be imported here. A new protocol of servers is a file like `redis`, a `Dialect`; what keys
//! are asked for goes into `keys` and `source`, what is counted of replies into `lane`, `tally` and `seconds`, and what is
//! said of that into `report`. What a thread does in a phase knows nothing of turns: `visits` asks for one phase after the other.

mod admin;
mod connection;
mod engine;
mod fell;
mod fleet;
mod keys;
mod lane;
mod memcached;
mod options;
mod order;
mod payload;
mod protocol;
mod redis;
mod report;
mod schedule;
mod search;
mod seconds;
mod secret;
mod source;
mod tally;
mod times;
mod total;
mod turns;
mod visits;
mod world;

use std::io::{self, Read};

use anyhow::{Result, bail};

use crate::common::clock::now_ns;
use crate::common::mistake::Mistake;
use crate::protocol::event::{Event, Fault, emit};
use crate::protocol::load::{Load, Search, Stored, Timed, Touched};
use fell::Fell;
use fleet::{Ask, Done, Fleet};
pub use options::Options;
use order::Task;
use world::World;

/// Requests under way while storing and touching: it does not depend on what is measured.
const BULK_PIPELINE: usize = 1024;
const TOUCH_PIPELINE: usize = 16;

/// The phases that began, with their times; said when nothing is measured any more.
struct Phases(Vec<(&'static str, u64)>);

impl Phases {
    fn begin(&mut self, name: &'static str) {
        self.0.push((name, now_ns()));
    }

    /// The phase that began last has ended, and its times are known.
    fn end(&mut self, start_ns: u64, end_ns: u64) {
        if let Some((_, t_ns)) = self.0.last_mut() {
            *t_ns = start_ns;
        }
        self.0.push(("held", end_ns));
    }

    fn is_timed(&self) -> bool {
        self.0.iter().any(|(name, _)| *name == "timed")
    }

    fn emit(&self) -> io::Result<()> {
        self.0.iter().try_for_each(|(name, t_ns)| emit(&Event::Phase { t_ns: *t_ns, name: (*name).into() }))
    }
}

/// Do what the options say and say what came of it; a failure too.
pub fn main(options: Options) -> Result<()> {
    let mut phases = Phases(Vec::new());
    match work(&options, &mut phases) {
        Ok(fleet) => {
            if options.hold {
                emit(&Event::Hold { ranges: Vec::new() })?;
                io::copy(&mut io::stdin().lock(), &mut io::sink())?;
            }
            drop(fleet);
            Ok(())
        }
        Err(error) => {
            let is_workload = error.is::<Mistake>() || error.is::<Fell>();
            let fault = if is_workload { Fault::Workload } else { Fault::Host };
            let before_timed = !phases.is_timed();
            phases.emit()?;
            emit(&Event::Error { fault, before_timed, message: format!("load: {error:#}") })?;
            Err(error)
        }
    }
}

fn work(options: &Options, phases: &mut Phases) -> Result<Fleet> {
    options.check()?;
    phases.begin("setup");
    let fleet = Fleet::open(options.clone())?;
    let mut said = vec![nothing(options); options.slices.groups as usize];
    if options.preload {
        phases.begin("preload");
        let stored = preload(&fleet)?;
        for (group, load) in said.iter_mut().enumerate() {
            let counts = stored.counts[fleet.world.servers(group)].to_vec();
            load.stored = Some(Stored { counts, ..stored.clone() });
        }
    }
    if options.touch {
        phases.begin("touch");
        let done = fleet.run(Ask::every_key(Task::Touch, TOUCH_PIPELINE.max(options.pipeline as usize)))?;
        let touched = Touched { keys: options.keys, wall_ns: done.wall_ns() };
        said.iter_mut().for_each(|load| load.touched = Some(touched.clone()));
    }
    let mut slowest = 0.0;
    if !options.lead.is_zero() {
        phases.begin("lead");
        slowest = visits::lead(&fleet)?;
    }
    if options.is_timed() {
        if options.gate {
            pass()?;
        }
        phases.begin("timed");
        if options.slices.turns.is_some() {
            let visits = visits::visit(&fleet, options.slices.operations(slowest))?;
            phases.end(visits.start_ns, visits.end_ns);
            said.iter_mut().zip(visits.timed).for_each(|(load, timed)| load.timed = Some(timed));
        } else {
            // Without turns there is one group.
            measure(&fleet, &mut said[0], phases)?;
        }
    }
    if !phases.0.iter().any(|(name, _)| *name == "held") {
        phases.begin("held");
    }
    phases.emit()?;
    said.into_iter().try_for_each(|load| emit(&Event::Load(Box::new(load))))?;
    Ok(fleet)
}

fn nothing(options: &Options) -> Load {
    Load {
        protocol: options.protocol.name().into(),
        connections: options.connections,
        pipeline: options.pipeline,
        stored: None,
        touched: None,
        timed: None,
        search: None,
    }
}

/// The timed phase or the search, of all servers at once.
fn measure(fleet: &Fleet, said: &mut Load, phases: &mut Phases) -> Result<()> {
    let options = &fleet.world.options;
    if let Some(sla) = options.sla {
        let (search, timed) = find_rate(fleet, sla)?;
        said.search = Some(search);
        said.timed = Some(timed);
    } else {
        let done = fleet.run(Ask::mix(options, 2))?;
        phases.end(done.start_ns, done.end_ns);
        said.timed = Some(report::timed(&fleet.world, &done));
    }
    Ok(())
}

/// Say `ready`, and wait to be let go. A client whose launcher has gone ends here.
fn pass() -> Result<()> {
    emit(&Event::Phase { t_ns: now_ns(), name: "ready".into() })?;
    match io::stdin().lock().read(&mut [0])? {
        0 => bail!("--gate: stdin ended before the timed phase was let go"),
        _ => Ok(()),
    }
}

/// Store all, and have each server confirm how much it holds.
fn preload(fleet: &Fleet) -> Result<Stored> {
    let done = fleet.run(Ask::every_key(Task::Preload, BULK_PIPELINE))?;
    let (options, secret) = (&fleet.world.options, fleet.world.secret.as_ref());
    let counts: Vec<u64> =
        options.server.iter().map(|server| admin::count(options.protocol, server, secret)).collect::<Result<_>>()?;
    for (count, server) in counts.iter().zip(&options.server) {
        if *count != options.keys {
            bail!(Fell(format!(
                "{} at {server} holds {count} items after {} were stored; start it empty, and with enough memory to \
                 evict nothing",
                options.protocol.name(),
                options.keys
            )));
        }
    }
    Ok(stored(&fleet.world, &done, counts))
}

fn stored(world: &World, done: &Done, counts: Vec<u64>) -> Stored {
    let (name, keys) = (&world.options.key_name, world.options.keys);
    let mut digest = world.payloads.digest();
    name.before.bytes().chain([0]).chain(name.after.bytes()).for_each(|byte| digest.add(u64::from(byte)));
    let mut bytes = 0;
    for key in 0..keys {
        let payload = world.payloads.of(key);
        world.payloads.add_to(&mut digest, payload);
        bytes += name.length(key) as u64 + u64::from(payload.size);
    }
    digest.add(bytes);
    Stored { keys, bytes, hash: digest.hex(), counts, wall_ns: done.wall_ns() }
}

/// A pilot in the closed loop, the search, and the last phase again at the rate found.
fn find_rate(fleet: &Fleet, sla: options::Sla) -> Result<(Search, Timed)> {
    let options = &fleet.world.options;
    let measure = |stream, rate| -> Result<Timed> {
        let done = fleet.run(Ask { rate, ..Ask::mix(options, stream) })?;
        Ok(report::timed(&fleet.world, &done))
    };
    let pilot = measure(2, None)?;
    let mut stream = 2;
    let probe = |rate| {
        stream += 1;
        measure(stream, Some(rate)).map(|timed| search::probed(&timed))
    };
    let found = search::search(sla, pilot.achieved_rate, options.repeats, options.resolution, probe)?;
    let timed = match found.rate {
        Some(rate) => measure(2, Some(rate))?,
        None => pilot,
    };
    Ok((found, timed))
}
