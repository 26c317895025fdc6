//! `agent` as an ordinary process, over stdin and stdout: what a host may ask, and what it is told.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use common::{Held, need_root, number, one, probe, text};
use serde_json::{Value, json};
use tempfile::TempDir;

/// An agent, and a folder for what it is asked to do.
struct Guest {
    agent: Child,
    requests: Option<ChildStdin>,
    lines: BufReader<ChildStdout>,
    hello: Value,
    /// Events that came while an answer was waited for.
    events: Vec<Value>,
    last: u64,
    folder: TempDir,
}

impl Guest {
    fn start() -> Guest {
        Guest::with_orders(&[])
    }

    fn with_orders(orders: &[Value]) -> Guest {
        let folder = tempfile::tempdir().unwrap();
        let mut command = probe();
        command.args(["agent", "--channel", "-"]);
        if !orders.is_empty() {
            let file = folder.path().join("orders.jsonl");
            fs::write(&file, orders.iter().map(|order| format!("{order}\n")).collect::<String>()).unwrap();
            command.arg("--orders").arg(file);
        }
        // Its own folder for specifications is looked at below.
        command.env("TMPDIR", folder.path());
        let mut agent = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(agent.stdout.take().unwrap());
        let hello = next(&mut lines).unwrap();
        Guest { requests: agent.stdin.take(), agent, lines, hello, events: Vec::new(), last: 0, folder }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    fn send(&mut self, line: &[u8]) {
        self.requests.as_mut().unwrap().write_all(line).unwrap();
    }

    fn request(&mut self, what: &str, mut fields: Value) -> u64 {
        self.last += 1;
        fields["id"] = self.last.into();
        fields["do"] = what.into();
        self.send(format!("{fields}\n").as_bytes());
        self.last
    }

    /// The whole answer; events that come before it are kept.
    fn answer(&mut self, what: &str, fields: Value) -> Value {
        let id = self.request(what, fields);
        loop {
            let line = next(&mut self.lines).expect("an answer");
            if line["id"] == id {
                return line;
            }
            self.events.push(line);
        }
    }

    fn ok(&mut self, what: &str, fields: Value) -> Value {
        let answer = self.answer(what, fields);
        assert!(answer["error"].is_null(), "{answer}");
        answer["ok"].clone()
    }

    fn errno(&mut self, what: &str, fields: Value) -> i64 {
        let answer = self.answer(what, fields);
        answer["error"]["errno"].as_i64().unwrap_or_else(|| panic!("{answer}"))
    }

    fn spec(&self, argv: &[&str]) -> Value {
        json!({
            "v": 1, "argv": argv, "micro": false, "env": {"PATH": "/usr/bin:/bin"}, "cwd": null,
            "stdout": self.path("new/folder/stdout"), "stderr": self.path("new/folder/stderr"), "uid": null,
            "gid": null, "thp_disable": "none", "cgroup_procs": [], "cpus": null, "timeout_s": 60.0, "counters": [],
            "scan": "none", "source": "smaps"
        })
    }

    /// What a process has said, and how it ended.
    fn story(&mut self, process: u64) -> (Vec<Value>, Value) {
        let of_it = |event: &&Value| event["process"] == process;
        let said: Vec<Value> = self.events.iter().filter(of_it).cloned().collect();
        let (end, lines) = said.split_last().expect("events");
        let lines = lines.iter().map(|event| serde_json::from_str(text(event, "line")).unwrap()).collect();
        (lines, end["ended"].clone())
    }

    /// Close the channel, and wait for its end.
    fn finish(mut self) -> TempDir {
        self.requests = None;
        assert!(self.agent.wait().unwrap().success());
        self.folder
    }
}

fn next(lines: &mut BufReader<ChildStdout>) -> Option<Value> {
    let mut line = String::new();
    (lines.read_line(&mut line).unwrap() > 0).then(|| serde_json::from_str(&line).unwrap())
}

fn is_alive(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
    stat.is_ok_and(|stat| !stat.rsplit_once(')').unwrap().1.starts_with(" Z"))
}

/// Wait for a file that a workload writes.
fn wait_for(path: &str) -> String {
    loop {
        match fs::read_to_string(path) {
            Ok(text) if text.ends_with('\n') => return text,
            _ => std::thread::sleep(std::time::Duration::from_millis(5)),
        }
    }
}

#[test]
fn it_says_what_it_is() {
    let guest = Guest::start();
    let hello = &guest.hello["hello"];
    assert_eq!(number(hello, "v"), 1);
    assert_eq!(text(hello, "arch"), std::env::consts::ARCH);
    assert_eq!(number(hello, "page_size"), rustix::param::page_size() as u64);
    assert!(!hello["cpus"].as_array().unwrap().is_empty());
    assert_eq!(text(hello, "boot_id"), fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim());
    guest.finish();
}

#[test]
fn files_are_put_changed_and_got() {
    let mut guest = Guest::start();
    let path = guest.path("a/b/file");
    guest.ok("put", json!({"path": path, "mode": 0o640, "offset": 0, "data": "aGVs"}));
    guest.ok("put", json!({"path": path, "offset": 3, "data": "bG8K"}));
    assert_eq!(guest.ok("read", json!({"path": path})), json!({"text": "hello\n"}));
    assert_eq!(guest.ok("status", json!({"path": path})), json!({"kind": "file", "mode": 0o640, "size": 6}));
    guest.ok("write", json!({"path": path, "text": "J"}));
    assert_eq!(guest.ok("get", json!({"path": path, "offset": 0, "length": 3})), json!({"data": "SmVs", "size": 6}));
    guest.ok("put", json!({"path": path, "mode": 0o600, "offset": 0, "data": ""}));
    assert_eq!(guest.ok("status", json!({"path": path})), json!({"kind": "file", "mode": 0o600, "size": 0}));
    guest.finish();
}

#[test]
fn folders_are_made_listed_and_removed() {
    let mut guest = Guest::start();
    let (top, parent, deep) = (guest.path("top"), guest.path("top/b"), guest.path("top/b/c"));
    let link = guest.path("top/b/link");
    guest.ok("make", json!({"path": deep, "mode": 0o700}));
    assert_eq!(guest.errno("make", json!({"path": deep})), i64::from(libc::EEXIST));
    guest.ok("make", json!({"path": guest.path("top/a")}));
    assert_eq!(guest.ok("names", json!({"path": top})), json!({"names": ["a", "b"]}));
    let kind = |guest: &mut Guest, path: &str| {
        let status = guest.ok("status", json!({"path": path}));
        (text(&status, "kind").to_owned(), number(&status, "mode"))
    };
    assert_eq!(kind(&mut guest, &deep), ("folder".into(), 0o700));
    assert_eq!(kind(&mut guest, &parent), ("folder".into(), 0o755));
    // A link is removed, and what it leads to is not.
    let kept = guest.path("kept");
    fs::write(&kept, "").unwrap();
    std::os::unix::fs::symlink(guest.folder.path(), &link).unwrap();
    assert_eq!(kind(&mut guest, &link).0, "link");
    for _ in 0..2 {
        guest.ok("remove", json!({"path": top}));
        assert_eq!(kind(&mut guest, &top).0, "none");
    }
    assert!(Path::new(&kept).exists());
    assert_eq!(guest.ok("names", json!({"path": top})), json!({"names": []}));
    guest.finish();
}

#[test]
fn a_part_of_half_a_mebibyte_goes_both_ways() {
    let mut guest = Guest::start();
    let path = guest.path("large");
    let text = "QUJD".repeat((512 << 10) / 3);
    guest.ok("put", json!({"path": path, "offset": 0, "data": text}));
    let got = guest.ok("get", json!({"path": path, "offset": 0, "length": 1 << 30}));
    assert_eq!(got["data"], text.as_str());
    assert_eq!(number(&got, "size"), (text.len() / 4 * 3) as u64);
    guest.ok("put", json!({"path": path, "offset": number(&got, "size"), "data": "AAAAAAAA"}));
    assert_eq!(guest.errno("read", json!({"path": path})), i64::from(libc::EFBIG));
    guest.finish();
}

#[test]
fn what_cannot_be_done_has_an_errno() {
    let mut guest = Guest::start();
    let missing = guest.path("missing");
    for (what, fields, errno) in [
        ("read", json!({"path": missing}), libc::ENOENT),
        ("write", json!({"path": missing, "text": ""}), libc::ENOENT),
        ("get", json!({"path": missing, "offset": 0, "length": 1}), libc::ENOENT),
        ("get", json!({"path": "/dev/zero", "offset": 0, "length": 1}), libc::EINVAL),
        ("read", json!({"path": "relative"}), libc::EINVAL),
        ("remove", json!({"path": "/"}), libc::EINVAL),
        ("wait", json!({"process": 5}), libc::ESRCH),
        ("end", json!({"process": 5, "number": 15}), libc::ESRCH),
        ("signal", json!({"pid": -1, "number": 15}), libc::EINVAL),
        ("settle", json!({"seconds": -1}), libc::EINVAL),
        ("ask", json!({"arguments": ["run"]}), libc::EINVAL),
        ("ask", json!({"arguments": ["touch", "--bytes", "none"]}), libc::EIO),
        ("coverage", json!({"pid": u32::MAX, "source": "smaps"}), libc::ENOENT),
        ("network", json!({"interface": "absent", "address": "10.0.0.1", "prefix": 33}), libc::EINVAL),
        ("fly", json!({}), libc::ENOSYS),
    ] {
        assert_eq!(guest.errno(what, fields.clone()), i64::from(errno), "{what} {fields}");
    }
    guest.finish();
}

#[test]
fn lines_that_make_no_sense_are_answered_without_a_number() {
    let mut guest = Guest::start();
    let errors = [
        (b"not json\n".to_vec(), libc::EINVAL),
        (b"[\"array\"]\n".to_vec(), libc::EINVAL),
        ([vec![b'x'; (1 << 20) + 5], b"\n".to_vec()].concat(), libc::EMSGSIZE),
    ];
    for (line, errno) in errors {
        guest.send(&line);
        let answer = next(&mut guest.lines).unwrap();
        assert_eq!((&answer["id"], answer["error"]["errno"].as_i64()), (&Value::Null, Some(i64::from(errno))));
    }
    assert_eq!(guest.ok("ports", json!({"count": 2}))["ports"].as_array().unwrap().len(), 2);
    guest.finish();
}

#[test]
fn a_process_is_started_followed_and_its_files_are_got() {
    let mut guest = Guest::start();
    let spec = guest.spec(&["sh", "-c", "echo out; echo err >&2; exit 3"]);
    guest.ok("spawn", json!({"process": 7, "spec": spec}));
    guest.ok("wait", json!({"process": 7}));
    let (lines, ended) = guest.story(7);
    assert_eq!(text(&lines[0], "ev"), "start");
    assert_eq!(one(&lines, "exit")["code"], 3);
    assert_eq!(ended, json!({"status": 0, "stderr": ""}));
    assert_eq!(guest.ok("read", json!({"path": guest.path("new/folder/stdout")})), json!({"text": "out\n"}));
    assert_eq!(guest.ok("read", json!({"path": guest.path("new/folder/stderr")})), json!({"text": "err\n"}));
    // The number is taken for good; to wait for it, or to end it, is nothing.
    assert_eq!(guest.errno("spawn", json!({"process": 7, "spec": spec})), i64::from(libc::EEXIST));
    guest.ok("wait", json!({"process": 7}));
    guest.ok("end", json!({"process": 7, "number": 15}));
    guest.finish();
}

#[test]
fn a_micro_workload_runs_and_is_scanned() {
    let mut guest = Guest::start();
    let mut spec = guest.spec(&["chase", "--bytes", "1m", "--loads", "100"]);
    spec["micro"] = true.into();
    spec["scan"] = "exit".into();
    guest.ok("spawn", json!({"process": 1, "spec": spec}));
    guest.ok("wait", json!({"process": 1}));
    let (lines, ended) = guest.story(1);
    assert_eq!(text(one(&lines, "result"), "workload"), "chase");
    assert!(one(&lines, "coverage")["bytes"].is_object());
    assert_eq!(number(&ended, "status"), 0);
    guest.finish();
}

#[test]
fn a_launcher_that_fails_says_why() {
    let mut guest = Guest::start();
    let mut spec = guest.spec(&["true"]);
    spec["timeout_s"] = (-1).into();
    guest.ok("spawn", json!({"process": 2, "spec": spec}));
    guest.ok("wait", json!({"process": 2}));
    let (_, ended) = guest.story(2);
    assert_eq!(number(&ended, "status"), 2);
    assert!(text(&ended, "stderr").contains("timeout_s"), "{ended}");
    spec["barrier"] = json!({"ready": 0, "go": 1});
    assert_eq!(guest.errno("spawn", json!({"process": 3, "spec": spec})), i64::from(libc::EINVAL));
    guest.finish();
}

#[test]
fn the_end_of_a_process_is_the_end_of_its_tree() {
    for (signal, status) in [(libc::SIGTERM, 1), (libc::SIGKILL, 128 + 9)] {
        let mut guest = Guest::start();
        let spec = guest.spec(&["sh", "-c", "sh -c 'echo $$; exec sleep 60' & wait"]);
        guest.ok("spawn", json!({"process": 1, "spec": spec}));
        let pid = wait_for(&guest.path("new/folder/stdout"));
        assert!(is_alive(&pid));
        guest.ok("end", json!({"process": 1, "number": signal}));
        guest.ok("wait", json!({"process": 1}));
        assert!(!is_alive(&pid));
        let (lines, ended) = guest.story(1);
        assert_eq!(number(&ended, "status"), status);
        assert_eq!(number(one(&lines, "exit"), "killed"), 2);
        guest.finish();
    }
}

#[test]
fn the_end_of_the_channel_is_the_end_of_everything() {
    let mut guest = Guest::start();
    let spec = guest.spec(&["sh", "-c", "echo $$; exec sleep 60"]);
    guest.ok("spawn", json!({"process": 1, "spec": spec}));
    let pid = wait_for(&guest.path("new/folder/stdout"));
    let folder = guest.finish();
    assert!(!is_alive(&pid));
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["new"], "the folder of specifications is gone");
}

