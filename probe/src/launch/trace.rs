//! Following a tree by ptrace, to see each process once more before its memory goes.
//!
//! Only PTRACE_SEIZE: it sends no signals, and group-stops stay group-stops (PTRACE_LISTEN). The stops used are
//! fork, vfork, clone (who is there), exec (a new memory), and exit (the memory is still mapped). A process is looked
//! at when the last thread of its group stops for exit: the memory is shared until then. A child that shares its
//! parent's memory (vfork, posix_spawn) has none of its own until its exec. See ptrace(2).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant};

use crate::process::change::{Change, Pid, next_change, resume};
use crate::process::signals::Signals;

const OPTIONS: libc::c_int = libc::PTRACE_O_EXITKILL
    | libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEEXEC
    | libc::PTRACE_O_TRACEEXIT;

/// How long `hold` waits for the others to stop. A parent inside vfork(2) does not stop before its child's exec.
const HOLD_LIMIT: Duration = Duration::from_secs(1);

const KCMP_VM: libc::c_int = 1;

/// Attach to a child; if this process dies, the kernel kills all that it follows.
pub fn seize(pid: Pid) -> io::Result<()> {
    request(libc::PTRACE_SEIZE, pid, OPTIONS as libc::c_long).map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("ptrace: {error} (is kernel.yama.ptrace_scope 3, or a debugger attached?)"),
        )
    })
}

/// Wait until a seized child has executed its program; it is left stopped there. When it says that it `failed`, its
/// end is awaited instead.
pub fn wait_for_exec(pid: Pid, failed: impl Fn() -> bool) -> io::Result<()> {
    loop {
        let mut status = 0;
        // SAFETY: the status is a live local.
        if unsafe { libc::waitpid(pid, &mut status, libc::__WALL) } != pid {
            return Err(io::Error::last_os_error());
        }
        if !libc::WIFSTOPPED(status) {
            return if failed() { Ok(()) } else { Err(io::Error::other("the child was killed before its exec")) };
        }
        match status >> 16 {
            libc::PTRACE_EVENT_EXEC => return Ok(()),
            0 => resume(pid, libc::WSTOPSIG(status)),
            _ => resume(pid, 0),
        }
    }
}

/// What a change of state means for the caller.
#[derive(Debug, PartialEq, Eq)]
pub enum Move {
    /// Dealt with.
    Nothing,
    /// The last thread `task` of process `pid` is stopped with the memory still mapped; `Tracer::release` it.
    Leaving { pid: Pid, task: Pid },
}

#[derive(Debug, Default)]
struct Group {
    threads: BTreeSet<Pid>,
    /// Its memory is its parent's: a vfork child before its exec.
    is_borrower: bool,
    /// Its memory is a copy of its parent's: a fork child before its exec.
    is_copy: bool,
}

/// The processes of one tree.
pub struct Tracer {
    root: Pid,
    groups: BTreeMap<Pid, Group>,
    /// Threads and processes that showed themselves before their parent's report of them. They may be gone by then.
    unreported: BTreeSet<Pid>,
    unseen: u32,
    begun: Begun,
    root_status: Option<libc::c_int>,
}

/// What the tree has begun beside its root, whose own programs do not count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Begun {
    /// Processes that went on with a copy of their parent's memory: fork without exec.
    pub forked: u32,
    /// Programs that other processes than the root executed.
    pub executed: u32,
    pub threads: u32,
}

/// A process that is held, and one thread of it that still has its memory.
#[derive(Debug, PartialEq, Eq)]
pub struct Held {
    pub pid: Pid,
    pub task: Pid,
}

impl Tracer {
    /// `root` is stopped at its exec, as `spawn::Launcher::launch_seized` leaves it. It starts to run here.
    pub fn start(root: Pid) -> Tracer {
        let groups = BTreeMap::from([(root, Group { threads: BTreeSet::from([root]), ..Group::default() })]);
        resume(root, 0);
        let (unreported, begun) = (BTreeSet::new(), Begun::default());
        Tracer { root, groups, unreported, unseen: 0, begun, root_status: None }
    }

