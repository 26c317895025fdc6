//! Counting processes that run already.

mod common;

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use common::{events, need, number, one, probe, text};
use serde_json::Value;

/// A program that says when it is ready, and waits.
struct Waiting {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Waiting {
    fn start(arguments: &[&str]) -> Self {
        let mut child = probe().args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let stdin = child.stdin.take();
        let mut waiting = Self { child, stdin, lines };
        waiting.phase("ready");
        waiting
    }

    fn next(&mut self) -> Value {
        serde_json::from_str(&self.lines.next().expect("it has ended").unwrap()).unwrap()
    }

    fn phase(&mut self, name: &str) {
        let event = self.next();
        assert_eq!((text(&event, "ev"), text(&event, "name")), ("phase", name), "{event}");
    }

    fn go(&mut self) {
        self.stdin.as_mut().unwrap().write_all(b"g").unwrap();
    }

    /// Everything that it still says, when its stdin has ended.
    fn end(mut self) -> Vec<Value> {
        drop(self.stdin.take());
        let said = std::iter::from_fn(|| self.lines.next()).map(|line| serde_json::from_str(&line.unwrap()).unwrap());
        let said = said.collect();
        assert!(self.child.wait().unwrap().success());
        said
    }
}

/// 1,024 base pages are touched once it is let go.
fn toucher() -> Waiting {
    Waiting::start(&["fault", "--bytes", "4m", "--rounds", "1", "--advice", "nohuge", "--gate", "--no-hold"])
}

fn counting(pids: &[u32], names: &str) -> Waiting {
    let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
    let mut arguments = vec!["count", "--counters", names];
    pids.iter().for_each(|pid| arguments.extend(["--pid", pid]));
    Waiting::start(&arguments)
}

#[test]
fn what_a_running_process_does_is_counted_from_the_beginning_to_the_end_that_were_asked_for() {
    let mut other = toucher();
    let mut counter = counting(&[other.child.id()], "page-faults,task-clock,cycles,nonsense,dtlb-walk-steps");
    counter.go();
    counter.phase("timed");
    other.go();
    let facts = one(&other.end(), "result")["facts"].clone();
    let said = counter.end();
    assert_eq!(text(&said[0], "name"), "held");
    let counters = one(&said, "counters");
    assert_eq!(text(counters, "scope"), "timed");
    let values = &counters["values"];
    assert!(text(&values["nonsense"], "reason").contains("unknown counter"));
    // Hardware counters have a value or a reason, never neither.
    for name in ["cycles", "dtlb-walk-steps"] {
        assert!(values[name]["value"].is_u64() != values[name]["reason"].is_string(), "{values}");
    }
    if need(values["page-faults"]["value"].is_u64(), "perf events") {
        let faults = number(&values["page-faults"], "value");
        let known = number(&facts, "minor_faults") + number(&facts, "major_faults");
        assert!(known >= 1024 && (known..known + 200).contains(&faults), "{faults} of {known}");
        assert!(number(&values["task-clock"], "value") > 0);
    }
}

#[test]
fn nothing_outside_the_measured_part_is_counted() {
    let (mut before, mut after) = (toucher(), toucher());
    let mut counter = counting(&[before.child.id(), after.child.id()], "page-faults");
    before.go();
    before.end();
    counter.go();
    counter.phase("timed");
    drop(counter.stdin.take());
    counter.phase("held");
    after.go();
    after.end();
    let said = counter.end();
    let count = &one(&said, "counters")["values"]["page-faults"];
    // Both slept meanwhile.
    assert!(count["value"].is_null() && text(count, "reason").contains("nothing ran"), "{count}");
}

#[test]
fn who_has_gone_is_told_beside_what_was_counted() {
    let mut gone = probe().arg("cpu").stdout(Stdio::null()).spawn().unwrap();
    gone.wait().unwrap();
    let mut other = toucher();
    let mut counter = counting(&[gone.id(), other.child.id()], "page-faults");
    counter.go();
    counter.phase("timed");
    other.go();
    other.end();
    let said = counter.end();
    let count = &one(&said, "counters")["values"]["page-faults"];
    if need(count["value"].is_u64(), "perf events") {
        assert!(number(count, "value") >= 1024);
        assert!(text(count, "reason").contains("1 of 2 threads had ended"), "{count}");
    }
}

#[test]
fn without_a_beginning_it_ends_with_an_error() {
    let own = std::process::id().to_string();
    let output = probe().args(["count", "--counters", "page-faults", "--pid", &own]).output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("stdin ended before"));
    assert_eq!(events(&output.stdout).len(), 1);
}
