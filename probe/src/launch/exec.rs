//! `hugewise-probe exec`: the launcher hugewise-exec, for where the probe is there already.
//!
//! It is the same code. What Rust's runtime has changed before main is changed back first: it ignores SIGPIPE, and opens
//! /dev/null in the place of closed descriptors.

use std::ffi::{CString, OsString};
use std::os::unix::ffi::OsStringExt;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};
use clap::Args;
use hugewise_exec::Started;

#[derive(Debug, Clone, Args)]
#[command(disable_help_flag = true)]
pub struct ExecArgs {
    /// Options of hugewise-exec, the program and its arguments: see hugewise-probe exec --help
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

const SIGPIPE_WAS_IGNORED: u32 = 1 << 8;

/// One bit for each descriptor that was closed when the process began, and that of SIGPIPE.
static AT_BEGIN: AtomicU32 = AtomicU32::new(0);

#[used]
#[unsafe(link_section = ".init_array")]
static REMEMBER: extern "C" fn() = remember;

/// Called by the C library before Rust's runtime begins.
extern "C" fn remember() {
    let mut found = 0;
    for descriptor in 0..3 {
        // SAFETY: integers only.
        if unsafe { libc::fcntl(descriptor, libc::F_GETFD) } < 0 {
            found |= 1 << descriptor;
        }
    }
    // SAFETY: plain data, which is filled in where the call succeeds.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: nothing is set; the structure is live.
    let said = unsafe { libc::sigaction(libc::SIGPIPE, std::ptr::null(), &mut action) };
    if said == 0 && action.sa_sigaction == libc::SIG_IGN {
        found |= SIGPIPE_WAS_IGNORED;
    }
    AT_BEGIN.store(found, Ordering::Relaxed);
}

/// This process becomes the program, so that it returns only when that cannot be had.
pub fn main(_: &ExecArgs) -> Result<ExitCode> {
    let words = std::env::args_os().skip(1); // as they are: clap leaves `--` out
    let words: Vec<CString> =
        words.map(|word| CString::new(word.into_vec())).collect::<Result<_, _>>().context("an argument")?;
    let argv: Vec<_> = words.iter().map(|word| word.as_ptr()).collect();
    let begun = AT_BEGIN.load(Ordering::Relaxed);
    // SAFETY: no other thread runs; nothing here uses these descriptors, but to complain, which does no harm.
    unsafe {
        for descriptor in (0..3).filter(|descriptor| begun & 1 << descriptor != 0) {
            libc::close(descriptor);
        }
        if begun & SIGPIPE_WAS_IGNORED == 0 {
            libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        }
    }
    unsafe extern "C" {
        static environ: *const *const libc::c_char;
    }
    // SAFETY: a fact of the kernel's; the arguments live through the call; the environment is changed by nobody.
    let status = unsafe {
        let is_secure = libc::getauxval(libc::AT_SECURE) != 0;
        hugewise_exec::main(&Started { argv: &argv, envp: environ, is_secure, name: "hugewise-probe exec" })
    };
    Ok(ExitCode::from(u8::try_from(status).unwrap_or(1)))
}