#[test]
fn a_signal_reaches_one_process() {
    let mut guest = Guest::start();
    let spec = guest.spec(&["sh", "-c", "trap 'echo heard; exit 5' USR1; echo $$; while :; do sleep 0.01; done"]);
    guest.ok("spawn", json!({"process": 1, "spec": spec}));
    let pid: u32 = wait_for(&guest.path("new/folder/stdout")).trim().parse().unwrap();
    guest.ok("signal", json!({"pid": pid, "number": libc::SIGUSR1}));
    guest.ok("wait", json!({"process": 1}));
    let (lines, _) = guest.story(1);
    assert_eq!(one(&lines, "exit")["code"], 5);
    // It is gone now.
    guest.ok("signal", json!({"pid": pid, "number": libc::SIGUSR1}));
    guest.finish();
}

#[test]
fn subcommands_and_scans_answer_with_their_event() {
    let mut guest = Guest::start();
    let touched = guest.ok("ask", json!({"arguments": ["touch", "--bytes", "1m"]}));
    assert_eq!(number(&touched["event"], "bytes"), 1 << 20);
    let held = Held::start(&["chase", "--bytes", "1m", "--loads", "10"]);
    let source = if need_root() { "kpageflags" } else { "smaps" };
    let ranges = held.ranges();
    let seen = guest.ok("coverage", json!({"pid": held.pid(), "ranges": ranges, "source": source}));
    let bytes = seen["event"]["bytes"].as_object().unwrap();
    assert_eq!(bytes.values().map(|value| value.as_u64().unwrap()).sum::<u64>(), 1 << 20);
    assert_eq!(seen["event"]["named"], true);
    let all = guest.ok("coverage", json!({"pid": held.pid(), "ranges": null, "source": source}));
    assert_eq!(all["event"]["named"], false);
    assert!(held.release().success());
    guest.finish();
}

