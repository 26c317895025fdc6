//! What the tests of the program share: starting it, reading its events, and what a test needs of the machine.
#![allow(dead_code)] // Each test program uses a part.

pub mod attempt;

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};

use serde_json::Value;

/// The program under test.
pub fn probe() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hugewise-probe"));
    command.stdin(Stdio::null());
    command
}

/// Whether a test can go on; if not, say what the machine lacks. With HUGEWISE_REQUIRE_ALL=1 that is a failure.
pub fn need(is_there: bool, requirement: &str) -> bool {
    if !is_there {
        let all = std::env::var("HUGEWISE_REQUIRE_ALL").is_ok_and(|value| value == "1");
        assert!(!all, "requires: {requirement}");
        eprintln!("not run, requires: {requirement}");
    }
    is_there
}

/// Whether the test may see physical pages.
pub fn need_root() -> bool {
    need(
        rustix::process::geteuid().is_root() && std::fs::File::open("/proc/kpageflags").is_ok(),
        "root, /proc/kpageflags",
    )
}

/// The events in `stdout`.
pub fn events(stdout: &[u8]) -> Vec<Value> {
    String::from_utf8_lossy(stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The event of `kind`.
pub fn one<'a>(events: &'a [Value], kind: &str) -> &'a Value {
    events.iter().find(|event| event["ev"] == kind).unwrap_or_else(|| panic!("no {kind} in {events:?}"))
}

pub fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("no number {key} in {value}"))
}

pub fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("no text {key} in {value}"))
}

/// The address ranges of a maps file.
pub fn index(maps: &str) -> Vec<(u64, u64)> {
    let hexadecimal = |text: &str| u64::from_str_radix(text, 16).unwrap();
    let addresses = |line: &str| {
        let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        (hexadecimal(start), hexadecimal(end))
    };
    maps.lines().map(addresses).collect()
}

/// A micro-workload that holds its memory. It ends when it is released, or dropped.
pub struct Held {
    child: Child,
    stdin: Option<ChildStdin>,
    hold: Value,
}

impl Held {
    /// Start it and wait until it holds.
    pub fn start(arguments: &[&str]) -> Self {
        let mut command = probe();
        command.args(arguments);
        Self::start_command(command)
    }

    /// The same for a prepared command.
    pub fn start_command(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let said = lines.map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
        let hold = said.into_iter().find(|event| event["ev"] == "hold").expect("the workload ended without a hold");
        let stdin = child.stdin.take();
        Self { child, stdin, hold }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The named ranges: start and end.
    pub fn ranges(&self) -> Vec<(u64, u64)> {
        let ranges = self.hold["ranges"].as_array().unwrap();
        ranges.iter().map(|range| (number(range, "start"), number(range, "end"))).collect()
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub fn release(mut self) -> ExitStatus {
        self.stdin = None;
        self.child.wait().unwrap()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.stdin = None;
        // It leaves by itself once its stdin is closed; nothing is left to report if it has gone already.
        let _ = self.child.wait();
    }
}
