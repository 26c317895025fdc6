//! Making the child: clone(CLONE_VM) and exec, never fork.
//!
//! fork copies page tables: from a parent that holds 2 GiB it costs some 75 ms, so nothing here forks on the way to a
//! workload. The child shares this process's memory until its exec. Until then it makes only plain system calls, on a
//! stack of its own, and writes nothing but its `Report`.
//!
//! Bare, the parent sleeps in CLONE_VFORK until the exec. Traced, it has to seize the child before the exec, which a
//! sleeping parent cannot: so there the child waits at a pipe, and `launch_seized` does not return before the exec.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use crate::launch::plan::{FIRST_OPENED, LaunchError, Plan, Program, Step};
use crate::launch::spec::ThpDisable;
use crate::launch::stack::Stack;
use crate::launch::trace;
use crate::process::change::{Pid, resume};
use crate::process::signals::{ignored_signals, set_default};

const PR_THP_DISABLE_EXCEPT_ADVISED: libc::c_ulong = 1 << 1;

/// A plan in the form that the child reads: plain numbers and pointers into `plan`.
pub struct Launcher {
    plan: Plan,
    argv: Vec<*const libc::c_char>,
    env: Vec<*const libc::c_char>,
    mask: Vec<u64>,
    /// Ignored signals survive an exec; Rust's runtime ignores SIGPIPE. They are put back to their defaults.
    ignored: Vec<libc::c_int>,
    /// This process's own setting, which a child's prctl changes with it, as they share one memory.
    own_thp_disable: libc::c_int,
    stack: Stack,
}

/// What the child sees.
struct Job<'a> {
    launcher: &'a Launcher,
    parent: Pid,
    gate: Option<RawFd>,
    report: Report,
}

/// What the child says when it fails: written by the child, read after its end.
#[derive(Default)]
struct Report {
    step: AtomicU32,
    errno: AtomicI32,
}

impl Launcher {
    pub fn new(plan: Plan) -> io::Result<Launcher> {
        let pointers = |words: &[CString]| -> Vec<*const libc::c_char> {
            words.iter().map(|word| word.as_ptr()).chain([std::ptr::null()]).collect()
        };
        close_inherited_at_exec();
        // SAFETY: takes and gives integers.
        let own_thp_disable = unsafe { libc::prctl(libc::PR_GET_THP_DISABLE, 0, 0, 0, 0) };
        Ok(Launcher {
            argv: pointers(&plan.argv),
            env: pointers(&plan.env),
            mask: plan.cpus.as_deref().map(affinity_mask).unwrap_or_default(),
            ignored: ignored_signals(),
            own_thp_disable: own_thp_disable.max(0),
            stack: Stack::new()?,
            plan,
        })
    }

    /// Make the child and return when it has executed its program (or failed to).
    pub fn launch(&self) -> Result<Pid, LaunchError> {
        let (pid, report) = self.clone(libc::CLONE_VFORK, None, |_, _| Ok(()))?;
        match report {
            None => Ok(pid),
            Some(error) => {
                reap(pid);
                Err(error)
            }
        }
    }

    /// The same with the child seized by ptrace: it is left stopped in PTRACE_EVENT_EXEC.
    pub fn launch_seized(&self) -> Result<Pid, LaunchError> {
        let gate = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
            .map_err(|errno| LaunchError { step: Step::Launch, errno: errno.into() })?;
        let (reader, writer) = gate;
        let open_gate = |pid: Pid, report: &Report| {
            trace::seize(pid)?;
            rustix::io::write(&writer, b"g")?;
            trace::wait_for_exec(pid, || report.step.load(Ordering::Acquire) != 0)
        };
        let (pid, report) = self.clone(0, Some(reader.as_raw_fd()), open_gate)?;
        report.map_or(Ok(pid), Err)
    }

    /// The child's life up to its exec or its end lies within this call, and so do all the things it points to.
    fn clone(
        &self,
        flags: libc::c_int,
        gate: Option<RawFd>,
        meanwhile: impl FnOnce(Pid, &Report) -> io::Result<()>,
    ) -> Result<(Pid, Option<LaunchError>), LaunchError> {
        // SAFETY: takes nothing.
        let parent = unsafe { libc::getpid() };
        let mut job = Job { launcher: self, parent, gate, report: Report::default() };
        let argument = std::ptr::from_mut(&mut job).cast();
        // SAFETY: the stack and the job outlive the child's use of them, which ends
        // with its exec or exit: under CLONE_VFORK the kernel holds this thread until then, else `meanwhile` does.
        // No signal handler exists in this program that the child could run, and `enter` only makes system calls.
        let pid = unsafe { libc::clone(enter, self.stack.top(), libc::CLONE_VM | flags | libc::SIGCHLD, argument) };
        if pid < 0 {
            return Err(LaunchError { step: Step::Launch, errno: io::Error::last_os_error() });
        }
        let met = meanwhile(pid, &job.report);
        if met.is_err() {
            kill_and_reap(pid);
        }
        if self.plan.thp_disable != ThpDisable::None || self.own_thp_disable != 0 {
            // SAFETY: integers only; the flags are those that PR_GET_THP_DISABLE gave, less its bit 0.
            unsafe { set_thp_disable(self.own_thp_disable) };
        }
        met.map_err(|errno| LaunchError { step: Step::Launch, errno })?;
        let errno = job.report.errno.load(Ordering::Acquire);
        let step = Step::numbered(job.report.step.load(Ordering::Acquire));
        let failed = (errno != 0).then(|| LaunchError { step, errno: io::Error::from_raw_os_error(errno) });
        Ok((pid, failed))
    }
}