#[test]
fn orders_are_done_before_anything_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let spec = json!({
        "v": 1, "argv": ["sh", "-c", "sleep 0.2; echo done"], "micro": false, "env": {"PATH": "/usr/bin:/bin"},
        "cwd": null, "stdout": path("stdout"), "stderr": path("stderr"), "uid": null, "gid": null,
        "thp_disable": "none", "cgroup_procs": [], "cpus": null, "timeout_s": 60.0, "counters": [], "scan": "none",
        "source": "smaps"
    });
    let mut guest = Guest::with_orders(&[
        json!({"id": 101, "do": "settle", "seconds": 0.01}),
        json!({"id": 102, "do": "spawn", "process": 9, "spec": spec}),
        json!({"id": 103, "do": "wait", "process": 9}),
        json!({"id": 104, "do": "read", "path": path("stdout")}),
        json!({"id": 105, "do": "fly"}),
        json!({"id": 106, "do": "ask", "arguments": ["touch", "--bytes", "64k"]}),
        json!({"id": 107, "do": "ports", "count": 1}),
    ]);
    // The hello has come, so all of it is done.
    assert_eq!(fs::read_to_string(path("stdout")).unwrap(), "done\n");
    assert!(guest.ok("ports", json!({"count": 0})).is_object());
    let said = &guest.events;
    let ids: Vec<u64> = said.iter().filter_map(|line| line["id"].as_u64()).collect();
    assert_eq!(ids, [101, 102, 103, 104, 105, 106, 107]);
    let at = |wanted: &dyn Fn(&Value) -> bool| said.iter().position(wanted).unwrap();
    let (started, ended) = (at(&|line| line["id"] == 102), at(&|line| !line["ended"].is_null()));
    assert!(started < ended && ended < at(&|line| line["id"] == 103));
    assert_eq!(said[at(&|line| line["id"] == 104)]["ok"], json!({"text": "done\n"}));
    guest.finish();
}

