//! `run` against workloads that mean harm: output without end, privileges by a setuid program, what root has in its
//! session. Each is a demonstration that succeeded before there was a bound.

mod common;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::process::Command;

use common::attempt::Attempt;
use common::{events, need, need_root, one, text};
use serde_json::{Value, json};

const MOST: u64 = 1 << 20;
/// An account that nobody else has processes of.
const STRANGER: u32 = 54_321;

/// Of a workload that is bounded.
impl Attempt {
    fn bounded(argv: &[&str]) -> Attempt {
        Attempt::new(argv).with("cwd", "/").with("limits", json!({"stream_bytes": MOST}))
    }

    fn script(script: &str) -> Attempt {
        Attempt::bounded(&["sh", "-c", script])
    }

    fn python(script: &str) -> Attempt {
        Attempt::bounded(&["python3", "-c", script])
    }

    fn by_stranger(self) -> Attempt {
        self.with("uid", STRANGER).with("gid", STRANGER)
    }

    /// The words of a command that runs it.
    fn words(&self) -> Vec<String> {
        let command = self.command();
        let words = [command.get_program()].into_iter().chain(command.get_args());
        words.map(|word| word.to_str().unwrap().into()).collect()
    }

    fn run_by(&self, command: &mut Command) -> Vec<Value> {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        events(&output.stdout)
    }

    fn all_said(&self) -> String {
        self.said() + &fs::read_to_string(self.path("stderr")).unwrap()
    }

    fn size(&self, name: &str) -> u64 {
        self.path(name).metadata().unwrap().len()
    }
}

fn exceeded(events: &[Value]) -> &str {
    text(one(events, "exit"), "exceeded")
}

#[test]
fn a_folder_is_entered_as_the_account() {
    if !need_root() {
        return;
    }
    let attempt = Attempt::script("cat secret; true").by_stranger();
    let private = attempt.path("private");
    fs::create_dir(&private).unwrap();
    fs::write(private.join("secret"), "of root's").unwrap();
    fs::set_permissions(&private, fs::Permissions::from_mode(0o700)).unwrap();
    let link = attempt.path("tree");
    symlink(&private, &link).unwrap();
    for folder in [&private, &link] {
        let cwd = folder.to_str().unwrap();
        let attempt = Attempt::script("cat secret; true").by_stranger().with("cwd", cwd);
        let words = attempt.words();
        let output = Command::new(&words[0]).args(&words[1..]).output().unwrap();
        assert!(!output.status.success());
        assert_eq!(attempt.all_said(), "");
        let events = events(&output.stdout);
        let error = one(&events, "error");
        let expected = format!(
            "(cwd): Permission denied (os error 13): {cwd} (as uid {STRANGER}, which must be able to enter it)"
        );
        assert!(text(error, "message").contains(&expected), "{error}");
    }
}

#[test]
fn an_account_does_not_begin_in_the_folder_of_its_caller() {
    if !need_root() {
        return;
    }
    let attempt = Attempt::script("readlink /proc/self/cwd").by_stranger().with("cwd", Value::Null);
    let private = attempt.path("private");
    fs::create_dir(&private).unwrap();
    let words = attempt.words();
    attempt.run_by(Command::new(&words[0]).args(&words[1..]).current_dir(&private));
    assert_eq!(attempt.all_said(), "/\n");
}

#[test]
fn a_file_that_is_opened_for_a_command_is_read_and_nothing_else_of_the_caller() {
    if !need_root() {
        return;
    }
    let attempt =
        Attempt::script("cat <&3; cat <&4; ls /proc/self/fd; (echo no >&3) 2>/dev/null; cat \"$0\"").by_stranger();
    let files = ["first", "second"].map(|name| {
        let file = attempt.path(name);
        fs::write(&file, name).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        file.to_str().unwrap().to_string()
    });
    let attempt = attempt.with("opens", files.to_vec());
    attempt.run();
    // The 5 is ls's own.
    assert!(attempt.all_said().starts_with("firstsecond0\n1\n2\n3\n4\n5\n"), "{}", attempt.all_said());
    assert_eq!(fs::read_to_string(attempt.path("first")).unwrap(), "first");
}

#[test]
fn a_pipe_in_the_place_of_a_disk_is_not_opened() {
    let attempt = Attempt::script("true");
    let pipe = attempt.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let _held = fs::File::options().read(true).write(true).open(&pipe).unwrap(); // to open it would not wait
    let output = attempt.with("opens", vec![pipe.to_str().unwrap()]).output();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("it is no file and no block device"), "{said}");
}

