//! The launcher as people use it: what the program that it starts finds.

mod common;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use common::{Place, printed};

#[test]
fn the_program_has_this_process_and_its_setting() {
    let place = Place::new();
    let mut child = place
        .command(&["--pages", "off", "--", "sh", "-c", "grep THP_enabled /proc/self/status; echo $$; cat; exit 7"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"stdin is its own").unwrap();
    let done = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(done.stdout).unwrap(), format!("THP_enabled:\t0\n{pid}\nstdin is its own"));
    assert_eq!(done.status.code(), Some(7));
}

#[test]
fn arguments_and_argv0_are_kept() {
    let place = Place::new();
    let shown = |words: &[&str]| place.out(&[words, &["-c", "echo $0/$1/$2"]].concat());
    assert_eq!(
        place.out(&["--pages=off", "sh", "-c", "tr '\\0' '|' < /proc/$$/cmdline", "--pages", "x"]),
        "sh|-c|tr '\\0' '|' < /proc/$$/cmdline|--pages|x|"
    );
    assert_eq!(shown(&["--pages", "off", "sh"]), "sh//\n");
    assert_eq!(shown(&["--pages", "off", "--argv0", "-other", "--", "/bin/sh"]).trim_end(), "-other//");
    let long = "x".repeat(100_000);
    assert_eq!(place.out(&["--pages", "off", "--", "echo", &long]), format!("{long}\n"));
}

#[test]
fn except_advised_needs_its_kernel() {
    let place = Place::new();
    let done = place.command(&["--pages", "advised", "--", "true"]).output().unwrap();
    // SAFETY: integers only; of this process, which is ended by its test harness soon, and has no huge pages.
    let knows = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 2, 0, 0) } == 0;
    // SAFETY: as above.
    unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 0, 0, 0, 0) };
    assert_eq!(done.status.code(), Some(if knows { 0 } else { 125 }), "{done:?}");
}

#[test]
fn the_environment_is_merged() {
    let Some(place) = Place::with_library() else { return };
    let library = place.path("libhugewise-layout.so").canonicalize().unwrap();
    let words = ["--pages", "base,heap=64m", "--tunable", "glibc.malloc.arena_max=1", "--", "env"];
    let mut command = place.command(&words);
    command.env("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0:glibc.malloc.arena_max=9");
    command
        .env("LD_PRELOAD", "libc.so.6")
        .env("HUGEWISE_LAYOUT", "thp")
        .env("HUGEWISE_LAYOUT_REPORT", "/x")
        .env("A", "1");
    let mut seen: Vec<_> = printed(&command.output().unwrap()).lines().map(str::to_owned).collect();
    seen.sort();
    assert_eq!(
        seen,
        [
            "A=1",
            "GLIBC_TUNABLES=glibc.malloc.tcache_count=0:glibc.malloc.arena_max=1",
            "HUGEWISE_LAYOUT=base,heap=64m",
            &format!("LD_PRELOAD={}:libc.so.6", library.display()),
            "PATH=/usr/bin:/bin",
        ]
    );
    let without =
        place.command(&["--pages", "off", "env"]).env_clear().env("LD_PRELOAD", "libc.so.6").output().unwrap();
    assert_eq!(printed(&without), "LD_PRELOAD=libc.so.6\n", "nothing is touched that nobody asked for");
}

#[test]
fn a_report_is_a_file_of_ones_own() {
    let Some(place) = Place::with_library() else { return };
    let report = place.path("report");
    let seen = place
        .command(&["--pages", "base", "--report", "report", "--", "env"])
        .current_dir(place.folder.path())
        .output()
        .unwrap();
    let whole = report.canonicalize().unwrap();
    assert!(printed(&seen).contains(&format!("HUGEWISE_LAYOUT_REPORT={}\n", whole.display())));
    assert_eq!(fs::metadata(&report).unwrap().permissions().mode() & 0o777, 0o600);
    symlink(&report, place.path("link")).unwrap();
    let link = place.path("link");
    let (code, said) = place.refused(&["--pages", "base", "--report", link.to_str().unwrap(), "env"]);
    assert!(code == Some(125) && said.contains("report"), "{said}");
    assert_eq!(place.refused(&["--pages", "base", "--report", "/dev/null", "env"]).0, Some(125));
}

