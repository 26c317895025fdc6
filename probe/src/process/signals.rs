//! Signals are waited for, never handled: no handler exists that could run in a child that shares this memory.

use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

/// The signals that this program waits for, blocked for good: SIGCHLD, and what asks it to stop.
pub struct Signals {
    set: libc::sigset_t,
}

/// What came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Came {
    /// A child or a traced process changed its state.
    Child,
    /// SIGTERM, SIGINT, SIGHUP or SIGQUIT: kill the tree and leave.
    Stop(i32),
    /// Nothing in the time given.
    Nothing,
}

const STOPPING: [i32; 4] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT];

impl Signals {
    /// Block them. SIGCHLD is set to its default first: were it inherited as ignored, children would reap themselves.
    pub fn block() -> io::Result<Signals> {
        Signals::of(&STOPPING)
    }

    /// The same for SIGCHLD alone, by a program that what asks it to stop may end at once.
    pub fn block_children() -> io::Result<Signals> {
        Signals::of(&[])
    }

    fn of(stopping: &[libc::c_int]) -> io::Result<Signals> {
        // SAFETY: a zeroed sigset_t is initialised by sigemptyset; all pointers are to live locals.
        unsafe {
            let mut set = MaybeUninit::<libc::sigset_t>::zeroed().assume_init();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, libc::SIGCHLD);
            for signal in stopping {
                libc::sigaddset(&mut set, *signal);
            }
            if libc::signal(libc::SIGCHLD, libc::SIG_DFL) == libc::SIG_ERR
                || libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) != 0
            {
                return Err(io::Error::last_os_error());
            }
            Ok(Signals { set })
        }
    }

    /// Take the next one, waiting as long as `timeout` says (None: for ever).
    pub fn wait(&self, timeout: Option<Duration>) -> Came {
        let limit = timeout.map(|time| libc::timespec {
            // The types differ between C libraries.
            tv_sec: time.as_secs().min(i32::MAX as u64) as _,
            tv_nsec: time.subsec_nanos() as _,
        });
        let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the set is initialised and the limit is null or points to a live local.
        match unsafe { libc::sigtimedwait(&self.set, std::ptr::null_mut(), limit) } {
            libc::SIGCHLD => Came::Child,
            signal if signal > 0 => Came::Stop(signal),
            _ => Came::Nothing,
        }
    }

    /// A descriptor that is readable while one of them is pending, for poll(2) beside a pipe.
    pub fn descriptor(&self) -> io::Result<std::os::fd::OwnedFd> {
        use std::os::fd::FromRawFd;
        // SAFETY: the set is initialised; the descriptor is new and owned by nobody else.
        unsafe {
            match libc::signalfd(-1, &self.set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
                -1 => Err(io::Error::last_os_error()),
                fd => Ok(std::os::fd::OwnedFd::from_raw_fd(fd)),
            }
        }
    }
}

/// Ignored signals, with glibc's internal 32 and 33: its posix_spawn leaves those ignored, and its sigaction hides them.
pub fn ignored_signals() -> Vec<libc::c_int> {
    let is_ignored = |signal: &libc::c_int| {
        let mut action = KernelAction::default();
        // SAFETY: asks only; the place for the answer is the kernel's structure.
        let asked = unsafe { sigaction(*signal, std::ptr::null(), &mut action) };
        asked == 0 && action.handler == libc::SIG_IGN
    };
    (1..=64).filter(is_ignored).collect()
}

/// Put a signal back to its default action: one system call, fit for a child before its exec.
pub fn set_default(signal: libc::c_int) {
    let default = KernelAction { handler: libc::SIG_DFL, flags: 0, restorer: 0, mask: 0 };
    // SAFETY: the default names no handler.
    unsafe { sigaction(signal, &default, std::ptr::null_mut()) };
}

/// The kernel's struct sigaction (x86-64, arm64): all zero is the default action.
#[repr(C)]
#[derive(Default)]
struct KernelAction {
    handler: usize,
    flags: libc::c_ulong,
    restorer: usize,
    mask: u64,
}

/// rt_sigaction(2) without glibc's filter.
///
/// # Safety
/// A handler that `new` names must be fit to run at any time.
unsafe fn sigaction(signal: libc::c_int, new: *const KernelAction, old: *mut KernelAction) -> libc::c_long {
    // SAFETY: both are null or point to the kernel's structure.
    unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, new, old, size_of::<u64>()) }
}
