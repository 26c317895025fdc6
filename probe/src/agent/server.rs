//! Requests in, answers and events out: one thread, one poll(2).

use std::io;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;

use super::channel::Channel;
use super::children::{self, Children};
use super::files::{self, Owner};
use super::network;
use super::protocol::{self, Do, Failure, LONGEST_LINE, Said, encode};
use crate::common::lines::{Line, Lines};
use crate::process::signals::{Came, Signals};
use crate::protocol::event::Range;
use crate::scan::scan_process;

/// While so much waits for a slow host, the pipes of processes are not read, so that these wait too. Requests are.
const PLENTY: usize = 4 * LONGEST_LINE;
const LONGEST_REST: f64 = 86_400.0;

pub struct Server {
    signals: Signals,
    children: Children,
    requests: Lines,
    /// What is to be said, from `said` on.
    outbox: Vec<u8>,
    said: usize,
    /// Requests that wait for the end of a process: their number and the process's.
    waiting: Vec<(u64, u64)>,
    is_leaving: bool,
    /// When something was heard last, and after how long a silence nobody is there any more.
    heard: Instant,
    silence: Option<Duration>,
}

/// An answer now, or later by an event.
enum Reply {
    Now(serde_json::Value),
    Later,
}

impl Server {
    pub fn new(signals: Signals, children: Children) -> Server {
        Server {
            signals,
            children,
            requests: Lines::new(LONGEST_LINE - 1),
            outbox: Vec::new(),
            said: 0,
            waiting: Vec::new(),
            is_leaving: false,
            heard: Instant::now(),
            silence: None,
        }
    }

    /// Do requests one after the other, and keep what there is to say.
    pub fn obey(&mut self, orders: &[u8]) -> io::Result<()> {
        let mut lines = Lines::new(LONGEST_LINE - 1);
        let mut found = lines.push(orders);
        found.extend(lines.finish());
        for line in found {
            self.take(line);
            while self.children.owes_answer() || !self.waiting.is_empty() {
                self.turn(None)?;
            }
            if self.is_leaving {
                break;
            }
        }
        Ok(())
    }

    /// Serve the channel until the host asks for the end, or nobody is there any more.
    pub fn serve(&mut self, channel: &Channel, silence: Option<Duration>) -> io::Result<()> {
        (self.heard, self.silence) = (Instant::now(), silence);
        while !self.is_leaving || self.said < self.outbox.len() {
            if !self.turn(Some(channel))? {
                break;
            }
        }
        Ok(())
    }

    /// End all processes and wait for that; nobody is told.
    pub fn end_all(&mut self) -> io::Result<()> {
        self.children.end_all();
        while !self.children.is_empty() {
            self.outbox.clear();
            self.said = 0;
            self.turn(None)?;
        }
        Ok(())
    }

    pub fn say(&mut self, said: &Said) {
        match encode(said) {
            Some(line) => self.outbox.extend_from_slice(&line),
            None => eprintln!("hugewise-probe agent: an event was left out: it is longer than {LONGEST_LINE} bytes"),
        }
    }

    /// Wait for something, and do it. False: the channel has ended.
    fn turn(&mut self, channel: Option<&Channel>) -> io::Result<bool> {
        let pending = self.signals.descriptor()?;
        let has_words = self.said < self.outbox.len();
        let is_full = self.outbox.len() - self.said > PLENTY && channel.is_some();
        let mut descriptors = vec![PollFd::new(&pending, PollFlags::IN)];
        if !is_full {
            descriptors.extend(self.children.pipes());
        }
        let pipes = descriptors.len() - 1;
        if let Some(channel) = channel {
            let output = if has_words { PollFlags::OUT } else { PollFlags::empty() };
            descriptors.push(PollFd::from_borrowed_fd(channel.output(), output));
            if !self.is_leaving {
                descriptors.push(PollFd::from_borrowed_fd(channel.input(), PollFlags::IN));
            }
        }
        let left = self.silence.filter(|_| channel.is_some()).map(|most| most.saturating_sub(self.heard.elapsed()));
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(false);
        }
        let left = left.map(|left| Timespec { tv_sec: left.as_secs() as i64 + 1, tv_nsec: 0 });
        match poll(&mut descriptors, left.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
        let ready: Vec<PollFlags> = descriptors.iter().map(PollFd::revents).collect();
        drop(descriptors);
        if !ready[0].is_empty() {
            while self.signals.wait(Some(Duration::ZERO)) == Came::Child {}
            self.children.reap()?;
        }
        let heard: Vec<bool> = ready[1..=pipes].iter().map(|flags| !flags.is_empty()).collect();
        let mut said = self.children.hear(&heard)?;
        said.extend(self.children.bury());
        said.iter().for_each(|said| self.say(said));
        self.answer_waiting();
        match channel {
            Some(channel) => {
                self.talk(channel, ready[pipes + 1], ready.get(pipes + 2).copied().unwrap_or(PollFlags::empty()))
            }
            None => Ok(true),
        }
    }

