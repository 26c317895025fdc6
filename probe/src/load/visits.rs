//! Groups of servers that are visited in turns: one works, the others are idle, and each is summed over its own turns.
//!
//! All turns are the same number of operations, and the r-th turn of every group is the same sequence of them: groups
//! differ in the time that they take, in nothing else. The first part of a turn meets caches that another group has left
//! behind; it is a phase of its own, which nothing counts.

use anyhow::Result;

use crate::load::fleet::{Ask, Done, Fleet};
use crate::load::report;
use crate::load::total::Total;
use crate::protocol::load::{Timed, Turns};

/// The timed phase of all groups.
pub struct Visits {
    pub start_ns: u64,
    pub end_ns: u64,
    /// In the order of the groups.
    pub timed: Vec<Timed>,
}

/// Ask each group for the untimed mix, in the order in which they will first be visited. Returns the lowest rate.
pub fn lead(fleet: &Fleet) -> Result<f64> {
    let options = &fleet.world.options;
    let duration_ns = Some(options.lead.as_nanos() as u64);
    let mut slowest = f64::INFINITY;
    for group in options.slices.first_round() {
        let ask = Ask { duration_ns, operations: None, group: Some(group), ..Ask::mix(options, 1) };
        let done = fleet.run(ask)?;
        slowest = slowest.min(done.operations() as f64 / (done.wall_ns().max(1) as f64 * 1e-9));
    }
    Ok(slowest)
}

/// Visit the groups in the order of --turns, for `operations` each time.
pub fn visit(fleet: &Fleet, operations: u64) -> Result<Visits> {
    let options = &fleet.world.options;
    let washed = options.slices.washed(operations);
    let mut groups: Vec<Group> = (0..options.slices.groups as usize).map(|group| Group::new(fleet, group)).collect();
    let (mut start_ns, mut end_ns) = (None, 0);
    for (group, round) in options.slices.turns.iter().flat_map(|turns| turns.rounds()) {
        let part = |stream, operations| {
            fleet.run(Ask { operations: Some(operations), group: Some(group), ..Ask::mix(options, stream) })
        };
        let wash_out = if washed > 0 { Some(part(2 + 2 * round, washed)?) } else { None };
        let counted = part(3 + 2 * round, operations - washed)?;
        start_ns.get_or_insert(wash_out.as_ref().unwrap_or(&counted).start_ns);
        end_ns = counted.end_ns;
        groups[group].add(wash_out.as_ref(), &counted);
    }
    let timed = groups.into_iter().map(|group| group.told(fleet, operations)).collect();
    Ok(Visits { start_ns: start_ns.unwrap_or(end_ns), end_ns, timed })
}

/// The sum of a group's turns.
struct Group {
    total: Total,
    wall_ns: u64,
    washed: u64,
    turn_ns: Vec<u64>,
}

impl Group {
    fn new(fleet: &Fleet, group: usize) -> Self {
        Self { total: Total::new(fleet.world.servers(group)), wall_ns: 0, washed: 0, turn_ns: Vec::new() }
    }

    fn add(&mut self, wash_out: Option<&Done>, counted: &Done) {
        if let Some(done) = wash_out {
            self.total.follow(done);
            self.washed += done.operations();
            self.wall_ns += done.wall_ns();
        }
        self.total.add(counted);
        self.wall_ns += counted.wall_ns();
        self.turn_ns.push(counted.wall_ns());
    }

    fn told(self, fleet: &Fleet, slice_operations: u64) -> Timed {
        let world = &fleet.world;
        let timed = report::told(world, &Ask::mix(&world.options, 0), &self.total);
        let turns = Turns {
            count: self.turn_ns.len() as u64,
            slice_operations,
            washed: self.washed,
            operations: self.washed + timed.operations,
            wall_ns: self.wall_ns,
            turn_ns: self.turn_ns,
        };
        // Seconds of several turns do not follow each other.
        Timed { per_second: Vec::new(), seconds: None, stalls: Vec::new(), turns: Some(turns), ..timed }
    }
}
