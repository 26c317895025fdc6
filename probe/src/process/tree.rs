//! The tree of a workload: everything that descends from this process, as it is a subreaper (prctl(2)).
//!
//! A daemon that left its session and its parents is still a descendant, because orphans come back to the subreaper:
//! so nothing is left exactly when there is no child to wait for.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::process::change::{Change, Pid, next_change, resume};
use crate::process::signals::Signals;

/// How long processes may take to die of SIGKILL: tearing down hundreds of GiB takes seconds.
const PATIENCE: Duration = Duration::from_secs(60);
const PASS: Duration = Duration::from_millis(5);

/// What the killing came to.
#[derive(Debug, Default)]
pub struct Killed {
    /// Processes that were alive and were sent SIGKILL.
    pub count: u32,
    /// The ends that were seen meanwhile.
    pub ends: Vec<Change>,
}

/// What there is to the control groups of a tree: cgroup.kill (v2) kills it in one go, and what freezer.state (v1) froze
/// dies of no signal before it is thawed. What cgroup.freeze (v2) froze, or SIGSTOP stopped, does.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Groups {
    kill: Vec<PathBuf>,
    thaw: Vec<PathBuf>,
}

impl Groups {
    /// Of the groups with these cgroup.procs files.
    pub fn of(cgroup_procs: &[PathBuf]) -> Groups {
        let states = cgroup_procs.iter().map(|procs| procs.with_file_name("freezer.state"));
        Groups {
            kill: cgroup_procs.iter().filter_map(|procs| cgroup_kill_file(procs)).collect(),
            thaw: states.filter(|file| file.exists()).collect(),
        }
    }
}

/// Kill every descendant, and wait until none is left; `groups` are those that they are in.
pub fn kill_all(signals: &Signals, groups: &Groups) -> io::Result<Killed> {
    let started = Instant::now();
    let mut killed = Killed::default();
    let mut sent = BTreeSet::<Pid>::new();
    loop {
        loop {
            match next_change() {
                Ok(Some(change)) if change.is_end() => killed.ends.push(change),
                Ok(Some(change)) => resume(change.pid, 0),
                Ok(None) => break,
                Err(error) if error.raw_os_error() == Some(libc::ECHILD) => {
                    killed.count = sent.len() as u32;
                    return Ok(killed);
                }
                Err(error) => return Err(error),
            }
        }
        let alive = descendants(std::process::id() as Pid)?;
        if started.elapsed() > PATIENCE {
            let message = format!("still there {} s after SIGKILL: {alive:?}", PATIENCE.as_secs());
            return Err(io::Error::new(io::ErrorKind::TimedOut, message));
        }
        sent.extend(&alive);
        if !alive.is_empty() {
            groups.kill.iter().for_each(|file| tell_cgroup(file, "1"));
        }
        for pid in alive {
            // SAFETY: integers only. The number was read a moment ago and cannot have been reused by a stranger unless
            // its parent reaped it in between and the numbers wrapped around.
            unsafe { libc::kill(pid, libc::SIGKILL) };
            // A thread whose stop was reported before this began is reported no more, and in the stop at its exit no
            // signal wakes it.
            tasks(pid).for_each(|tid| resume(tid, 0));
        }
        // Not before all have been sent it: nothing of what was frozen runs on.
        groups.thaw.iter().for_each(|file| tell_cgroup(file, "THAWED"));
        signals.wait(Some(PASS));
    }
}

