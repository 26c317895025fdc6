//! A guardian above the launcher: should the launcher itself be killed, the tree comes back to the guardian
//! (subreaper), which kills it. Should the guardian be killed, the launcher gets SIGTERM, and kills the tree.
//!
//! The one fork of this program is here: before anything is measured, from a process of a few MiB.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::process::ExitCode;

use anyhow::Context;
use rustix::process::{Signal, getpid, set_child_subreaper, set_parent_process_death_signal};

use crate::common::complain::complain;
use crate::process::change::{Pid, next_change};
use crate::process::signals::{Came, Signals};
use crate::process::tree::{self, Groups};
use crate::protocol::event::{self, Event, Fault};

/// Run `work` in a child, pass on what asks it to stop, and leave nothing behind. Returns the child's status.
/// `work` gets the signals, blocked; what it starts enters `groups`. Must be called while this process has one thread.
pub fn guarded(groups: &Groups, work: impl FnOnce(&Signals) -> ExitCode) -> anyhow::Result<ExitCode> {
    let signals = Signals::block().context("cannot block signals")?;
    stand_between().context("cannot become a subreaper with a parent-death signal")?;
    let guardian = std::process::id();
    // SAFETY: one thread, so the child has a whole copy of this process.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()).context("cannot fork"),
        0 => Ok(in_child(guardian, || work(&signals))),
        launcher => watch(launcher, groups, &signals),
    }
}

/// Orphans below this process become its children, and it gets SIGTERM when its parent dies.
fn stand_between() -> io::Result<()> {
    set_child_subreaper(Some(getpid()))?;
    Ok(set_parent_process_death_signal(Some(Signal::TERM))?)
}

/// A group of its own, so that a terminal or a killpg reaches the guardian alone, which passes it on. Where there is a
/// terminal, a session of its own too: a workload cannot open it as /dev/tty and type into it. Elsewhere the session
/// stays, as the kernel's scheduler shares out CPU time by sessions (autogroup).
fn set_apart() -> io::Result<()> {
    let terminal = File::options().read(true).custom_flags(libc::O_NOCTTY | libc::O_NONBLOCK).open("/dev/tty");
    match terminal {
        Ok(_) => Ok(rustix::process::setsid().map(|_| ())?),
        Err(_) => Ok(rustix::process::setpgid(None, None)?),
    }
}

fn in_child(guardian: u32, work: impl FnOnce() -> ExitCode) -> ExitCode {
    let prepared = set_apart().and_then(|()| stand_between());
    if let Err(error) = prepared {
        complain(error);
        return ExitCode::FAILURE;
    }
    if std::os::unix::process::parent_id() != guardian {
        return ExitCode::FAILURE;
    }
    work()
}

fn watch(launcher: Pid, groups: &Groups, signals: &Signals) -> anyhow::Result<ExitCode> {
    loop {
        match signals.wait(None) {
            // SAFETY: the launcher is our child and has not been reaped.
            Came::Stop(signal) => unsafe {
                libc::kill(launcher, signal);
            },
            Came::Child | Came::Nothing => {
                while let Ok(Some(change)) = next_change() {
                    if change.pid == launcher && change.is_end() {
                        let left = tree::kill_all(signals, groups).context("cannot kill what the launcher left")?;
                        if left.count > 0 {
                            complain(format_args!("killed {} processes that the launcher left", left.count));
                        }
                        return finish(change.status);
                    }
                }
            }
        }
    }
}

fn finish(status: libc::c_int) -> anyhow::Result<ExitCode> {
    if libc::WIFEXITED(status) {
        return Ok(ExitCode::from(libc::WEXITSTATUS(status) as u8));
    }
    let message = format!("the launcher was killed by signal {}", libc::WTERMSIG(status));
    event::emit(&Event::Error { fault: Fault::Host, before_timed: false, message: message.clone() })?;
    anyhow::bail!(message)
}
