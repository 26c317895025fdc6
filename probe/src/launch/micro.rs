//! The launcher's side of a micro-workload: its lines are forwarded, its memory is looked at while it holds it, and
//! closing its stdin lets it go.

use std::io::{self, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Instant;

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::common::clock::now_ns;
use crate::common::lines::{Line, Lines};
use crate::launch::spec::{Barrier, Scan, Spec};
use crate::launch::watch::{Start, Watched, Why, is_over, reaped};
use crate::process::change::Pid;
use crate::process::signals::{Came, Signals};
use crate::protocol::event::{Event, Range, emit};
use crate::scan::scan_process;

/// The launcher's ends.
pub struct Pipes {
    /// The workload's stdin; None once it has been told to leave.
    release: Option<OwnedFd>,
    lines: OwnedFd,
    /// The workload waits to be let go, and has said so.
    is_ready: bool,
}

/// The workload's stdin and stdout, and the launcher's ends of them.
pub fn pipes() -> io::Result<(OwnedFd, OwnedFd, Pipes)> {
    let (stdin, release) = pipe_with(PipeFlags::CLOEXEC)?;
    let (lines, stdout) = pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&lines, true)?;
    Ok((stdin, stdout, Pipes { release: Some(release), lines, is_ready: false }))
}

/// Forward what it says until it has ended.
pub fn converse(
    spec: &Spec,
    root: Pid,
    mut pipes: Pipes,
    signals: &Signals,
    deadline: Instant,
    start: &mut Start,
) -> anyhow::Result<Watched> {
    let pending = signals.descriptor().context("signalfd")?;
    let mut lines = Lines::new(usize::MAX);
    let mut watched = Watched::new();
    let mut is_open = true;
    watched.why = loop {
        if is_open {
            is_open = drain(spec, root, &mut pipes, &mut lines, start, &mut watched)?;
        }
        if std::mem::take(&mut pipes.is_ready) {
            if let Some(barrier) = spec.barrier {
                meet(barrier, signals, deadline)?;
            }
            if let Some(release) = &pipes.release {
                rustix::io::write(release, b"g").context("letting the micro-workload go")?;
            }
        }
        match signals.wait(Some(std::time::Duration::ZERO)) {
            Came::Stop(signal) => break Why::Stopped(signal),
            Came::Child => {
                if let Some(status) = reaped(root)? {
                    break Why::Ended(status);
                }
            }
            Came::Nothing if is_over(Some(deadline)) => break Why::TimedOut,
            Came::Nothing => {
                let left = deadline.saturating_duration_since(Instant::now());
                let left = Timespec::try_from(left).context("time-out")?;
                let mut descriptors =
                    vec![PollFd::new(&pending, PollFlags::IN), PollFd::new(&pipes.lines, PollFlags::IN)];
                descriptors.truncate(if is_open { 2 } else { 1 });
                match poll(&mut descriptors, Some(&left)) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(error).context("poll"),
                }
            }
        }
    };
    watched.end_ns = now_ns();
    if is_open {
        drain(spec, root, &mut pipes, &mut lines, start, &mut watched)?;
    }
    if lines.finish().is_some() {
        watched.complain("the micro-workload ended in the middle of a line".into());
    }
    Ok(watched)
}

/// Forward the lines that are there. False: the workload has closed its stdout.
fn drain(
    spec: &Spec,
    root: Pid,
    pipes: &mut Pipes,
    lines: &mut Lines,
    start: &mut Start,
    watched: &mut Watched,
) -> anyhow::Result<bool> {
    let mut chunk = [0u8; 16 * 1024];
    loop {
        let length = match rustix::io::read(&pipes.lines, &mut chunk) {
            Ok(0) => return Ok(false),
            Ok(length) => length,
            Err(rustix::io::Errno::AGAIN) => return Ok(true),
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error).context("reading from the micro-workload"),
        };
        for line in lines.push(&chunk[..length]) {
            let heard_ns = now_ns();
            start.tell()?;
            let Line::Whole(line) = line else { unreachable!("there is no limit") };
            forward(&line)?;
            match serde_json::from_slice(&line) {
                Ok(Event::Phase { name, .. }) if name == "ready" => pipes.is_ready = true,
                Ok(Event::Hold { ranges }) => {
                    if spec.scan != Scan::None {
                        look(spec, root, &ranges, watched)?;
                    }
                    pipes.release = None;
                    watched.paused_ns += now_ns() - heard_ns;
                }
                Ok(_) => {}
                Err(error) => watched.complain(format!("the micro-workload said something unknown: {error}")),
            }
        }
    }
}

/// Say that this launcher is ready, and wait until all are. A signal or the deadline ends the waiting too: the caller
/// sees them next.
pub fn meet(barrier: Barrier, signals: &Signals, deadline: Instant) -> anyhow::Result<()> {
    // SAFETY: both descriptors were inherited for this purpose, nobody closes them, and they are only borrowed.
    let (ready, go) = unsafe { (BorrowedFd::borrow_raw(barrier.ready), BorrowedFd::borrow_raw(barrier.go)) };
    rustix::io::write(ready, b"r").context("barrier: ready")?;
    let pending = signals.descriptor().context("signalfd")?;
    let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now())).context("time-out")?;
    let mut descriptors = [PollFd::new(&go, PollFlags::IN), PollFd::new(&pending, PollFlags::IN)];
    match poll(&mut descriptors, Some(&left)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error).context("barrier: poll"),
    }
}

fn look(spec: &Spec, root: Pid, ranges: &[Range], watched: &mut Watched) -> anyhow::Result<()> {
    match scan_process(root as u32, root as u32, Some(ranges), spec.source) {
        Ok(coverage) => emit(&coverage)?,
        Err(error) => watched.complain(format!("cannot look at the pages of the micro-workload: {error:#}")),
    }
    Ok(())
}

fn forward(line: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(&[line, b"\n"].concat())?;
    out.flush()
}