    /// Processes that ended without having been given to the caller as `Leaving`.
    pub fn unseen(&self) -> u32 {
        self.unseen
    }

    /// What it has begun so far.
    pub fn begun(&self) -> Begun {
        self.begun
    }

    /// How the root ended, once it has been reaped (also when it was killed while others were being held).
    pub fn root_status(&self) -> Option<libc::c_int> {
        self.root_status
    }

    /// Deal with one change of state.
    pub fn on(&mut self, change: Change) -> Move {
        let Change { pid: tid, status } = change;
        if change.is_end() {
            self.ended(tid, status);
            return Move::Nothing;
        }
        let signal = libc::WSTOPSIG(status);
        match status >> 16 {
            libc::PTRACE_EVENT_EXIT => return self.leaving(tid),
            libc::PTRACE_EVENT_EXEC => self.executed(tid),
            libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE => {
                self.born(tid);
            }
            libc::PTRACE_EVENT_STOP if is_stopping(signal) => {
                // A group-stop: stay stopped, and listen for SIGCONT.
                let _ = request(libc::PTRACE_LISTEN, tid, 0);
                return Move::Nothing;
            }
            // The first stop of a new thread or process, which may come before its parent's report of it.
            libc::PTRACE_EVENT_STOP => self.showed(tid),
            0 => {
                resume(tid, signal);
                return Move::Nothing;
            }
            _ => {}
        }
        resume(tid, 0);
        Move::Nothing
    }

    /// Let a `Leaving` process go.
    pub fn release(&mut self, pid: Pid, task: Pid) {
        self.groups.remove(&pid);
        resume(task, 0);
    }

    /// Stop all others than the root, which is leaving, and say who still has memory of its own. They are not meant to
    /// run again.
    pub fn hold(&mut self, signals: &Signals) -> io::Result<Vec<Held>> {
        let started = Instant::now();
        let mut running: BTreeSet<Pid> = self.others().flat_map(|(_, group)| group.threads.iter().copied()).collect();
        running.retain(|tid| request(libc::PTRACE_INTERRUPT, *tid, 0).is_ok());
        while !running.is_empty() && started.elapsed() < HOLD_LIMIT {
            match next_change() {
                Ok(Some(change)) if change.is_end() => {
                    running.remove(&change.pid);
                    self.ended(change.pid, change.status);
                }
                Ok(Some(Change { pid: tid, status })) => {
                    running.remove(&tid);
                    match status >> 16 {
                        libc::PTRACE_EVENT_EXEC => self.executed(tid),
                        libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE => {
                            running.extend(self.born(tid));
                        }
                        _ => self.showed(tid),
                    }
                }
                Ok(None) => {
                    signals.wait(Some(Duration::from_millis(1)));
                }
                Err(error) => return Err(error),
            }
        }
        let held = |(pid, group): (Pid, &Group)| Some(Held { pid, task: *group.threads.first()? });
        Ok(self.others().filter(|(_, group)| !group.is_borrower).filter_map(held).collect())
    }

    /// Processes with memory of their own, and a thread of each.
    pub fn living(&self) -> Vec<(Pid, Pid)> {
        let own = self.groups.iter().filter(|(_, group)| !group.is_borrower);
        own.filter_map(|(pid, group)| Some((*pid, *group.threads.first()?))).collect()
    }

    fn others(&self) -> impl Iterator<Item = (Pid, &Group)> {
        self.groups.iter().filter(|(pid, _)| **pid != self.root).map(|(pid, group)| (*pid, group))
    }