#[test]
fn poweroff_is_answered_and_then_happens() {
    let mut guest = Guest::start();
    let spec = guest.spec(&["sleep", "60"]);
    guest.ok("spawn", json!({"process": 1, "spec": spec}));
    guest.ok("poweroff", json!({}));
    assert!(guest.agent.wait().unwrap().success());
    assert!(next(&mut guest.lines).is_none());
}

#[test]
fn a_held_process_says_that_it_is_ready_and_begins_when_it_is_released() {
    let mut guest = Guest::start();
    let mut spec = guest.spec(&["fault", "--bytes", "1m", "--gate"]);
    spec["micro"] = true.into();
    guest.ok("spawn", json!({"process": 1, "spec": spec, "held": true}));
    let ready = json!({"process": 1, "ready": true});
    while !guest.events.contains(&ready) {
        let event = next(&mut guest.lines).unwrap();
        guest.events.push(event);
    }
    // Nothing of it is over before.
    assert!(!guest.events.iter().any(|event| event["line"].as_str().is_some_and(|line| line.contains("result"))));
    guest.events.clear();
    guest.ok("release", json!({"process": 1}));
    guest.ok("release", json!({"process": 1}));
    guest.ok("wait", json!({"process": 1}));
    let (lines, ended) = guest.story(1);
    assert_eq!(text(one(&lines, "result"), "workload"), "fault");
    assert_eq!(number(&ended, "status"), 0);
    assert_eq!(guest.errno("release", json!({"process": 2})), i64::from(libc::ESRCH));
    guest.finish();
}

