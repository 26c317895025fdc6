//! Waiting for the root process, and what was seen of it meanwhile.

use std::io;
use std::time::Instant;

use crate::common::clock::now_ns;
use crate::launch::bounds::Bounds;
use crate::launch::trace::Begun;
use crate::process::change::{Pid, next_change};
use crate::process::signals::{Came, Signals};
use crate::protocol::event::{Event, VERSION, emit};

/// What ended the waiting for the root process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// It was reaped, with this status.
    Ended(libc::c_int),
    /// The time is over.
    TimedOut,
    /// This program was asked to stop.
    Stopped(i32),
    /// It has taken more than it may.
    Exceeded,
}

/// The root process as it was seen while it ran.
pub struct Watched {
    pub why: Why,
    pub end_ns: u64,
    /// Time inside the launch that belongs to scans, not to the workload.
    pub paused_ns: u64,
    /// That of it in which the root stood still at its exit.
    pub looked_at: Option<[u64; 2]>,
    pub early_exits: u32,
    /// What the tree began, where it was followed.
    pub begun: Option<Begun>,
    /// What it took more of than it may, in words.
    pub exceeded: Option<String>,
    /// Scans that failed, in words.
    pub trouble: Vec<String>,
    looks: u32,
}

/// Processes that are told of one by one, some 50 MB of events: who makes them without end does not fill the disk.
const MOST_LOOKS: u32 = 200_000;

/// More troubles than this say nothing new.
const MOST_TROUBLE: usize = 20;

impl Watched {
    pub fn new() -> Watched {
        Watched {
            why: Why::TimedOut,
            end_ns: 0,
            paused_ns: 0,
            looked_at: None,
            early_exits: 0,
            begun: None,
            exceeded: None,
            trouble: Vec::new(),
            looks: 0,
        }
    }

    /// Whether one more process may be told of.
    pub fn may_look(&mut self) -> bool {
        if self.looks == MOST_LOOKS {
            self.complain(format!("more than {MOST_LOOKS} processes came and went: the rest was not looked at"));
            return false;
        }
        self.looks += 1;
        true
    }

    pub fn complain(&mut self, what: String) {
        if self.trouble.len() < MOST_TROUBLE {
            self.trouble.push(what);
        }
    }
}

/// Wait for a process that nobody traces.
pub fn wait_bare(
    root: Pid,
    signals: &Signals,
    deadline: Option<Instant>,
    bounds: Option<&mut Bounds>,
) -> anyhow::Result<Watched> {
    let mut watched = Watched::new();
    let mut bounds = bounds;
    watched.why = loop {
        let due = bounds.as_ref().and_then(|bounds| bounds.due());
        let until = deadline.into_iter().chain(due).min();
        match signals.wait(until.map(|until| until.saturating_duration_since(Instant::now()))) {
            Came::Stop(signal) => break Why::Stopped(signal),
            Came::Nothing if is_over(deadline) => break Why::TimedOut,
            Came::Nothing => {}
            Came::Child => {
                if let Some(status) = reaped(root)? {
                    break Why::Ended(status);
                }
            }
        }
        watched.exceeded = bounds.as_mut().and_then(|bounds| bounds.look());
        if watched.exceeded.is_some() {
            break Why::Exceeded;
        }
    };
    watched.end_ns = now_ns();
    Ok(watched)
}

pub fn is_over(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| Instant::now() >= deadline)
}

/// Reap all that has ended by now; the root's status, when it is among them.
pub fn reaped(root: Pid) -> io::Result<Option<libc::c_int>> {
    while let Some(change) = next_change()? {
        if change.pid == root && change.is_end() {
            return Ok(Some(change.status));
        }
    }
    Ok(None)
}

/// The `start` event, told once, when nothing is being timed.
pub struct Start(Option<Event>);

impl Start {
    pub fn new(t_ns: u64, pid: Pid) -> Start {
        let probe = env!("CARGO_PKG_VERSION").to_string();
        Start(Some(Event::Start { v: VERSION, t_ns, pid: pid as u32, probe }))
    }

    pub fn tell(&mut self) -> io::Result<()> {
        self.0.take().as_ref().map_or(Ok(()), emit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_of_a_tree_without_end_has_an_end() {
        let mut watched = Watched::new();
        assert_eq!((0..2 * MOST_LOOKS).filter(|_| watched.may_look()).count(), MOST_LOOKS as usize);
        assert_eq!(watched.trouble.len(), MOST_TROUBLE);
        assert!(watched.trouble[0].starts_with("more than 200000 processes"));
    }
}