/// The child: from clone to exec. Only system calls, no allocation, no lock, no panic.
extern "C" fn enter(argument: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `clone` above passes a Job that lives until this child's exec or end.
    let job = unsafe { &*argument.cast::<Job>() };
    let plan = &job.launcher.plan;
    // SAFETY: every pointer below comes from the plan, which was prepared in full by the parent.
    unsafe {
        if let Some(gate) = job.gate {
            let mut byte = 0u8;
            if libc::read(gate, (&raw mut byte).cast(), 1) != 1 {
                libc::_exit(127);
            }
        }
        job.must(Step::ProcessGroup, libc::setpgid(0, 0));
        for procs in &plan.cgroups {
            // "0" stands for the writer, in v1 and v2.
            job.must(Step::Cgroup, libc::write(procs.as_raw_fd(), c"0".as_ptr().cast(), 1) as libc::c_long);
        }
        // Raw calls: glibc's wrappers would change every thread of the parent, whose memory this is.
        if plan.uid.is_some() || plan.gid.is_some() {
            job.must(Step::Groups, libc::syscall(libc::SYS_setgroups, plan.groups.len(), plan.groups.as_ptr()));
        }
        if let Some(gid) = plan.gid {
            job.must(Step::Gid, libc::syscall(libc::SYS_setresgid, gid, gid, gid));
        }
        if let Some(uid) = plan.uid {
            job.must(Step::Uid, libc::syscall(libc::SYS_setresuid, uid, uid, uid));
        }
        // As the account: a folder that it leaves to us may have become a link to one that it could not enter itself.
        if let Some(cwd) = &plan.cwd {
            job.must(Step::WorkingDirectory, libc::chdir(cwd.as_ptr()));
        }
        let state = match plan.thp_disable {
            ThpDisable::None => 0,
            ThpDisable::All => 1,
            ThpDisable::ExceptAdvised => 1 | PR_THP_DISABLE_EXCEPT_ADVISED as libc::c_int,
        };
        if state != job.launcher.own_thp_disable {
            job.must(Step::ThpDisable, set_thp_disable(state));
        }
        let mask = &job.launcher.mask;
        if !mask.is_empty() {
            let set = libc::syscall(libc::SYS_sched_setaffinity, 0, size_of_val(mask.as_slice()), mask.as_ptr());
            job.must(Step::Affinity, set);
        }
        // After setresuid, which clears it.
        job.must(Step::Deathsig, libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0));
        if libc::getppid() != job.parent {
            libc::_exit(127);
        }
        for (target, source) in plan.stdio.iter().enumerate() {
            job.must(Step::Stdio, libc::dup2(source.as_raw_fd(), target as RawFd));
        }
        if let Some(path) = &plan.input {
            let input = libc::open(path.as_ptr(), libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC);
            job.must(Step::Input, input);
            let mut seen: libc::stat = std::mem::zeroed();
            job.must(Step::Input, libc::fstat(input, &raw mut seen));
            if seen.st_mode & libc::S_IFMT != libc::S_IFREG {
                *libc::__errno_location() = libc::EINVAL;
                job.must(Step::Input, -1);
            }
            job.must(Step::Input, libc::dup2(input, libc::STDIN_FILENO));
        }
        for (target, source) in (FIRST_OPENED..).zip(&plan.opened) {
            job.must(Step::Stdio, libc::dup2(source.as_raw_fd(), target));
        }
        for signal in &job.launcher.ignored {
            set_default(*signal);
        }
        let none: libc::sigset_t = std::mem::zeroed();
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
        let (argv, env) = (job.launcher.argv.as_ptr(), job.launcher.env.as_ptr());
        let failed = match &plan.program {
            Program::Path(path) => libc::execve(path.as_ptr(), argv, env).into(),
            Program::Descriptor(program) => {
                let fd = program.as_raw_fd();
                libc::syscall(libc::SYS_execveat, fd, c"".as_ptr(), argv, env, libc::AT_EMPTY_PATH)
            }
        };
        job.must(Step::Execute, failed);
        libc::_exit(127)
    }
}

impl Job<'_> {
    /// In the child: on failure, tell the parent and end.
    fn must(&self, step: Step, result: impl Into<libc::c_long>) {
        if result.into() >= 0 {
            return;
        }
        // SAFETY: errno is the parent's too, as thread-local memory is shared; the parent is asleep in clone or in
        // waitpid, and neither fails while this child lives.
        let errno = unsafe { *libc::__errno_location() };
        self.report.step.store(step as u32, Ordering::Release);
        self.report.errno.store(errno, Ordering::Release);
        // SAFETY: ends this process without running anything of the parent's.
        unsafe { libc::_exit(127) }
    }
}