#[test]
fn one_that_ends_before_its_barrier_is_not_waited_for() {
    let mut guest = Guest::start();
    let spec = guest.spec(&["no-such-program"]);
    guest.ok("spawn", json!({"process": 1, "spec": spec, "held": true}));
    guest.ok("wait", json!({"process": 1}));
    assert!(guest.events.iter().all(|event| event["ready"].is_null()), "{:?}", guest.events);
    guest.finish();
}

#[test]
fn it_tells_its_clock() {
    let mut guest = Guest::start();
    let read = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
    let before = read();
    let told = number(&guest.ok("clock", json!({})), "realtime_ns");
    assert!((before..=read()).contains(&told));
    guest.finish();
}

#[test]
fn after_a_silence_it_ends_with_all_that_runs() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = probe();
    command.args(["agent", "--channel", "-", "--silence", "8"]).env("TMPDIR", folder.path());
    let mut agent = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(agent.stdout.take().unwrap());
    let hello = next(&mut lines).unwrap();
    let requests = agent.stdin.take();
    let mut guest = Guest { agent, requests, lines, hello, events: Vec::new(), last: 0, folder };
    let spec = guest.spec(&["sh", "-c", "echo $$; exec sleep 60"]);
    guest.ok("spawn", json!({"process": 1, "spec": spec}));
    let pid = wait_for(&guest.path("new/folder/stdout"));
    // The channel is open all the while.
    assert!(guest.agent.wait().unwrap().success());
    assert!(!is_alive(&pid));
    guest.finish();
}

#[test]
fn a_command_reads_its_stdin_from_a_file_of_its_own_and_from_no_link() {
    let mut guest = Guest::start();
    let (file, link) = (guest.path("words"), guest.path("link"));
    fs::write(&file, "from a file\n").unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let mut spec = guest.spec(&["cat"]);
    spec["stdin"] = file.into();
    guest.ok("spawn", json!({"process": 1, "spec": spec}));
    guest.ok("wait", json!({"process": 1}));
    assert_eq!(guest.ok("read", json!({"path": guest.path("new/folder/stdout")})), json!({"text": "from a file\n"}));
    spec["stdin"] = link.into();
    guest.ok("spawn", json!({"process": 2, "spec": spec}));
    guest.ok("wait", json!({"process": 2}));
    let told: Vec<Value> = guest.events.iter().filter(|event| event["process"] == 2).cloned().collect();
    assert!(told.iter().any(|event| event.to_string().contains("(stdin: ")), "{told:?}");
    guest.finish();
}
