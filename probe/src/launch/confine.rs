//! What a workload cannot inherit from the launcher, whose limits and credentials it starts from. All of it is done to
//! the launcher, before the clock starts: nothing of it is in a measured time.

use std::fs;

use anyhow::Context;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{UnshareFlags, set_no_new_privs, unshare_unsafe};

use crate::launch::spec::Spec;

/// Processes of the account that a workload may have beside it: half of what the kernel numbers, so that as many are
/// left for everybody else.
const SHARE: u64 = 2;
/// KEYCTL_JOIN_SESSION_KEYRING of linux/keyctl.h.
const JOIN_SESSION_KEYRING: libc::c_int = 1;

/// What the kernel adds to the score of a workload where memory runs out, in thousandths of the host's memory. Pages of
/// a pool do not count there: without it hugewise would be larger than what it runs, and would end with a pool reserved.
const SACRIFICED: i32 = 200;

/// Confine this process, and with it the workload of `spec`.
///
/// Where that becomes another account, a setuid program gains it nothing (PR_SET_NO_NEW_PRIVS), the caller's session
/// keyring is out of its reach, and its processes are counted. A workload of the caller's own account keeps what the
/// caller has: it could take it anyway.
pub fn confine(spec: &Spec) -> anyhow::Result<()> {
    limit(Resource::Core, 0).context("setrlimit (RLIMIT_CORE)")?;
    go_first();
    if spec.own_ipc {
        // SAFETY: the launcher has nothing of an IPC namespace that it could lose. See ipc_namespaces(7).
        unsafe { unshare_unsafe(UnshareFlags::NEWIPC) }.context("unshare (CLONE_NEWIPC)")?;
    }
    if spec.uid.is_none() && spec.gid.is_none() {
        return Ok(());
    }
    if let Some(processes) = spec.limits.processes.or_else(numbered) {
        limit(Resource::Nproc, processes).context("setrlimit (RLIMIT_NPROC)")?;
    }
    // SAFETY: integers and a null pointer, which asks for a new and empty keyring. Where the kernel has no keyrings, or
    // a filter denies the call, there is none that could be reached.
    unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, std::ptr::null::<libc::c_char>()) };
    set_no_new_privs(true).context("prctl(PR_SET_NO_NEW_PRIVS)")
}

/// Let the kernel choose the workload before hugewise where memory runs out. A higher adjustment stays; without /proc
/// nothing is changed.
fn go_first() {
    const FILE: &str = "/proc/self/oom_score_adj";
    let own = fs::read_to_string(FILE).ok().and_then(|said| said.trim().parse::<i32>().ok());
    if own.is_some_and(|own| own < SACRIFICED) {
        let _ = fs::write(FILE, SACRIFICED.to_string());
    }
}

/// Lower a limit; one that is lower already stays.
fn limit(which: Resource, most: u64) -> rustix::io::Result<()> {
    let found = getrlimit(which);
    let lower = |limit: Option<u64>| Some(limit.map_or(most, |limit| limit.min(most)));
    setrlimit(which, Rlimit { current: lower(found.current), maximum: lower(found.maximum) })
}

/// Half of the processes and threads that this kernel can number, and has memory for.
fn numbered() -> Option<u64> {
    let said = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let both = [said("/proc/sys/kernel/pid_max"), said("/proc/sys/kernel/threads-max")];
    Some(both.into_iter().flatten().min()? / SHARE)
}
