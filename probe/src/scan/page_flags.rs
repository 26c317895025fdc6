//! /proc/kpageflags: what the kernel says of each physical page. Needs CAP_SYS_ADMIN.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result};

use crate::scan::folio::Flags;

/// Most flags read at once, when many single pages follow one another.
const LONGEST_LOOK: u64 = 4096;

/// Reads as far ahead as is asked for: one entry of a long read costs a third of a short one.
#[derive(Debug)]
pub struct PageFlags {
    file: File,
    first: u64,
    window: Vec<u64>,
    buffer: Vec<u8>,
}

impl PageFlags {
    pub fn open() -> Result<Self> {
        let path = "/proc/kpageflags";
        let file = File::open(path).with_context(|| {
            format!(
                "cannot open {path}: it needs root and a kernel with CONFIG_PROC_PAGE_MONITOR; else use --source smaps"
            )
        })?;
        Ok(Self { file, first: 0, window: Vec::new(), buffer: vec![0; LONGEST_LOOK as usize * 8] })
    }

    fn load(&mut self, first: u64, count: u64) -> io::Result<()> {
        let buffer = &mut self.buffer[..count as usize * 8];
        let read = self.file.read_at(buffer, first * 8)?;
        self.window.clear();
        self.window.extend(words(&buffer[..read]));
        self.first = first;
        // Beyond the last page of the machine there are no flags.
        if self.window.is_empty() {
            self.window.push(0);
        }
        Ok(())
    }
}

impl Flags for PageFlags {
    fn get(&mut self, pfn: u64, ahead: u64) -> io::Result<u64> {
        if !(self.first..self.first + self.window.len() as u64).contains(&pfn) {
            self.load(pfn, ahead.clamp(1, LONGEST_LOOK))?;
        }
        Ok(self.window.get((pfn - self.first) as usize).copied().unwrap_or(0))
    }
}

/// The 64-bit words of a file of the kernel's.
pub fn words(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.chunks_exact(8).map(|chunk| u64::from_ne_bytes(chunk.try_into().expect("chunks of 8")))
}
