//! `count`: counters of processes that run already, for a part of their time that the caller begins and ends.
//!
//! Says `phase ready` when the counters are open, `timed` when they run (after a byte on stdin), `held` when they have
//! stopped (after the end of stdin), then `counters`. Each thread of each process and of all that descend from it has
//! counters of its own, which the threads and processes that it makes from then on inherit, as `perf stat --pid` does.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read};

use anyhow::{Context, bail};

use crate::common::clock::now_ns;
use crate::counters::perf::{Counters, Target};
use crate::process::change::Pid;
use crate::process::tree;
use crate::protocol::event::{Event, Scope, emit};

#[derive(Debug, clap::Args)]
pub struct CountArgs {
    /// A process to count, with all that descends from it (may be repeated)
    #[arg(long, required = true, num_args = 1.., value_name = "PID")]
    pid: Vec<Pid>,
    /// Counters by perf's own names
    #[arg(long, required = true, value_delimiter = ',', value_name = "NAMES")]
    counters: Vec<String>,
}

pub fn main(args: &CountArgs) -> anyhow::Result<()> {
    allow_many_files();
    let tasks = tasks(&args.pid)?;
    let mut counters = Counters::open(&args.counters, Target::Tasks(&tasks));
    say("ready")?;
    if io::stdin().lock().read(&mut [0]).context("stdin")? == 0 {
        bail!("stdin ended before the counting began");
    }
    counters.enable();
    say("timed")?;
    io::copy(&mut io::stdin().lock(), &mut io::sink()).context("stdin")?;
    counters.disable();
    say("held")?;
    emit(&Event::Counters { scope: Scope::Timed, values: counters.read() })?;
    Ok(())
}

fn say(name: &str) -> io::Result<()> {
    emit(&Event::Phase { t_ns: now_ns(), name: name.into() })
}

/// The threads of the processes and of their descendants. A process that has gone is left with its own number, so that
/// opening it fails and it is counted as lost.
fn tasks(pids: &[Pid]) -> io::Result<Vec<Pid>> {
    let mut processes: BTreeSet<Pid> = pids.iter().copied().collect();
    for pid in pids {
        processes.extend(tree::descendants(*pid)?);
    }
    Ok(processes.into_iter().flat_map(threads).collect())
}

fn threads(pid: Pid) -> Vec<Pid> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else { return vec![pid] };
    let found: Vec<Pid> = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    if found.is_empty() { vec![pid] } else { found }
}

/// A server of a thousand threads needs a thousand descriptors a counter: the soft limit becomes the hard one.
fn allow_many_files() {
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current = limit.maximum;
    // Where this is refused, a counter that finds no descriptor says so.
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, limit);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_threads_and_descendants_are_found_and_what_has_gone_stays_named() {
        let own = std::process::id() as Pid;
        let mut child = std::process::Command::new("sleep").arg("30").spawn().unwrap();
        let found = tasks(&[own]).unwrap();
        let pid = child.id() as Pid;
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found.contains(&own) && found.contains(&pid), "{found:?}");
        // SAFETY: no arguments.
        let this_thread = unsafe { libc::gettid() };
        assert!(found.contains(&this_thread));
        assert_eq!(tasks(&[pid]).unwrap(), [pid]);
    }
}
