//! Run a program that cannot switch transparent huge pages off for itself.
//!
//! MariaDB (10.6.17, 10.11.7 and later) calls prctl(PR_SET_THP_DISABLE) at its start and has no option against it. Its
//! buffer pool, touched later, would get base pages whatever the machine's setting is. A seccomp filter lets that one
//! call fail with EPERM, which such programs ignore; all other calls pass, by the kernel's bitmap of constant actions
//! (Linux 5.11 and later) without running the filter.
//!
//! Sources: Documentation/userspace-api/seccomp_filter.rst of the Linux kernel; PR_SET_THP_DISABLE(2const).

use std::convert::Infallible;
use std::ffi::OsString;
use std::io;
use std::mem::offset_of;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result};
use clap::Args;

#[derive(Debug, Clone, Args)]
pub struct KeepThpArgs {
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// `hugewise-probe keep-thp`: this process becomes the program, so that it returns only when that cannot be had.
pub fn main(args: &KeepThpArgs) -> Result<Infallible> {
    refuse_disabling().context("cannot install a seccomp filter (the kernel needs CONFIG_SECCOMP_FILTER)")?;
    let (program, arguments) = args.command.split_first().context("no program named")?;
    let error = Command::new(program).args(arguments).exec();
    Err(error).with_context(|| format!("cannot execute {}", program.to_string_lossy()))
}

/// For this thread and all that it starts, for good: prctl(PR_SET_THP_DISABLE, 1) gives EPERM.
///
/// The calls of another architecture's ABI are not told apart: this guards nothing but a setting.
fn refuse_disabling() -> io::Result<()> {
    let word = |argument: usize| {
        let low = if cfg!(target_endian = "little") { 0 } else { 4 };
        (offset_of!(libc::seccomp_data, args) + 8 * argument + low) as u32
    };
    let load = |offset: u32| unsafe { libc::BPF_STMT((libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, offset) };
    // SAFETY: these two build a struct from integers.
    let equals = |value: u32, then: u8, otherwise: u8| unsafe {
        libc::BPF_JUMP((libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, value, then, otherwise)
    };
    let answer = |action: u32| unsafe { libc::BPF_STMT((libc::BPF_RET | libc::BPF_K) as u16, action) };
    let mut filter = [
        load(offset_of!(libc::seccomp_data, nr) as u32),
        equals(libc::SYS_prctl as u32, 0, 5),
        load(word(0)),
        equals(libc::PR_SET_THP_DISABLE as u32, 0, 3),
        load(word(1)),
        equals(0, 1, 0),
        answer(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        answer(libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: integers only. Without it the kernel takes a filter from nobody but root.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the program and its instructions live through the call, which copies them.
    if unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disable(state: libc::c_ulong) -> Option<i32> {
        // SAFETY: integers only.
        let failed = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, state, 0, 0, 0) } != 0;
        failed.then(|| io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }

    #[test]
    fn only_switching_off_is_refused() {
        // A filter without TSYNC is the thread's own: it ends with it.
        let seen = std::thread::spawn(|| {
            refuse_disabling().unwrap();
            // SAFETY: integers only.
            let other = unsafe { libc::prctl(libc::PR_GET_DUMPABLE, 0, 0, 0, 0) };
            (disable(1), disable(0), other)
        });
        let (off, on, other) = seen.join().unwrap();
        assert_eq!((off, on), (Some(libc::EPERM), None));
        assert!(other >= 0, "other calls of prctl pass");
    }
}