#[test]
fn standard_input_is_opened_with_the_rights_of_the_account() {
    if !need_root() {
        return;
    }
    let attempt = Attempt::script("cat").by_stranger();
    let file = attempt.path("input");
    fs::write(&file, "words").unwrap();
    let asked = |path: &str| Attempt::script("cat").by_stranger().with("stdin", path);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let attempt = asked(file.to_str().unwrap());
    attempt.run();
    assert_eq!(attempt.all_said(), "words");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    for (path, why) in [(file.to_str().unwrap(), "Permission denied"), ("/", "Invalid argument")] {
        let said = String::from_utf8(asked(path).output().stderr).unwrap();
        assert!(said.contains("(stdin: ") && said.contains(why), "{path}: {said}");
    }
}

#[test]
fn output_without_end_is_ended_and_cut() {
    for (scan, script, stream) in [
        ("none", "exec yes", "stdout"),
        ("exit", "exec yes", "stdout"),
        ("every-exit", "yes; true", "stdout"),
        ("none", "exec yes >&2", "stderr"),
        ("none", "yes & sleep 1000", "stdout"),
    ] {
        let attempt = Attempt::script(script).with("scan", scan);
        let events = attempt.run();
        assert_eq!(exceeded(&events), format!("its {stream} has more than {MOST} bytes, the most that is kept"));
        assert_eq!(attempt.size(stream), MOST, "{scan} {script}");
        assert_eq!((&one(&events, "exit")["code"], &one(&events, "exit")["timed_out"]), (&json!(null), &json!(false)));
    }
}

#[test]
fn a_file_for_both_streams_is_cut_once() {
    let attempt = Attempt::script("yes >&2");
    let both = attempt.spec["stderr"].clone();
    let attempt = attempt.with("stdout", both);
    assert!(exceeded(&attempt.run()).starts_with("its std"));
    assert_eq!(attempt.size("stderr"), MOST);
}

#[test]
fn a_sparse_stream_is_no_trap() {
    // It ends well, and before anybody has looked.
    let attempt = Attempt::python("import os; os.ftruncate(1, 1 << 43)");
    let events = attempt.run();
    assert!(exceeded(&events).starts_with("its stdout has more than"));
    assert_eq!(attempt.size("stdout"), MOST);
    // On a busy machine somebody may have looked before it could end.
    let code = &one(&events, "exit")["code"];
    assert!(code == &json!(0) || code.is_null(), "{code}");
}

#[test]
fn what_stays_within_its_bound_is_left_as_it_is() {
    let attempt = Attempt::script("head -c 1048576 /dev/zero; sleep 0.3");
    let events = attempt.run();
    assert_eq!((&one(&events, "exit")["exceeded"], attempt.size("stdout")), (&Value::Null, MOST));
}

#[test]
fn the_last_of_a_disk_is_not_taken() {
    if !need_root() {
        return;
    }
    // Of 32 MiB a tenth is kept; what is left below that lasts for a minute, however late the first look is.
    let fill = "head -c 30M /dev/zero > $ROOM/large; while :; do head -c 4K /dev/zero >> $ROOM/large; sleep 0.1; done";
    let attempt = Attempt::script(fill);
    let room = attempt.path("room");
    fs::create_dir(&room).unwrap();
    let room = room.to_str().unwrap();
    let environment = json!({"ROOM": room, "PATH": "/usr/bin:/bin"});
    let attempt = attempt.with("limits", json!({"rooms": [room, "/nowhere"]})).with("env", environment);
    let script = "mount -t tmpfs -o size=512m tmpfs $0 && cat /dev/zero | head -c 480M > $0/other && exec \"$@\"";
    let events = attempt.run_by(Command::new("unshare").args(["-m", "sh", "-c", script, room]).args(attempt.words()));
    let said = exceeded(&events);
    assert!(said.contains(&format!("bytes are left free at {room}, below the 33")), "{said}");
    assert_eq!(attempt.all_said(), "", "it was ended before its disk was full");
}

#[test]
fn a_setuid_program_gains_nothing() {
    if !need_root() {
        return;
    }
    for scan in ["none", "exit"] {
        let attempt = Attempt::bounded(&["./own-id", "-u"]).by_stranger().with("scan", scan);
        let program = attempt.path("own-id");
        fs::copy("/usr/bin/id", &program).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
        let folder = attempt.folder.path().to_str().unwrap().to_owned();
        let attempt = attempt.with("cwd", folder);
        attempt.run();
        assert_eq!(attempt.all_said(), format!("{STRANGER}\n"));
    }
}

#[test]
fn who_called_has_their_groups_and_no_other() {
    if !need_root() {
        return;
    }
    let attempt = Attempt::script("grep ^Groups /proc/self/status").by_stranger().with("groups", json!([7, 12_345]));
    attempt.run();
    assert_eq!(attempt.all_said().split_whitespace().collect::<Vec<_>>(), ["Groups:", "7", "12345"]);
    let attempt = Attempt::script("true").with("groups", json!([7]));
    let refused = attempt.command().output().unwrap();
    assert!(!refused.status.success());
    assert!(format!("{refused:?}").contains("only of an account that it becomes"), "{refused:?}");
}