    /// Write and read. False: nobody is there who could hear. When the host says no more, it is told the rest.
    fn talk(&mut self, channel: &Channel, output: PollFlags, input: PollFlags) -> io::Result<bool> {
        let is_broken = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
        if output.intersects(is_broken) {
            return Ok(false);
        }
        if output.contains(PollFlags::OUT) {
            self.said += channel.write(&self.outbox[self.said..])?;
            if self.said == self.outbox.len() {
                self.outbox.clear();
                self.said = 0;
            }
        }
        if input.contains(PollFlags::IN) {
            let mut chunk = [0u8; 32 * 1024];
            let bytes = channel.read(&mut chunk)?;
            self.heard = Instant::now();
            let mut lines = self.requests.push(bytes.unwrap_or_default());
            if bytes.is_none() {
                self.is_leaving = true;
                lines.extend(self.requests.finish());
            }
            lines.into_iter().for_each(|line| self.take(line));
        } else if input.intersects(is_broken) {
            self.is_leaving = true;
        }
        Ok(true)
    }

    fn answer_waiting(&mut self) {
        let children = &self.children;
        let (done, waiting): (Vec<_>, Vec<_>) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|(_, process)| children.has_ended(*process).unwrap_or(true));
        self.waiting = waiting;
        done.into_iter().for_each(|(id, _)| self.say(&Said::Ok { id, ok: json!({}) }));
    }

    fn take(&mut self, line: Line) {
        let request = match line {
            Line::Whole(line) => protocol::parse(&line),
            Line::TooLong => {
                let message = format!("a line has at most {LONGEST_LINE} bytes");
                protocol::Request { id: None, what: Err(Failure::new(libc::EMSGSIZE, message)) }
            }
        };
        let id = request.id;
        let reply = request.what.and_then(|what| self.act(id.unwrap_or_default(), what));
        match (reply, id) {
            (Ok(Reply::Now(ok)), Some(id)) => self.say(&Said::Ok { id, ok }),
            (Err(error), id) => self.say(&Said::Error { id, error }),
            (Ok(_), _) => {}
        }
    }

    fn act(&mut self, id: u64, what: Do) -> Result<Reply, Failure> {
        let done = match what {
            Do::Read { path } => files::read(&path),
            Do::Write { path, text } => files::write(&path, &text),
            Do::Names { path } => files::names(&path),
            Do::Status { path } => files::status(&path),
            Do::Make { path, mode, uid, gid } => files::make(&path, Owner { mode: mode.unwrap_or(0o755), uid, gid }),
            Do::Remove { path } => files::remove(&path),
            Do::Put { path, mode, uid, gid, offset, data } => {
                files::put(&path, Owner { mode: mode.unwrap_or(0o644), uid, gid }, offset, &data)
            }
            Do::Get { path, offset, length } => files::get(&path, offset, length),
            Do::Mount { source, target, kind, options } => {
                files::mount(&source, &target, &kind, &options.unwrap_or_default())
            }
            Do::Network { interface, address, prefix, gateway } => {
                network::configure(&interface, address, prefix, gateway)
            }
            Do::Ports { count } => network::ports(count),
            Do::Spawn { process, spec, held } => self.children.spawn(process, spec, held),
            Do::Release { process } => self.children.release(process),
            Do::Signal { pid, number } => children::signal(pid, number),
            Do::End { process, number } => self.children.end(process, number),
            Do::Coverage { pid, ranges, source } => {
                let range = |&(start, end): &(u64, u64)| Range { start, end };
                let ranges: Option<Vec<Range>> = ranges.map(|ranges| ranges.iter().map(range).collect());
                let event = scan_process(pid, pid, ranges.as_deref(), source)?;
                Ok(json!({"event": event}))
            }
            Do::Ask { arguments } => {
                self.children.ask(id, &arguments)?;
                return Ok(Reply::Later);
            }
            Do::Wait { process } => {
                if !self.children.has_ended(process)? {
                    self.waiting.push((id, process));
                    return Ok(Reply::Later);
                }
                Ok(json!({}))
            }
            Do::Settle { seconds } => settle(seconds),
            Do::Clock {} => Ok(clock()),
            Do::Poweroff {} => {
                self.is_leaving = true;
                Ok(json!({}))
            }
        };
        done.map(Reply::Now)
    }
}

/// The time of day here, in nanoseconds since 1970.
fn clock() -> serde_json::Value {
    let now = clock_gettime(ClockId::Realtime);
    json!({"realtime_ns": now.tv_sec * 1_000_000_000 + now.tv_nsec})
}

/// Sleep, so that what a kernel still does after its start is done before something is counted.
fn settle(seconds: f64) -> Result<serde_json::Value, Failure> {
    if !(0.0..=LONGEST_REST).contains(&seconds) {
        return Err(Failure::invalid(format!("seconds {seconds}: from 0 to {LONGEST_REST}")));
    }
    std::thread::sleep(Duration::from_secs_f64(seconds));
    Ok(json!({}))
}