    fn ended(&mut self, tid: Pid, status: libc::c_int) {
        if tid == self.root {
            self.root_status = Some(status);
            return;
        }
        // A thread leaves its group at its exit stop; one that is killed may skip that stop.
        let (pid, is_empty) = match self.groups.iter_mut().find(|(_, group)| group.threads.contains(&tid)) {
            None => return,
            Some((pid, group)) => {
                group.threads.remove(&tid);
                (*pid, group.threads.is_empty())
            }
        };
        if is_empty && self.groups.remove(&pid).is_some_and(|group| !group.is_borrower) {
            self.unseen += 1;
        }
    }

    fn leaving(&mut self, tid: Pid) -> Move {
        if let Some((pid, group)) = self.groups.iter_mut().find(|(_, group)| group.threads.contains(&tid)) {
            let pid = *pid;
            if group.threads.len() == 1 && !group.is_borrower {
                return Move::Leaving { pid, task: tid };
            }
            group.threads.remove(&tid);
            if group.threads.is_empty() {
                self.groups.remove(&pid);
            }
        }
        resume(tid, 0);
        Move::Nothing
    }

    /// After an exec one thread is left, whatever it was called before: it has the number of the group.
    fn executed(&mut self, pid: Pid) {
        let before = self.groups.insert(pid, Group { threads: BTreeSet::from([pid]), ..Group::default() });
        self.begun.forked -= u32::from(before.is_some_and(|group| group.is_copy));
        self.begun.executed += u32::from(pid != self.root);
    }

    /// The stopped `parent` reports a new process or thread; it is given back while it lives.
    fn born(&mut self, parent: Pid) -> Option<Pid> {
        let tid = event_message(parent).ok()? as Pid;
        if !self.unreported.remove(&tid) {
            self.enter(tid);
        }
        self.is_known(tid).then_some(tid)
    }

    /// A process or thread is there: its first stop may come before its parent's report.
    fn showed(&mut self, tid: Pid) {
        if !self.is_known(tid) {
            self.unreported.insert(tid);
            self.enter(tid);
        }
    }

    fn is_known(&self, tid: Pid) -> bool {
        self.groups.values().any(|group| group.threads.contains(&tid))
    }

    fn enter(&mut self, tid: Pid) {
        let Some(born) = Born::read(tid) else { return };
        let group = self.groups.entry(born.group).or_default();
        group.threads.insert(tid);
        if born.group == tid {
            group.is_borrower = shares_memory(born.parent, tid);
            group.is_copy = !group.is_borrower;
            self.begun.forked += u32::from(group.is_copy);
        } else {
            self.begun.threads += 1;
        }
    }
}

/// Where a thread belongs, from /proc/TID/status; None when it has left.
struct Born {
    group: Pid,
    parent: Pid,
}

impl Born {
    fn read(tid: Pid) -> Option<Born> {
        let status = std::fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok();
        Some(Born { group: field("Tgid:")?, parent: field("PPid:")? })
    }
}

fn is_stopping(signal: libc::c_int) -> bool {
    [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU].contains(&signal)
}

/// kcmp(2): do the two use the same memory? Where the kernel lacks it, no.
fn shares_memory(one: Pid, other: Pid) -> bool {
    // SAFETY: integers only.
    unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0, 0) == 0 }
}

/// A request as the C library declares it: musl and glibc differ.
#[cfg(target_env = "musl")]
type Request = libc::c_int;
#[cfg(not(target_env = "musl"))]
type Request = libc::c_uint;

fn request(what: Request, tid: Pid, data: libc::c_long) -> io::Result<()> {
    // SAFETY: the requests made here take no address, and `data` is an integer.
    match unsafe { libc::ptrace(what, tid, std::ptr::null_mut::<libc::c_void>(), data) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

fn event_message(tid: Pid) -> io::Result<libc::c_ulong> {
    let mut message: libc::c_ulong = 0;
    // SAFETY: the message is a live local of the size that the request fills.
    match unsafe { libc::ptrace(libc::PTRACE_GETEVENTMSG, tid, std::ptr::null_mut::<libc::c_void>(), &raw mut message) }
    {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(message),
    }
}
