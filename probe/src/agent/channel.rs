//! The way to the host: a virtio-serial port, another file, or stdin and stdout.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

const PORTS: &str = "/sys/class/virtio-ports";
/// The name of the port, as QEMU's `-device virtserialport,name=` gives it.
const NAME: &str = "hugewise";
/// How long a port may take to appear after its driver was loaded.
const PATIENCE: Duration = Duration::from_secs(10);
const PASS: Duration = Duration::from_millis(20);
/// POSIX: what poll(2) calls writable takes so much without waiting, a pipe included.
const PIPE_CHUNK: usize = 4096;
/// Most that virtio_console takes at once.
const PORT_CHUNK: usize = 32 * 1024;

pub struct Channel {
    input: OwnedFd,
    output: OwnedFd,
    chunk: usize,
}

impl Channel {
    /// stdin and stdout.
    pub fn standard() -> io::Result<Channel> {
        let input = io::stdin().as_fd().try_clone_to_owned()?;
        Ok(Channel { input, output: io::stdout().as_fd().try_clone_to_owned()?, chunk: PIPE_CHUNK })
    }

    /// A file that is read and written, such as a serial port.
    pub fn open(path: &Path) -> Result<Channel> {
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path);
        let file: File = file.with_context(|| format!("cannot open the channel {}", path.display()))?;
        let input = OwnedFd::from(file);
        Ok(Channel { output: input.try_clone()?, input, chunk: PORT_CHUNK })
    }

    /// The port of the host, which may have to appear first; returns when the host has opened its side.
    pub fn port() -> Result<Channel> {
        let started = Instant::now();
        let path = loop {
            match find_port(Path::new(PORTS)) {
                Some(path) if path.exists() => break path,
                _ if started.elapsed() > PATIENCE => bail!("no virtio-serial port is named {NAME:?} in {PORTS}"),
                _ => sleep(PASS),
            }
        };
        let channel = Channel::open(&path)?;
        while channel.is_hung_up()? {
            sleep(PASS);
        }
        Ok(channel)
    }

    /// Whether nobody is at the other end.
    fn is_hung_up(&self) -> io::Result<bool> {
        let mut port = [PollFd::new(&self.output, PollFlags::OUT)];
        match poll(&mut port, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
            Ok(_) => Ok(port[0].revents().contains(PollFlags::HUP)),
            Err(Errno::INTR) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    pub fn input(&self) -> BorrowedFd<'_> {
        self.input.as_fd()
    }

    pub fn output(&self) -> BorrowedFd<'_> {
        self.output.as_fd()
    }

    /// Read what is there, after poll(2) has said so. None: the channel has ended.
    pub fn read<'a>(&self, chunk: &'a mut [u8]) -> io::Result<Option<&'a [u8]>> {
        match rustix::io::read(&self.input, &mut *chunk) {
            Ok(0) => Ok(None),
            Ok(length) => Ok(Some(&chunk[..length])),
            Err(Errno::AGAIN | Errno::INTR) => Ok(Some(&[])),
            Err(error) => Err(error.into()),
        }
    }

    /// Write a part of `bytes`, after poll(2) has said that it will not wait; how much of it.
    pub fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match rustix::io::write(&self.output, &bytes[..bytes.len().min(self.chunk)]) {
            Ok(length) => Ok(length),
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }
}

/// The device of the port with our name.
fn find_port(ports: &Path) -> Option<PathBuf> {
    let is_ours = |folder: &PathBuf| fs::read_to_string(folder.join("name")).is_ok_and(|name| name.trim_end() == NAME);
    let found = fs::read_dir(ports).ok()?.flatten().map(|entry| entry.path()).find(is_ours)?;
    Some(Path::new("/dev").join(found.file_name()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_found_by_its_name() {
        let ports = tempfile::tempdir().unwrap();
        assert_eq!(find_port(&ports.path().join("absent")), None);
        for (port, name) in [("vport0p1", "org.other\n"), ("vport1p2", "hugewise\n"), ("vport2p1", "hugewise2\n")] {
            fs::create_dir(ports.path().join(port)).unwrap();
            fs::write(ports.path().join(port).join("name"), name).unwrap();
        }
        assert_eq!(find_port(ports.path()), Some(PathBuf::from("/dev/vport1p2")));
    }
}
