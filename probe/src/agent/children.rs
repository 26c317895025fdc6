//! The programs that the agent starts: launchers, and short subcommands of this same program.
//!
//! They are this program itself, by /proc/self/exe: that reaches it also when the agent has moved into another root.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::event::{PollFd, PollFlags};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::pipe::{PipeFlags, pipe_with};
use serde_json::{Value, json};

use super::files;
use super::protocol::{Ended, Failure, LONGEST_LINE, Said};
use crate::common::lines::{Line, Lines};
use crate::process::change::{Pid, next_change};

/// What is kept of a stderr.
const TAIL: usize = 4096;
/// Longest line that is passed on: as text within another line it may double.
const LONGEST: usize = LONGEST_LINE / 2 - 128;
/// The subcommands that `ask` may start.
const SHORT: [&str; 4] = ["cpu", "touch", "counters", "scan"];

/// All of them.
pub struct Children {
    folder: PathBuf,
    living: Vec<Child>,
    ended: BTreeSet<u64>,
}

struct Child {
    purpose: Purpose,
    pid: Pid,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
    gate: Option<Gate>,
    lines: Lines,
    tail: Vec<u8>,
    status: Option<libc::c_int>,
}

/// The agent's ends of the barrier that a launcher meets: a byte comes from `ready`, and all is let go by closing `go`.
struct Gate {
    ready: Option<OwnedFd>,
    go: Option<OwnedFd>,
}

/// Why it was started.
enum Purpose {
    /// The host's process of this number.
    Process(u64),
    /// To answer the request of this number by the first line that it says.
    Answer { id: u64, line: Option<String> },
}

impl Children {
    /// `folder`: where specifications are kept; it is made when the first one comes.
    pub fn new(folder: PathBuf) -> Children {
        Children { folder, living: Vec::new(), ended: BTreeSet::new() }
    }

