//! One connection: a non-blocking socket, what is under way on it, and what has come in part.

use std::collections::VecDeque;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result};
use rustix::io::Errno;

use crate::load::options::Address;
use crate::load::secret::Secret;
use crate::load::source::Op;

const FIRST_BUFFER: usize = 16 << 10;

/// A request under way.
#[derive(Debug, Clone, Copy)]
pub struct Sent {
    /// When it was sent, or was to be sent.
    pub at_ns: u64,
    pub op: Op,
}

pub struct Connection {
    socket: OwnedFd,
    /// Which of its thread's lanes it belongs to.
    pub lane: usize,
    pub waiting: VecDeque<Sent>,
    /// Whether its lane's queue of connections that can take a request has it.
    pub is_queued: bool,
    input: Vec<u8>,
    start: usize,
    end: usize,
    output: Vec<u8>,
    written: usize,
}

/// Open a blocking connection on which a server that wants a password has been told it.
pub fn connect(address: &Address, secret: Option<&Secret>) -> Result<OwnedFd> {
    let socket = reach(address)?;
    match secret {
        None => Ok(socket),
        Some(secret) => secret.show(socket).with_context(|| format!("showing {address} the password")),
    }
}

fn reach(address: &Address) -> Result<OwnedFd> {
    let socket = match address {
        Address::Unix(path) => UnixStream::connect(path).map(OwnedFd::from),
        Address::Tcp(address) => TcpStream::connect(address).and_then(|stream| {
            stream.set_nodelay(true)?;
            Ok(OwnedFd::from(stream))
        }),
    };
    socket.with_context(|| format!("cannot connect to {address}; is the server started and does it listen there?"))
}

impl Connection {
    pub fn open(address: &Address, secret: Option<&Secret>, lane: usize) -> Result<Self> {
        let socket = connect(address, secret)?;
        rustix::io::ioctl_fionbio(&socket, true).context("making a socket non-blocking")?;
        Ok(Self {
            socket,
            lane,
            waiting: VecDeque::new(),
            is_queued: false,
            input: vec![0; FIRST_BUFFER],
            start: 0,
            end: 0,
            output: Vec::new(),
            written: 0,
        })
    }

    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Read once what is there. False: the server has closed its end. Nothing there is no error.
    pub fn fill(&mut self) -> Result<bool, Errno> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.end == self.input.len() {
            self.input.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            if self.end == self.input.len() {
                self.input.resize(2 * self.end, 0);
            }
        }
        match rustix::io::read(&self.socket, &mut self.input[self.end..]) {
            Ok(0) => Ok(false),
            Ok(length) => {
                self.end += length;
                Ok(true)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// What has come and is not consumed.
    pub fn input(&self) -> &[u8] {
        &self.input[self.start..self.end]
    }

    pub fn consume(&mut self, length: usize) {
        self.start += length;
    }

    /// Send `bytes`, or keep what the socket does not take now. True: something is kept.
    ///
    /// Where the server has gone, the reading finds out: its last words may still be there to be read.
    pub fn send(&mut self, bytes: &[u8]) -> Result<bool, Errno> {
        if !self.has_output() {
            let taken = self.write(bytes)?;
            self.output.extend_from_slice(&bytes[taken..]);
        } else {
            self.output.extend_from_slice(bytes);
        }
        Ok(self.has_output())
    }

    /// Send more of what was kept. True: something is still kept.
    pub fn flush(&mut self) -> Result<bool, Errno> {
        let taken = self.write(&self.output[self.written..])?;
        self.written += taken;
        if !self.has_output() {
            self.output.clear();
            self.written = 0;
        }
        Ok(self.has_output())
    }

    pub fn has_output(&self) -> bool {
        self.written < self.output.len()
    }

    fn write(&self, bytes: &[u8]) -> Result<usize, Errno> {
        match rustix::io::write(&self.socket, bytes) {
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            Err(Errno::PIPE | Errno::CONNRESET) => Ok(bytes.len()),
            other => other,
        }
    }
}