/// `state` as PR_GET_THP_DISABLE gives it: bit 0 disabled, the other bits the flags.
///
/// # Safety
/// Changes the setting of every process that shares this memory.
unsafe fn set_thp_disable(state: libc::c_int) -> libc::c_int {
    let flags = (state & !1) as libc::c_ulong;
    // SAFETY: integers only.
    unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, libc::c_ulong::from(state & 1 != 0), flags, 0, 0) }
}

fn affinity_mask(cpus: &[usize]) -> Vec<u64> {
    let words = cpus.iter().max().map_or(0, |highest| highest / 64 + 1);
    let mut mask = vec![0u64; words];
    for cpu in cpus {
        mask[cpu / 64] |= 1 << (cpu % 64);
    }
    mask
}

/// Descriptors that this program was given by accident (a build tool's, a test's) are not the workload's.
fn close_inherited_at_exec() {
    const FIRST: libc::c_uint = 3;
    // SAFETY: integers only. A kernel without the call (before 5.11) leaves them as they are.
    unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
}

/// Wait for the end of a child; a traced one may stop on its way there.
fn reap(pid: Pid) {
    loop {
        let mut status = 0;
        // SAFETY: waits for a child of this process; the status is a live local.
        let reaped = unsafe { libc::waitpid(pid, &mut status, libc::__WALL) };
        if reaped != pid || !libc::WIFSTOPPED(status) {
            return;
        }
        resume(pid, 0);
    }
}

fn kill_and_reap(pid: Pid) {
    // SAFETY: the child has not been reaped, so the number is still its own.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    reap(pid);
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::OwnedFd;

    use super::*;
    use crate::launch::plan::c_string;

    fn plan(argv: &[&str]) -> Plan {
        let null = || OwnedFd::from(File::options().read(true).write(true).open("/dev/null").unwrap());
        Plan {
            program: Program::Path(c_string(argv[0]).unwrap()),
            argv: argv.iter().map(|word| c_string(word).unwrap()).collect(),
            env: vec![],
            cwd: None,
            stdio: [null(), null(), null()],
            input: None,
            opened: vec![],
            uid: None,
            gid: None,
            groups: vec![],
            thp_disable: ThpDisable::None,
            cgroups: vec![],
            cpus: None,
        }
    }

    fn exit_code(pid: Pid) -> libc::c_int {
        let mut status = 0;
        // SAFETY: waits for our own child.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        libc::WEXITSTATUS(status)
    }

    #[test]
    fn a_program_runs_and_its_status_comes_back() {
        let pid = Launcher::new(plan(&["/bin/sh", "-c", "exit 7"])).unwrap().launch().unwrap();
        assert_eq!(exit_code(pid), 7);
    }

    #[test]
    fn an_exec_that_fails_says_why() {
        let error = Launcher::new(plan(&["/nowhere/at/all"])).unwrap().launch().unwrap_err();
        assert_eq!((error.step, error.errno.raw_os_error()), (Step::Execute, Some(libc::ENOENT)));
    }

    #[test]
    fn a_step_that_fails_is_named() {
        let plan = Plan { cwd: Some(c"/nowhere".into()), ..plan(&["/bin/true"]) };
        let error = Launcher::new(plan).unwrap().launch().unwrap_err();
        assert_eq!(error.step, Step::WorkingDirectory);
        assert!(error.to_string().contains("cwd"), "{error}");
    }

    #[test]
    fn the_childs_thp_setting_does_not_stay_with_the_parent() {
        // SAFETY: integers only.
        let own = || unsafe { libc::prctl(libc::PR_GET_THP_DISABLE, 0, 0, 0, 0) };
        let before = own();
        let script = "grep -q 'THP_enabled:[[:space:]]*0' /proc/self/status";
        let plan = Plan { thp_disable: ThpDisable::All, ..plan(&["/bin/sh", "-c", script]) };
        let plan = Plan { env: vec![c"PATH=/usr/bin:/bin".into()], ..plan };
        let pid = Launcher::new(plan).unwrap().launch().unwrap();
        assert_eq!((exit_code(pid), own()), (0, before));
    }

    #[test]
    fn signals_that_this_program_ignores_are_not_ignored_by_the_child() {
        // SAFETY: Rust's runtime does the same at start; it is said again for a test harness that does not.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
        let script = "grep -q 'SigIgn:[[:space:]]*0000000000000000' /proc/self/status";
        let plan = Plan { env: vec![c"PATH=/usr/bin:/bin".into()], ..plan(&["/bin/sh", "-c", script]) };
        assert_eq!(exit_code(Launcher::new(plan).unwrap().launch().unwrap()), 0);
    }

    #[test]
    fn the_affinity_mask_has_one_bit_a_cpu() {
        assert_eq!(affinity_mask(&[0, 3, 64]), [0b1001, 1]);
    }
}
