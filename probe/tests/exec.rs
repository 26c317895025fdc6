//! `exec`: the launcher inside of the probe leaves a program as the launcher itself does.

use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

const SCRIPT: &str = "grep -E '^(Sig(Blk|Ign)|THP_enabled)' /proc/self/status; ls /proc/self/fd; echo \"$0 $*\"";

/// `command` with signals and descriptors that no shell would give it.
fn run(mut command: Command, is_ignored: bool) -> Output {
    // SAFETY: between fork and exec only what is async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigaddset(&mut set, libc::SIGUSR1);
            libc::sigprocmask(libc::SIG_SETMASK, &set, std::ptr::null_mut());
            libc::signal(libc::SIGPIPE, if is_ignored { libc::SIG_IGN } else { libc::SIG_DFL });
            libc::close(0);
            Ok(())
        });
    }
    command.output().unwrap()
}

fn exec(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hugewise-probe"));
    command.arg("exec").args(words);
    command
}

#[test]
fn what_the_runtime_changed_is_changed_back() {
    for is_ignored in [false, true] {
        let through = exec(&["--pages", "off", "--", "sh", "-c", SCRIPT, "--", "--help"]);
        let mut alone = Command::new("sh");
        alone.args(["-c", SCRIPT, "--", "--help"]);
        let (through, alone) = (run(through, is_ignored), run(alone, is_ignored));
        let seen = String::from_utf8(through.stdout).unwrap();
        assert_eq!(seen, String::from_utf8(alone.stdout).unwrap().replace("THP_enabled:\t1", "THP_enabled:\t0"));
        assert!(seen.contains("THP_enabled:\t0") && seen.ends_with("-- --help\n"), "{seen}");
    }
}

#[test]
fn it_says_and_refuses_what_the_launcher_does() {
    let help = exec(&["--help"]).output().unwrap();
    assert!(help.status.success() && String::from_utf8(help.stdout).unwrap().contains("Usage: hugewise-exec"));
    for (words, status) in [
        (&["--pages", "on", "true"][..], 2),
        (&["--pages", "off", "/nowhere"], 127),
        (&["--pages", "off", "/etc/passwd"], 126),
    ] {
        let done = exec(words).output().unwrap();
        assert_eq!(done.status.code(), Some(status), "{words:?}");
        assert!(String::from_utf8(done.stderr).unwrap().starts_with("hugewise-probe exec: "));
    }
}