/// The threads of a process, none where it is gone.
fn tasks(pid: Pid) -> impl Iterator<Item = Pid> {
    let folder = fs::read_dir(format!("/proc/{pid}/task"));
    folder.into_iter().flatten().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// cgroup.kill beside cgroup.procs, where the kernel has it (v2, not the root) and this process is not in that group.
fn cgroup_kill_file(cgroup_procs: &std::path::Path) -> Option<PathBuf> {
    let file = cgroup_procs.with_file_name("cgroup.kill");
    let own = std::process::id().to_string();
    let holds_us = fs::read_to_string(cgroup_procs).is_ok_and(|pids| pids.lines().any(|pid| pid == own));
    (file.exists() && !holds_us).then_some(file)
}

fn tell_cgroup(file: &std::path::Path, word: &str) {
    // A group that is gone, or may not be killed by this user, leaves the work to the signals.
    let _ = fs::write(file, word);
}

/// The living (not zombie) descendants of a process, parents before children.
pub fn descendants(root: Pid) -> io::Result<Vec<Pid>> {
    let mut children: BTreeMap<Pid, Vec<(Pid, bool)>> = BTreeMap::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<Pid>().ok()) else { continue };
        // A process may leave between the listing and the reading.
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        if let Some((parent, is_dead)) = parse_stat(&stat) {
            children.entry(parent).or_default().push((pid, is_dead));
        }
    }
    let mut found = Vec::new();
    let mut open = vec![root];
    while let Some(parent) = open.pop() {
        for (pid, is_dead) in children.remove(&parent).unwrap_or_default() {
            if !is_dead {
                found.push(pid);
            }
            // The leader of a thread group may be a zombie while another thread has children.
            open.push(pid);
        }
    }
    Ok(found)
}

/// Parent and whether it is dead, from /proc/PID/stat (proc(5)). The name may hold spaces and parentheses.
fn parse_stat(stat: &str) -> Option<(Pid, bool)> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let threads: u32 = fields.nth(15)?.parse().ok()?;
    // A zombie leader with threads left is a living process.
    Some((parent, state == "X" || state == "Z" && threads <= 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    use crate::common::fuzz;

    #[test]
    fn stat_lines_with_awkward_names_are_read() {
        let rest = "4242 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 100 0 0";
        assert_eq!(parse_stat(&format!("43 (a) b (c) S {rest}")), Some((4242, false)));
        assert_eq!(parse_stat(&format!("43 (sh) Z {rest}")), Some((4242, true)));
        let threads = rest.replacen("20 0 1 0", "20 0 3 0", 1);
        assert_eq!(parse_stat(&format!("43 (sh) Z {threads}")), Some((4242, false)));
        assert_eq!(parse_stat("43 (sh"), None);
    }

    #[test]
    fn a_child_is_found() {
        let mut child = std::process::Command::new("sleep").arg("30").spawn().unwrap();
        let found = descendants(std::process::id() as Pid).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found.contains(&(child.id() as Pid)));
    }

    #[test]
    fn a_cgroup_file_without_a_kill_file_gives_none() {
        let folder = tempfile::tempdir().unwrap();
        let procs = folder.path().join("cgroup.procs");
        fs::write(&procs, "").unwrap();
        assert_eq!(cgroup_kill_file(&procs), None);
        fs::write(folder.path().join("cgroup.kill"), "").unwrap();
        assert_eq!(cgroup_kill_file(&procs), Some(folder.path().join("cgroup.kill")));
        fs::write(&procs, std::process::id().to_string()).unwrap();
        assert_eq!(cgroup_kill_file(&procs), None, "never kills itself");
    }

    #[test]
    fn a_freezer_beside_cgroup_procs_is_thawed() {
        let folder = tempfile::tempdir().unwrap();
        let procs = folder.path().join("cgroup.procs");
        fs::write(&procs, "").unwrap();
        assert_eq!(Groups::of(std::slice::from_ref(&procs)), Groups::default());
        let state = folder.path().join("freezer.state");
        fs::write(&state, "").unwrap();
        assert_eq!(Groups::of(&[procs]), Groups { kill: vec![], thaw: vec![state] });
    }

    proptest! {
        #![proptest_config(fuzz::config())]

        #[test]
        fn whatever_a_process_calls_itself_its_stat_is_read(
            text in fuzz::broken_text(&["43 (a) b (c) S 4242 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 100 0 0"]),
        ) {
            parse_stat(&text);
        }
    }
}
