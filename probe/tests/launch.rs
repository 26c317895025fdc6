//! `run`: how workloads are started, followed, timed out and cleared away. Commands of coreutils, sh and python3 stand
//! for workloads.

mod common;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::attempt::Attempt;
use common::{events, need, need_root, number, one, text};
use serde_json::{Value, json};

const SCANS: [&str; 3] = ["none", "exit", "every-exit"];

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| text(event, "ev")).collect()
}

fn coverages(events: &[Value]) -> Vec<&Value> {
    events.iter().filter(|event| event["ev"] == "coverage").collect()
}

fn covered(event: &Value) -> u64 {
    event["bytes"].as_object().unwrap().values().map(|bytes| bytes.as_u64().unwrap()).sum()
}

/// A number of seconds to sleep that no other process has on its command line.
fn marker(name: &str) -> String {
    let name: u32 = name.bytes().fold(7, |hash, byte| (hash * 31 + u32::from(byte)) % 99_991);
    format!("3600.{}{name:05}", std::process::id())
}

fn living(marker: &str) -> Vec<u32> {
    let holds = |pid: &u32| {
        let file = |name: &str| fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
        String::from_utf8_lossy(&file("cmdline")).contains(marker)
    };
    let numbers = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    numbers.filter(holds).collect()
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < Duration::from_secs(60), "still not so after 60 s: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn send(pid: u32, signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

#[test]
fn the_kernel_ends_a_workload_before_its_launcher_where_memory_runs_out() {
    let attempt = Attempt::sh("cat /proc/self/oom_score_adj");
    attempt.run();
    let own: i32 = fs::read_to_string("/proc/self/oom_score_adj").unwrap().trim().parse().unwrap();
    let its: i32 = attempt.said().trim().parse().unwrap();
    assert_eq!(its, own.max(200));
}

#[test]
fn a_command_ends_well() {
    let attempt = Attempt::sh("echo out; echo err >&2; exit 0").with("counters", json!(["task-clock", "no-such"]));
    let events = attempt.run();
    assert_eq!(kinds(&events), ["start", "usage", "counters", "exit"]);
    let (start, exit) = (one(&events, "start"), one(&events, "exit"));
    assert_eq!((number(start, "v"), number(exit, "code"), number(exit, "killed")), (1, 0, 0));
    assert!(exit["signal"].is_null());
    assert_eq!(number(exit, "t_ns") - number(start, "t_ns"), number(exit, "wall_ns"));
    assert!(number(one(&events, "usage"), "peak_bytes") > 100_000);
    let counters = &one(&events, "counters")["values"];
    assert!(counters["no-such"]["value"].is_null() && text(&counters["no-such"], "reason").contains("no-such"));
    match counters["task-clock"]["value"].as_u64() {
        Some(ns) => assert!(ns > 10_000 && ns <= number(exit, "wall_ns") * 64),
        None => assert!(!need(false, &format!("task-clock: {}", counters["task-clock"]))),
    }
    assert_eq!(attempt.said(), "out\n");
    assert_eq!(fs::read_to_string(attempt.path("stderr")).unwrap(), "err\n");
}

#[test]
fn failing_is_the_commands_own_affair() {
    for scan in SCANS {
        let events = Attempt::sh("exit 3").with("scan", scan).run();
        assert_eq!(number(one(&events, "exit"), "code"), 3, "{scan}");
        let events = Attempt::sh("kill -9 $$").with("scan", scan).run();
        let exit = one(&events, "exit");
        assert!(exit["code"].is_null(), "{scan}");
        assert_eq!(number(exit, "signal"), 9, "{scan}");
    }
}

#[test]
fn a_command_that_cannot_run_is_the_workloads_fault() {
    let script = tempfile::NamedTempFile::new().unwrap();
    fs::write(script.path(), "#!/nowhere/interpreter\n").unwrap();
    let file = script.path().to_str().unwrap();
    let is_root = rustix::process::geteuid().is_root();
    for (argv0, code, word) in
        [("no-such-command-here", 127, "PATH"), ("/nowhere/x", 127, "No such file"), (file, 126, "")]
    {
        for scan in ["none", "exit"] {
            let events = Attempt::new(&[argv0]).with("scan", scan).run();
            assert_eq!(kinds(&events), ["error", "exit"], "{argv0}");
            let error = one(&events, "error");
            assert_eq!((text(error, "fault"), &error["before_timed"]), ("workload", &json!(true)));
            assert!(text(error, "message").contains(argv0) && text(error, "message").contains(word), "{error}");
            assert_eq!(number(one(&events, "exit"), "code"), code, "{argv0} as root: {is_root}");
        }
    }
    fs::set_permissions(script.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let path = script.into_temp_path();
    let events = Attempt::new(&[path.to_str().unwrap()]).run();
    assert!(text(one(&events, "error"), "message").contains("interpreter"));
}

#[test]
fn a_host_that_fails_says_so_and_ends_with_1() {
    for (key, value, word) in [
        ("cgroup_procs", json!(["/nowhere/cgroup.procs"]), "/nowhere/cgroup.procs"),
        ("stdout", json!("/nowhere/stdout"), "/nowhere/stdout"),
        ("cwd", json!("/nowhere"), "cwd"),
        ("cpus", json!([8000]), "cpus"),
    ] {
        let output = Attempt::new(&["/bin/true"]).with(key, value).output();
        assert_eq!(output.status.code(), Some(1), "{key}");
        let events = events(&output.stdout);
        let error = one(&events, "error");
        assert_eq!((text(error, "fault"), &error["before_timed"]), ("host", &json!(true)));
        assert!(text(error, "message").contains(word), "{error}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(word));
    }
}

/// It is not killed by what it cannot say, on stderr too: then nobody would know whether the workload's clock ran.
#[test]
fn a_full_disk_has_a_status_of_its_own() {
    let full = || fs::File::options().write(true).open("/dev/full").unwrap();
    // With a scan the workload is stopped at its exit when the first line fails: the probe must not wait for it.
    for scan in SCANS {
        let attempt = Attempt::new(&["true"]).with("scan", scan);
        let mut probe = attempt.command().stdout(full()).stderr(full()).spawn().unwrap();
        let mut ended = None;
        wait_until("the probe has ended", || {
            ended = probe.try_wait().unwrap();
            ended.is_some()
        });
        let status = ended.unwrap();
        assert_eq!((status.code(), status.signal()), (Some(74), None), "{scan}");
    }
}

#[test]
fn mistakes_in_the_specification_end_with_2() {
    let output = Attempt::sh("true").with("colour", "red").output();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("spec.json") && said.contains("unknown field `colour`"), "{said}");
    assert!(output.stdout.is_empty());
}

#[test]
fn the_time_limit_takes_the_daemons_too() {
    for scan in SCANS {
        let marker = marker(&format!("limit{scan}"));
        let script = format!("setsid sh -c 'sleep {marker} & sleep {marker} & exit' & sleep {marker}");
        let killed = |limit: f64| {
            let events = Attempt::sh(&script).with("timeout_s", limit).with("scan", scan).run();
            let exit = one(&events, "exit");
            let how = (&exit["timed_out"], &exit["code"], number(exit, "signal"));
            assert_eq!(how, (&json!(true), &Value::Null, 9), "{scan}");
            let took = number(exit, "t_ns") - number(one(&events, "start"), "t_ns");
            assert!(took as f64 >= limit * 1e9, "{exit}");
            assert_eq!(living(&marker), [0u32; 0], "{scan}");
            number(exit, "killed")
        };
        // Where the machine is slow not all of them had begun.
        assert!([2.0, 10.0, 50.0].into_iter().any(|limit| killed(limit) >= 4), "{scan}");
    }
}

#[test]
fn what_outlives_the_root_is_killed() {
    for scan in SCANS {
        let marker = marker(&format!("outlive{scan}"));
        let script = format!("setsid sh -c 'setsid sleep {marker} & exit' ; exit 6");
        let events = Attempt::sh(&script).with("scan", scan).run();
        let exit = one(&events, "exit");
        assert_eq!((number(exit, "code"), number(exit, "killed"), &exit["timed_out"]), (6, 1, &json!(false)), "{scan}");
        assert_eq!(living(&marker), [0u32; 0], "{scan}");
        // The root and the sleeper, and for every exit the shell between them.
        let seen = ["none", "exit", "every-exit"].map(|name| usize::from(name == scan));
        assert_eq!(coverages(&events).len(), 2 * seen[1] + 3 * seen[2], "{scan}");
    }
}

#[test]
fn processes_that_leave_early_are_counted_or_scanned() {
    let script = "/bin/true; /bin/true; sh -c '/bin/true; exit 0'; exit 0";
    let events = Attempt::sh(script).with("scan", "exit").run();
    assert_eq!((number(one(&events, "exit"), "early_exits"), coverages(&events).len()), (4, 1));
    let events = Attempt::sh(script).with("scan", "every-exit").run();
    assert_eq!((number(one(&events, "exit"), "early_exits"), coverages(&events).len()), (0, 5));
    assert_eq!(kinds(&events)[0], "start");
    assert!(coverages(&events).iter().all(|event| covered(event) > 0 && event["named"] == json!(false)));
}

fn python(script: &str, scan: &str) -> Vec<Value> {
    Attempt::new(&["python3", "-I", "-S", "-c", script]).with("scan", scan).run()
}

/// The scripts leave by os._exit: an ordinary end of Python gives its objects back before the process leaves.
const MIB: u64 = 1 << 20;

#[test]
fn each_process_is_seen_with_its_memory() {
    let script = "
import os
own = b'x' * (24 << 20)
if os.fork() == 0:
    more = b'y' * (48 << 20)
    os._exit(0)
os.wait()
os._exit(0)";
    let events = python(script, "every-exit");
    let sizes: Vec<u64> = coverages(&events).iter().map(|event| covered(event) / MIB).collect();
    assert_eq!(sizes.len(), 2, "{sizes:?}");
    assert!((72..110).contains(&sizes[0]) && (24..60).contains(&sizes[1]), "{sizes:?}");
}

#[test]
fn memory_that_was_given_back_before_the_exit_is_seen_in_a_twin() {
    let script = "
import os, time
given_back = b'x' * (64 << 20)
time.sleep(PAUSE)
del given_back
os._exit(0)";
    let size = |scan, pause| covered(coverages(&python(&script.replace("PAUSE", pause), scan))[0]) / MIB;
    let left = size("exit", "0");
    // It is looked at from time to time: who stands still meanwhile looks later.
    let fullest = ["0.5", "10", "50"].map(|pause| move || size("every-exit", pause));
    let fullest = fullest.into_iter().map(|look| look()).find(|size| *size >= 64).unwrap_or(0);
    assert!(left < 32 && (64..100).contains(&fullest), "{left} {fullest}");
}

#[test]
fn a_process_with_threads_is_seen_once_at_the_end_of_its_last_thread() {
    let by_all = "
import os, threading, time
own = b'x' * (24 << 20)
for _ in range(4): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
os._exit(5)";
    // Its first thread leaves alone: /proc/PID/smaps is empty from then on, and the last thread has to be asked.
    let leader_first = "
import ctypes, os, platform, threading, time
own = b'x' * (24 << 20)
threading.Thread(target=lambda: (time.sleep(0.2), os._exit(5))).start()
ctypes.CDLL(None).syscall(60 if platform.machine() == 'x86_64' else 93, 0)";
    for script in [by_all, leader_first] {
        for scan in ["exit", "every-exit"] {
            let events = python(script, scan);
            let seen = coverages(&events);
            assert_eq!((seen.len(), number(one(&events, "exit"), "code")), (1, 5), "{scan} {script}");
            assert!(covered(seen[0]) > 24 * MIB, "{scan} {script}: {}", seen[0]);
            assert_eq!(number(one(&events, "exit"), "early_exits"), 0);
        }
    }
}

#[test]
fn a_child_that_borrows_its_parents_memory_is_not_counted_twice() {
    let script = "
import os
own = b'x' * (24 << 20)
os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)
try: os.posix_spawn('/nowhere', ['x'], {})
except FileNotFoundError: os._exit(4)";
    let events = python(script, "every-exit");
    assert_eq!((coverages(&events).len(), number(one(&events, "exit"), "code")), (2, 4));
    let large = coverages(&events).into_iter().filter(|event| covered(event) > 24 * MIB).count();
    assert_eq!(large, 1);
}

#[test]
fn what_the_tree_begins_is_counted() {
    let begun = |script: &str| {
        let events = python(script, "exit");
        ["forked", "executed", "threads"].map(|name| number(one(&events, "exit"), name))
    };
    assert_eq!(begun("pass"), [0, 0, 0]);
    assert_eq!(begun("import os; os.execv('/bin/true', ['true'])"), [0, 0, 0], "its own programs do not count");
    assert_eq!(begun("import os; os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)"), [0, 1, 0]);
    let script = "
import os, threading
for child in (lambda: os._exit(0), lambda: os.execv('/bin/true', ['true']), lambda: (os.fork(), os._exit(0))):
    if (pid := os.fork()) == 0: child()
    os.waitpid(pid, 0)
threading.Thread(target=int).start()
if os.fork() == 0: threading.Event().wait()
os._exit(0)";
    assert_eq!(begun(script), [4, 1, 1], "one that lives on too");
    assert_eq!(python(script, "none").iter().find(|event| event["ev"] == "exit").unwrap().get("forked"), None);
}

#[test]
fn the_root_may_execute_another_program_from_a_thread() {
    let script = "
import os, threading
threading.Thread(target=os.execv, args=('/bin/sh', ['sh', '-c', 'exit 8'])).start()
threading.Event().wait()";
    let events = python(script, "exit");
    assert_eq!((coverages(&events).len(), number(one(&events, "exit"), "code")), (1, 8));
}

#[test]
fn signals_and_stops_pass_through_the_tracer() {
    let trap = Attempt::sh("trap 'exit 9' USR1; kill -USR1 $$; sleep 20").with("scan", "exit").run();
    assert_eq!(number(one(&trap, "exit"), "code"), 9);
    let stopped = "(while ! grep -q '^State:.*[Tt] (' /proc/$$/status; do :; done; sleep 0.1; kill -CONT $$) & \
                   kill -STOP $$; wait; exit 4";
    let events = Attempt::sh(stopped).with("scan", "exit").run();
    assert_eq!(number(one(&events, "exit"), "code"), 4);
}

#[test]
fn a_scan_is_not_in_the_wall_time() {
    let events = python("import os; own = b'x' * (256 << 20); os._exit(0)", "exit");
    let (start, exit, seen) = (one(&events, "start"), one(&events, "exit"), coverages(&events)[0]);
    let all = number(exit, "t_ns") - number(start, "t_ns");
    assert!(number(exit, "wall_ns") + number(seen, "scan_ns") <= all, "{events:?}");
    let looked: Vec<u64> = exit["looked_ns"].as_array().unwrap().iter().map(|ns| ns.as_u64().unwrap()).collect();
    assert_eq!(all - number(exit, "wall_ns"), looked[1] - looked[0], "{events:?}");
}

#[test]
fn a_request_to_stop_kills_the_tree_and_still_tells() {
    for scan in SCANS {
        let marker = marker(&format!("stop{scan}"));
        let attempt = Attempt::sh(&format!("setsid sleep {marker} & sleep {marker}")).with("scan", scan);
        let child = attempt.start();
        wait_until("two sleepers", || living(&marker).len() >= 3);
        send(child.id(), rustix::process::Signal::TERM);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{scan}");
        let events = events(&output.stdout);
        let exit = one(&events, "exit");
        assert!(number(exit, "killed") >= 3 && exit["timed_out"] == json!(false), "{exit}");
        assert_eq!(living(&marker), [0u32; 0], "{scan}");
    }
}

#[test]
fn the_death_of_the_probe_leaves_nothing() {
    for scan in ["none", "exit"] {
        for is_launcher in [false, true] {
            let marker = marker(&format!("death{scan}{is_launcher}"));
            let script = format!("setsid sh -c 'sleep {marker} & exit' & sleep {marker}; true");
            let attempt = Attempt::sh(&script).with("scan", scan);
            let child = attempt.start();
            wait_until("two sleepers", || living(&marker).len() >= 3);
            let children = format!("/proc/{0}/task/{0}/children", child.id());
            let launcher = fs::read_to_string(children).unwrap().trim().parse().unwrap();
            send(if is_launcher { launcher } else { child.id() }, rustix::process::Signal::KILL);
            let output = child.wait_with_output().unwrap();
            wait_until(&format!("an empty tree ({scan}, {is_launcher})"), || living(&marker).is_empty());
            if is_launcher {
                assert_eq!(output.status.code(), Some(1));
                assert_eq!(text(one(&events(&output.stdout), "error"), "fault"), "host");
            } else {
                assert_eq!(output.status.signal(), Some(9));
            }
        }
    }
}

fn micro(argv: &[&str]) -> Attempt {
    Attempt::new(argv).with("micro", true).with("scan", "exit")
}

const CHASE: [&str; 7] = ["chase", "--bytes", "4m", "--loads", "20000", "--counters", "task-clock"];

#[test]
fn a_micro_workload_is_scanned_while_it_holds() {
    let events = micro(&CHASE).run();
    let said = kinds(&events);
    assert_eq!(said[..4], ["start", "phase", "phase", "phase"]);
    assert_eq!(said[4..], ["result", "counters", "hold", "coverage", "usage", "exit"], "{said:?}");
    let coverage = one(&events, "coverage");
    assert_eq!((&coverage["named"], covered(coverage)), (&json!(true), 4 * MIB));
    assert_eq!(coverage["pid"], one(&events, "start")["pid"]);
    assert_eq!(text(one(&events, "counters"), "scope"), "timed");
    assert_eq!(number(one(&events, "exit"), "code"), 0);
    let events = micro(&CHASE).with("scan", "none").run();
    assert!(coverages(&events).is_empty());
}

#[test]
fn a_micro_workload_that_fails_or_hangs_is_told() {
    let output = micro(&["chase", "--bytes", "nonsense"]).output();
    assert!(output.status.success());
    assert_eq!(number(one(&events(&output.stdout), "exit"), "code"), 2);
    let loads = ["chase", "--bytes", "1m", "--loads", "1000000000000"];
    let events = micro(&loads).with("timeout_s", 0.5).run();
    let exit = one(&events, "exit");
    assert_eq!((&exit["timed_out"], number(exit, "killed"), number(exit, "signal")), (&json!(true), 1, 9));
}

#[test]
fn privileges_are_dropped() {
    if !need_root() {
        return;
    }
    let script = "id -u; id -g; id -G; grep -c CapEff:.0000000000000000 /proc/self/status";
    for scan in SCANS {
        let attempt = Attempt::sh(script).with("uid", 65534).with("gid", 65534).with("scan", scan);
        let events = attempt.with("source", "kpageflags");
        let said = events.run();
        assert_eq!(number(one(&said, "exit"), "code"), 0);
        assert_eq!(events.said(), "65534\n65534\n65534\n1\n", "{scan}");
    }
    let attempt = micro(&CHASE).with("uid", 65534).with("gid", 65534).with("source", "kpageflags");
    let events = attempt.run();
    assert_eq!((covered(one(&events, "coverage")), number(one(&events, "exit"), "code")), (4 * MIB, 0));
}

#[test]
fn an_ordinary_user_gets_coverage_from_smaps() {
    if !need_root() {
        return;
    }
    // As a micro-workload's parent is the launcher, the launcher itself is started as nobody here.
    let attempt = micro(&CHASE);
    for name in ["", "stdout", "stderr"] {
        let path = if name.is_empty() { attempt.folder.path().to_path_buf() } else { attempt.path(name) };
        if !name.is_empty() {
            fs::write(&path, "").unwrap();
        }
        std::os::unix::fs::chown(&path, Some(65534), Some(65534)).unwrap();
    }
    let copy = attempt.path("probe");
    fs::copy(env!("CARGO_BIN_EXE_hugewise-probe"), &copy).unwrap();
    let prepared = attempt.command();
    let mut command = std::process::Command::new(copy);
    command.args(prepared.get_args());
    std::os::unix::process::CommandExt::uid(&mut command, 65534);
    std::os::unix::process::CommandExt::gid(&mut command, 65534);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let events = events(&output.stdout);
    assert_eq!((text(one(&events, "coverage"), "source"), covered(one(&events, "coverage"))), ("smaps", 4 * MIB));
}

#[test]
fn the_childs_surroundings_are_those_asked_for() {
    let script = "pwd; grep Cpus_allowed_list /proc/self/status; env | sort; cat; ls /proc/self/fd | wc -l";
    let attempt = Attempt::sh(script).with("cwd", "/usr").with("cpus", json!([0])).with("scan", "exit");
    let attempt = attempt.with("env", json!({"PATH": "/usr/bin:/bin", "A": "b c"}));
    assert_eq!(number(one(&attempt.run(), "exit"), "code"), 0);
    // ls has 0, 1, 2 and the folder that it reads.
    assert_eq!(attempt.said(), "/usr\nCpus_allowed_list:\t0\nA=b c\nPATH=/usr/bin:/bin\nPWD=/usr\n4\n");
}

#[test]
fn thp_is_disabled_where_asked() {
    let thp = Path::new("/sys/kernel/mm/transparent_hugepage").exists();
    if !need(thp, "transparent huge pages") {
        return;
    }
    let attempt = Attempt::sh("grep THP_enabled /proc/self/status").with("thp_disable", "all").with("scan", "exit");
    let events = attempt.run();
    assert_eq!(attempt.said(), "THP_enabled:\t0\n");
    assert_eq!(one(&events, "coverage")["thp_disabled"], json!(true));
}

/// A cgroup folder for a test, removed at its end.
struct Cgroup(PathBuf);

impl Cgroup {
    /// Of version 2.
    fn new() -> Option<Cgroup> {
        Cgroup::with("cgroup2", None, "enter")
    }

    /// Of that kind of file system, with that controller.
    fn with(kind: &str, controller: Option<&str>, name: &str) -> Option<Cgroup> {
        let mounts = fs::read_to_string("/proc/mounts").unwrap();
        let point = mounts.lines().find_map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let has = |name| words[3].split(',').any(|option| option == name);
            (words[2] == kind && controller.is_none_or(has)).then_some(words[1])
        })?;
        let folder = Path::new(point).join(format!("hugewise-probe-test-{name}-{}", std::process::id()));
        fs::create_dir(&folder).ok()?;
        Some(Cgroup(folder))
    }

    fn turn(&self, frozen: bool) {
        let (knob, words, told) = if self.0.join("cgroup.freeze").exists() {
            ("cgroup.freeze", ["0", "1"], "cgroup.events")
        } else {
            ("freezer.state", ["THAWED", "FROZEN"], "freezer.state")
        };
        let word = words[usize::from(frozen)];
        fs::write(self.0.join(knob), word).unwrap();
        let told = self.0.join(told);
        wait_until(&format!("{knob} {word}"), || {
            fs::read_to_string(&told).unwrap().lines().any(|line| line == word || line == format!("frozen {word}"))
        });
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // The kernel takes a moment to let go of a group whose last process was killed.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn the_child_enters_its_cgroup_and_is_killed_with_it() {
    if !need_root() {
        return;
    }
    let cgroup = Cgroup::new();
    if !need(cgroup.is_some(), "a writable cgroup v2 hierarchy") {
        return;
    }
    let cgroup = cgroup.unwrap();
    let marker = marker("cgroup");
    let attempt = Attempt::sh(&format!("cat /proc/self/cgroup; setsid sleep {marker} & exit 0"));
    let attempt = attempt.with("cgroup_procs", json!([cgroup.0.join("cgroup.procs")]));
    let events = attempt.run();
    assert!(attempt.said().contains("hugewise-probe-test-"), "{}", attempt.said());
    assert!(number(one(&events, "exit"), "killed") >= 1);
    assert_eq!(living(&marker), [0u32; 0]);
}