#[test]
fn the_callers_own_programs_stay_as_they_are() {
    let attempt = Attempt::script("grep NoNewPrivs /proc/self/status; ulimit -c");
    attempt.run();
    let own = fs::read_to_string("/proc/self/status").unwrap();
    let own = own.lines().find(|line| line.starts_with("NoNewPrivs")).unwrap();
    assert_eq!(attempt.all_said(), format!("{own}\n0\n"));
}

#[test]
fn a_stranger_has_nothing_of_roots_session() {
    if !need_root() {
        return;
    }
    let attempt =
        Attempt::script("cat /proc/keys; grep -E '^(Groups|NoNewPrivs|CapEff|CapPrm|CapAmb)' /proc/self/status")
            .by_stranger();
    let words = attempt.words();
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    // SAFETY: two system calls with constants, fit for a child before its exec.
    unsafe {
        command.pre_exec(|| {
            let (kind, name) = (c"user".as_ptr(), c"hugewise-test-secret".as_ptr());
            libc::syscall(libc::SYS_keyctl, 1, std::ptr::null::<libc::c_char>());
            libc::syscall(libc::SYS_add_key, kind, name, name, 6, -3);
            Ok(())
        });
    }
    attempt.run_by(&mut command);
    let said = attempt.all_said();
    assert!(!said.contains("hugewise-test-secret"), "{said}");
    let words: Vec<&str> = said.lines().filter(|line| !line.contains("key")).collect();
    for expected in ["Groups:\t ", "NoNewPrivs:\t1", "CapEff:\t0000000000000000", "CapPrm:\t0000000000000000"] {
        assert!(words.iter().any(|line| line.trim_end() == expected.trim_end()), "{expected}: {said}");
    }
}

#[test]
fn processes_of_a_stranger_are_counted() {
    if !need_root() {
        return;
    }
    let fork = "import os, time
made = 0
try:
    while made < 200:
        if os.fork() == 0:
            time.sleep(1000)
        made += 1
except BlockingIOError:
    pass
print(made)";
    // Of an account that no other test has: the processes of all its programs count.
    let (uid, limits) = (STRANGER + 2, json!({"processes": 40}));
    let attempt = Attempt::python(fork).with("uid", uid).with("gid", uid).with("limits", limits);
    attempt.run();
    assert_eq!(attempt.all_said(), "39\n");
    let attempt = Attempt::script("grep 'Max processes' /proc/self/limits").by_stranger();
    attempt.run();
    let (said, numbers) = (attempt.all_said(), fs::read_to_string("/proc/sys/kernel/pid_max").unwrap());
    let most: u64 = numbers.trim().parse().unwrap();
    let limits: Vec<u64> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    assert!(limits.len() == 2 && limits.iter().all(|limit| *limit <= most / 2), "{said}");
}

#[test]
fn a_fork_bomb_is_held_and_cleared_away() {
    if !need_root() {
        return;
    }
    let bomb = "import os
while True:
    try:
        os.fork()
    except OSError:
        pass";
    for scan in ["none", "every-exit"] {
        let account = STRANGER + 1;
        let owned = |pid: &u32| {
            use std::os::unix::fs::MetadataExt;
            fs::metadata(format!("/proc/{pid}")).is_ok_and(|found| found.uid() == account)
        };
        let killed = |limit: f64| {
            let attempt = Attempt::python(bomb)
                .with("uid", account)
                .with("gid", account)
                .with("limits", json!({"processes": 60}))
                .with("scan", scan)
                .with("timeout_s", limit);
            let exit = one(&attempt.run(), "exit").clone();
            assert_eq!(exit["timed_out"], json!(true));
            let names = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().file_name());
            let pids = names.filter_map(|name| name.to_str()?.parse().ok());
            assert_eq!(pids.filter(owned).count(), 0);
            exit["killed"].as_u64().unwrap()
        };
        // Where the machine is slow it has not yet grown.
        assert!([4.0, 20.0, 60.0].into_iter().any(|limit| killed(limit) >= 50), "{scan}");
    }
}

#[test]
fn there_is_no_terminal_to_type_into() {
    let python = Command::new("python3").arg("--version").output();
    if !need(python.is_ok(), "python3") {
        return;
    }
    let attempt = Attempt::script("(exec 3</dev/tty) 2>/dev/null && echo a terminal || echo none");
    let spawn = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]))";
    let status = Command::new("python3").args(["-c", spawn]).args(attempt.words()).output().unwrap().status;
    assert!(status.success());
    assert_eq!(attempt.all_said(), "none\n");
}