    /// Start a launcher for the host's process of this number; `held`: it waits at a barrier until it is released.
    pub fn spawn(&mut self, process: u64, mut spec: Value, held: bool) -> Result<Value, Failure> {
        if self.knows(process) {
            return Err(Failure::new(libc::EEXIST, format!("there was a process {process} before")));
        }
        if spec.get("barrier").is_some_and(|barrier| !barrier.is_null()) {
            return Err(Failure::invalid("barrier: descriptors of the host do not exist here"));
        }
        for key in ["stdout", "stderr"] {
            let path = spec.get(key).and_then(Value::as_str).unwrap_or_default();
            files::parents(files::absolute(path)?)?;
        }
        let folder = self.place(process);
        fs::create_dir_all(&folder)?;
        let told = folder.join("spec.json");
        // Nobody else reads it: the environment of a command can hold secrets.
        // The launcher's ends are closed here when it has them.
        let (gate, _inherited) = if held { gate(&mut spec)? } else { (None, None) };
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&told)?;
        file.write_all(spec.to_string().as_bytes())?;
        self.start(Purpose::Process(process), gate, &["run".as_ref(), "--spec".as_ref(), told.as_os_str()])?;
        Ok(json!({}))
    }

    /// Let a launcher go on that waits at its barrier; nothing happens the second time, or when it has ended.
    pub fn release(&mut self, process: u64) -> Result<Value, Failure> {
        self.must_know(process)?;
        let is_its = |child: &&mut Child| matches!(child.purpose, Purpose::Process(number) if number == process);
        if let Some(gate) = self.living.iter_mut().find(is_its).and_then(|child| child.gate.as_mut()) {
            gate.go = None;
        }
        Ok(json!({}))
    }

    /// Start a short subcommand, whose first line answers the request `id`.
    pub fn ask(&mut self, id: u64, arguments: &[String]) -> Result<(), Failure> {
        if !arguments.first().is_some_and(|name| SHORT.contains(&name.as_str())) {
            return Err(Failure::invalid(format!("arguments: {arguments:?}: the first is one of {SHORT:?}")));
        }
        let words: Vec<&OsStr> = arguments.iter().map(AsRef::as_ref).collect();
        Ok(self.start(Purpose::Answer { id, line: None }, None, &words)?)
    }

    fn start(&mut self, purpose: Purpose, gate: Option<Gate>, arguments: &[&OsStr]) -> io::Result<()> {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("hugewise-probe").args(arguments).env_clear();
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let pid = child.id() as Pid;
        // The ends that stay here are read only when poll(2) says so, and once: they need not be non-blocking.
        self.living.push(Child {
            purpose,
            pid,
            stdout: child.stdout.map(OwnedFd::from),
            stderr: child.stderr.map(OwnedFd::from),
            gate,
            lines: Lines::new(LONGEST),
            tail: Vec::new(),
            status: None,
        });
        Ok(())
    }

    /// Send a signal to the launcher of a process; nothing happens when it has ended.
    pub fn end(&self, process: u64, number: i32) -> Result<Value, Failure> {
        self.must_know(process)?;
        match self.find(process).filter(|child| child.status.is_none()) {
            Some(child) => signal(child.pid, number),
            None => Ok(json!({})),
        }
    }

    /// Whether it has ended, and that was said. ESRCH: there was never such a process.
    pub fn has_ended(&self, process: u64) -> Result<bool, Failure> {
        self.must_know(process)?;
        Ok(self.ended.contains(&process))
    }

    fn knows(&self, process: u64) -> bool {
        self.ended.contains(&process) || self.find(process).is_some()
    }

    fn must_know(&self, process: u64) -> Result<(), Failure> {
        let unknown = || Failure::new(libc::ESRCH, format!("there was never a process {process}"));
        self.knows(process).then_some(()).ok_or_else(unknown)
    }

    pub fn is_empty(&self) -> bool {
        self.living.is_empty()
    }

    /// Whether a request waits for what a subcommand says.
    pub fn owes_answer(&self) -> bool {
        self.living.iter().any(|child| matches!(child.purpose, Purpose::Answer { .. }))
    }

    /// Ask all launchers to end everything below them.
    pub fn end_all(&self) {
        for child in self.living.iter().filter(|child| child.status.is_none()) {
            // It is there, as it has not been reaped.
            let _ = signal(child.pid, libc::SIGTERM);
        }
    }

    /// The open pipes, for poll(2).
    pub fn pipes(&self) -> Vec<PollFd<'_>> {
        self.living.iter().flat_map(Child::ends).flatten().map(|end| PollFd::new(end, PollFlags::IN)).collect()
    }

    /// Read what has come; `ready` says for each of `pipes`, in their order, whether something has.
    pub fn hear(&mut self, ready: &[bool]) -> io::Result<Vec<Said>> {
        let mut said = Vec::new();
        let mut ready = ready.iter();
        for child in &mut self.living {
            if child.stdout.is_some() && ready.next() == Some(&true) {
                said.extend(child.hear_stdout()?);
            }
            if child.stderr.is_some() && ready.next() == Some(&true) {
                child.hear_stderr()?;
            }
            if child.gate.as_ref().is_some_and(|gate| gate.ready.is_some()) && ready.next() == Some(&true) {
                said.extend(child.hear_ready()?);
            }
        }
        Ok(said)
    }

    /// Take the statuses of all that has ended, what was orphaned and came to init included.
    pub fn reap(&mut self) -> io::Result<()> {
        loop {
            match next_change() {
                Ok(Some(change)) => {
                    let child = self.living.iter_mut().find(|child| child.pid == change.pid && child.status.is_none());
                    if let Some(child) = child.filter(|_| change.is_end()) {
                        child.status = Some(change.status);
                    }
                }
                Ok(None) => return Ok(()),
                Err(error) if error.raw_os_error() == Some(libc::ECHILD) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Let go of those that are reaped and have said everything, and tell so.
    pub fn bury(&mut self) -> Vec<Said> {
        let (gone, living): (Vec<Child>, Vec<Child>) = std::mem::take(&mut self.living)
            .into_iter()
            .partition(|child| child.status.is_some() && child.stdout.is_none() && child.stderr.is_none());
        self.living = living;
        gone.into_iter()
            .map(|child| {
                if let Purpose::Process(process) = child.purpose {
                    self.ended.insert(process);
                    // On a file system of the guest, which goes away with it.
                    let _ = fs::remove_dir_all(self.place(process));
                }
                child.epitaph()
            })
            .collect()
    }

    fn place(&self, process: u64) -> PathBuf {
        self.folder.join(process.to_string())
    }

    fn find(&self, process: u64) -> Option<&Child> {
        self.living.iter().find(|child| matches!(child.purpose, Purpose::Process(number) if number == process))
    }
}

impl Child {
    /// The pipes that are open, in the order in which they are heard.
    fn ends(&self) -> [Option<&OwnedFd>; 3] {
        let ready = self.gate.as_ref().and_then(|gate| gate.ready.as_ref());
        [self.stdout.as_ref(), self.stderr.as_ref(), ready]
    }

    fn hear_stdout(&mut self) -> io::Result<Vec<Said>> {
        let mut chunk = [0u8; 16 * 1024];
        let length = read_once(&mut self.stdout, &mut chunk)?;
        let lines = self.lines.push(&chunk[..length]);
        if self.stdout.is_none() && self.lines.finish().is_some() {
            self.keep(b"hugewise-probe agent: it ended in the middle of a line, which is left out\n");
        }
        Ok(lines.into_iter().filter_map(|line| self.take(line)).collect())
    }

    fn hear_stderr(&mut self) -> io::Result<()> {
        let mut chunk = [0u8; 4096];
        let length = read_once(&mut self.stderr, &mut chunk)?;
        self.keep(&chunk[..length]);
        Ok(())
    }

    /// At its barrier, or past it.
    fn hear_ready(&mut self) -> io::Result<Option<Said>> {
        let Some(gate) = self.gate.as_mut() else { return Ok(None) };
        let length = read_once(&mut gate.ready, &mut [0u8; 8])?;
        Ok(match self.purpose {
            Purpose::Process(process) if length > 0 => Some(Said::Ready { process, ready: true }),
            _ => None,
        })
    }

    fn take(&mut self, line: Line) -> Option<Said> {
        let Line::Whole(line) = line else {
            self.keep(format!("hugewise-probe agent: a line of more than {LONGEST} bytes was left out\n").as_bytes());
            return None;
        };
        let text = String::from_utf8_lossy(&line).into_owned();
        match &mut self.purpose {
            Purpose::Process(process) => Some(Said::Line { process: *process, line: text }),
            Purpose::Answer { line, .. } => {
                line.get_or_insert(text);
                None
            }
        }
    }

    /// Keep the last of what it says to people.
    fn keep(&mut self, chunk: &[u8]) {
        self.tail.extend_from_slice(chunk);
        self.tail.drain(..self.tail.len().saturating_sub(TAIL));
    }

    /// What is said at its end.
    fn epitaph(self) -> Said {
        let status = exit_status(self.status.unwrap_or_default());
        let stderr = String::from_utf8_lossy(&self.tail).into_owned();
        match self.purpose {
            Purpose::Process(process) => Said::Ended { process, ended: Ended { status, stderr } },
            Purpose::Answer { id, line } => match line.and_then(|line| serde_json::from_str::<Value>(&line).ok()) {
                Some(event) if status == 0 => Said::Ok { id, ok: json!({"event": event}) },
                _ => {
                    let message = format!("it ended with status {status}: {}", stderr.trim_end());
                    Said::Error { id: Some(id), error: Failure::new(libc::EIO, message) }
                }
            },
        }
    }
}

/// The ends of a barrier: those that stay here, and the launcher's, which it inherits and is told of.
fn gate(spec: &mut Value) -> Result<(Option<Gate>, Option<[OwnedFd; 2]>), Failure> {
    let (ready, arrives) = pipe_with(PipeFlags::CLOEXEC)?;
    let (waits, go) = pipe_with(PipeFlags::CLOEXEC)?;
    for end in [&arrives, &waits] {
        fcntl_setfd(end, FdFlags::empty())?;
    }
    let fields = spec.as_object_mut().ok_or_else(|| Failure::invalid("spec: it is no object"))?;
    fields.insert("barrier".into(), json!({"ready": arrives.as_raw_fd(), "go": waits.as_raw_fd()}));
    Ok((Some(Gate { ready: Some(ready), go: Some(go) }), Some([arrives, waits])))
}

/// kill(2) for one process; nothing happens when it is gone.
pub fn signal(pid: Pid, number: i32) -> Result<Value, Failure> {
    // 0 and below are groups, and 1 is the guest itself.
    if pid <= 1 {
        return Err(Failure::invalid(format!("pid {pid}: only single processes get signals, and init none")));
    }
    // SAFETY: integers only.
    match unsafe { libc::kill(pid, number) } {
        0 => Ok(json!({})),
        _ => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ESRCH) => Ok(json!({})),
            error => Err(error.into()),
        },
    }
}

/// One read(2), after poll(2) has said that it will not wait. At the end the pipe is closed.
fn read_once(end: &mut Option<OwnedFd>, chunk: &mut [u8]) -> io::Result<usize> {
    let Some(open) = end else { return Ok(0) };
    match rustix::io::read(open, chunk) {
        Ok(0) => {
            *end = None;
            Ok(0)
        }
        Ok(length) => Ok(length),
        Err(rustix::io::Errno::INTR) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

/// As a shell says it: 128 and the signal that killed it.
fn exit_status(status: libc::c_int) -> i32 {
    if libc::WIFSIGNALED(status) { 128 + libc::WTERMSIG(status) } else { libc::WEXITSTATUS(status) }
}