/// What another account linked to a file of root's would have had the complaint appended to it.
#[test]
fn a_complaint_is_never_written_into_the_file_it_is_about() {
    let Some(place) = Place::with_library() else { return };
    for closed in [&[2][..], &[0, 1, 2], &[1, 2]] {
        fs::write(place.path("target"), "as it was").unwrap();
        let _ = fs::hard_link(place.path("target"), place.path("second"));
        let second = place.path("second");
        let mut command = place.command(&["--pages", "base", "--report", second.to_str().unwrap(), "--", "true"]);
        // SAFETY: between fork and exec only what is async-signal-safe.
        unsafe {
            command.pre_exec(move || {
                for &descriptor in closed {
                    libc::close(descriptor);
                }
                Ok(())
            });
        }
        assert_eq!(command.status().unwrap().code(), Some(125));
        assert_eq!(fs::read_to_string(place.path("target")).unwrap(), "as it was", "{closed:?}");
    }
}

#[test]
fn signals_and_descriptors_are_as_they_were() {
    let place = Place::new();
    let script = "grep -E '^Sig(Blk|Ign)' /proc/self/status; ls /proc/self/fd";
    let run = |mut command: Command| {
        // SAFETY: between fork and exec only what is async-signal-safe.
        unsafe {
            command.pre_exec(|| {
                let mut set: libc::sigset_t = std::mem::zeroed();
                libc::sigaddset(&mut set, libc::SIGUSR1);
                libc::sigprocmask(libc::SIG_SETMASK, &set, std::ptr::null_mut());
                libc::signal(libc::SIGPIPE, libc::SIG_IGN);
                libc::signal(libc::SIGHUP, libc::SIG_IGN);
                libc::close(0);
                Ok(())
            });
        }
        printed(&command.output().unwrap())
    };
    let mut alone = Command::new("sh");
    alone.args(["-c", script]).env_clear().env("PATH", "/usr/bin:/bin");
    let through = place.command(&["--pages", "off", "--", "sh", "-c", script]);
    assert_eq!(run(through), run(alone));
}

#[test]
fn with_everything_closed_it_works_and_refuses_all_the_same() {
    let place = Place::new();
    for (words, status) in
        [(&["--pages", "off", "true"][..], 0), (&["--pages", "off", "nowhere-at-all"], 127), (&["--wrong"], 2)]
    {
        let mut command = place.command(words);
        // SAFETY: between fork and exec only what is async-signal-safe.
        unsafe {
            command.pre_exec(|| {
                for descriptor in 0..3 {
                    libc::close(descriptor);
                }
                Ok(())
            });
        }
        assert_eq!(command.status().unwrap().code(), Some(status), "{words:?}");
    }
}

#[test]
fn programs_are_found_as_execvp_finds_them() {
    let place = Place::new();
    fs::create_dir(place.path("folder")).unwrap();
    fs::create_dir(place.path("folder/tool")).unwrap();
    place.script("tool", "#!/bin/sh\necho found $0\n");
    let path = format!("{}:/nowhere::{}", place.path("folder").display(), place.folder.path().display());
    let done = place.command(&["--pages", "off", "tool"]).env("PATH", &path).output().unwrap();
    assert_eq!(printed(&done), format!("found {}\n", place.path("tool").display()));
    let here = place
        .command(&["--pages", "off", "tool"])
        .env("PATH", ":/bin")
        .current_dir(place.folder.path())
        .output()
        .unwrap();
    assert_eq!(printed(&here), "found ./tool\n");
    let unset = place.command(&["--pages", "off", "echo", "x"]).env_clear().output().unwrap();
    assert_eq!(printed(&unset), "x\n");
    fs::set_permissions(place.path("tool"), fs::Permissions::from_mode(0o644)).unwrap();
    let (code, said) = place.refused(&["--pages", "off", place.path("tool").to_str().unwrap()]);
    assert!(code == Some(126) && said.contains("may not be executed"), "{said}");
    let plain = place.script("plain", "echo no interpreter\n");
    assert_eq!(place.refused(&["--pages", "off", plain.to_str().unwrap()]).0, Some(126));
    for missing in ["nowhere-at-all", "/nowhere/at/all", "/etc/passwd/x", ""] {
        assert_eq!(place.refused(&["--pages", "off", "--", missing]).0, Some(127), "{missing:?}");
    }
}
