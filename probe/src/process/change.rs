//! Changes of state of processes, as wait4(2) and ptrace(2) tell them.

use std::io;

pub type Pid = libc::pid_t;

/// One change of state, from wait4(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    pub pid: Pid,
    pub status: libc::c_int,
}

impl Change {
    pub fn is_end(self) -> bool {
        libc::WIFEXITED(self.status) || libc::WIFSIGNALED(self.status)
    }
}

/// The next change of state of any child or traced process, if there is one now. Err(ECHILD): none is left.
pub fn next_change() -> io::Result<Option<Change>> {
    let mut status = 0;
    // SAFETY: the status is a live local.
    match unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG | libc::__WALL) } {
        0 => Ok(None),
        pid if pid > 0 => Ok(Some(Change { pid, status })),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Let a stopped thread run, with a signal or none. One that died meanwhile (ESRCH) needs nothing.
pub fn resume(tid: Pid, signal: libc::c_int) {
    // SAFETY: the request takes no address, and the signal is an integer.
    unsafe { libc::ptrace(libc::PTRACE_CONT, tid, std::ptr::null_mut::<libc::c_void>(), libc::c_long::from(signal)) };
}
