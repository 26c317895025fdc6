//! Waiting for the root process, and what was seen of it meanwhile.

use std::io;
use std::time::Instant;

use crate::common::clock::now_ns;
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
}

/// The root process as it was seen while it ran.
pub struct Watched {
    pub why: Why,
    pub end_ns: u64,
    /// Time inside the launch that belongs to scans, not to the workload.
    pub paused_ns: u64,
    pub early_exits: u32,
    /// Scans that failed, in words.
    pub trouble: Vec<String>,
}

/// Wait for a process that nobody traces. Also the way in which `bench-launch` waits.
pub fn wait_bare(root: Pid, signals: &Signals, deadline: Option<Instant>) -> anyhow::Result<Watched> {
    let why = loop {
        match signals.wait(deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))) {
            Came::Stop(signal) => break Why::Stopped(signal),
            Came::Nothing if is_over(deadline) => break Why::TimedOut,
            Came::Nothing => {}
            Came::Child => {
                if let Some(status) = reaped(root)? {
                    break Why::Ended(status);
                }
            }
        }
    };
    Ok(Watched { why, end_ns: now_ns(), paused_ns: 0, early_exits: 0, trouble: Vec::new() })
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