/// Stop an attempt whose group is frozen: what is told to end, and how.
fn stop_frozen(cgroup: &Cgroup, scan: &str, is_launcher: bool, signal: rustix::process::Signal) {
    let way = format!("frozen{scan}{is_launcher}{signal:?}{}", cgroup.0.display());
    let marker = marker(&way);
    let attempt = Attempt::sh(&format!("setsid sleep {marker} & sleep {marker}")).with("scan", scan);
    let attempt = attempt.with("cgroup_procs", json!([cgroup.0.join("cgroup.procs")]));
    let child = attempt.start();
    // The shell, and two that are sleep by now: what it forked has its words before it executes.
    let sleeps = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "sleep\n");
    wait_until("two sleepers", || living(&marker).iter().filter(|pid| sleeps(pid)).count() == 2);
    cgroup.turn(true);
    let children = format!("/proc/{0}/task/{0}/children", child.id());
    let launcher = fs::read_to_string(children).unwrap().trim().parse().unwrap();
    send(if is_launcher { launcher } else { child.id() }, signal);
    let output = child.wait_with_output().unwrap();
    wait_until(&format!("an empty tree ({way})"), || living(&marker).is_empty());
    if signal == rustix::process::Signal::TERM {
        assert!(number(one(&events(&output.stdout), "exit"), "killed") >= 3, "{way}");
    }
}

