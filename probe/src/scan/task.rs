//! The files of a process in /proc, read through one of its threads.

use std::path::PathBuf;
use std::{fs, io};

use anyhow::{Context, Result};

/// A thread whose memory is read: of its process any that still has memory (the leader may be gone before the rest).
#[derive(Debug, Clone, Copy)]
pub struct Task {
    pub pid: u32,
    pub task: u32,
}

impl Task {
    pub fn path(&self, file: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/task/{}/{file}", self.pid, self.task))
    }

    /// The text of one of its files, with bytes that are no UTF-8 (file names) replaced.
    pub fn read(&self, file: &str) -> Result<String> {
        let path = self.path(file);
        let bytes = fs::read(&path).with_context(|| match fs::metadata(format!("/proc/{}", self.pid)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => format!("there is no process {}", self.pid),
            _ => format!("cannot read {}", path.display()),
        })?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}