#[test]
fn what_is_frozen_ends_when_its_launcher_is_told_to_or_dies() {
    use rustix::process::Signal;
    if !need_root() {
        return;
    }
    for (kind, controller) in [("cgroup2", None), ("cgroup", Some("freezer"))] {
        let cgroup = Cgroup::with(kind, controller, "freeze");
        let knob = if controller.is_some() { "freezer.state" } else { "cgroup.freeze" };
        let is_there = cgroup.as_ref().is_some_and(|cgroup| cgroup.0.join(knob).exists());
        if !need(is_there, &format!("a writable {kind} hierarchy with {knob}")) {
            continue;
        }
        let cgroup = cgroup.unwrap();
        for scan in ["none", "exit"] {
            for (is_launcher, signal) in [(false, Signal::TERM), (false, Signal::KILL), (true, Signal::KILL)] {
                stop_frozen(&cgroup, scan, is_launcher, signal);
                cgroup.turn(false);
            }
        }
    }
}

#[test]
fn the_machines_counters_are_read_while_a_command_runs() {
    let sampled = |pause: u32| {
        let script = format!("import time\nheld = bytearray(64 << 20)\ntime.sleep({pause})");
        Attempt::new(&["python3", "-c", &script]).with("sample", 0.05).run()
    };
    let readings = |said: &Vec<Value>| one(said, "series")["t_ns"].as_array().unwrap().len();
    // Where the machine stood still there are fewer readings.
    let said = [1, 10, 50].into_iter().map(sampled).find(|said| readings(said) >= 5).expect("five readings");
    let kinds: Vec<&str> = said.iter().map(|event| text(event, "ev")).collect();
    assert_eq!(kinds, ["start", "series", "usage", "exit"]);
    let series = one(&said, "series");
    let times: Vec<u64> = series["t_ns"].as_array().unwrap().iter().map(|time| time.as_u64().unwrap()).collect();
    // From before the launch to after the exit, and several times meanwhile.
    assert!(times[0] < number(&said[0], "t_ns") && times[times.len() - 1] > number(one(&said, "exit"), "t_ns"));
    assert!(times.is_sorted(), "{times:?}");
    let faults = series["changed"]["vmstat.pgfault"].as_array().unwrap();
    assert_eq!(faults.len(), times.len());
    assert!(series["cpu_ns"].as_array().unwrap().last().unwrap().as_u64().unwrap() > 0);
    let without = Attempt::new(&["true"]).run();
    assert!(without.iter().all(|event| event["ev"] != "series"));
}
