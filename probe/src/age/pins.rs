//! Pages that the kernel cannot move: those that a pipe has a reference to.
//!
//! vmsplice(2) puts a page of the caller itself into a pipe. Compaction leaves a page with more references than mappings
//! where it is (isolate_migratepages_block() in mm/compaction.c), and so does every other migration. When the last
//! descriptor of the pipe is closed, at the latest by the end of the process, the page is free.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::pipe::{fcntl_getpipe_size, fcntl_setpipe_size, pipe};

const PIPE: usize = 1 << 20; // what every process may have: /proc/sys/fs/pipe-max-size

/// The pages, by the pipes that hold them. Of a full pipe the end to read from is enough.
#[derive(Debug, Default)]
pub struct Pins {
    full: Vec<OwnedFd>,
    filling: Option<(OwnedFd, OwnedFd)>,
    room: usize, // pages for which there still is a place in the pipe that is being filled
    pub count: u64,
}

impl Pins {
    /// Keep the page at `address` where it is, also when it is unmapped.
    ///
    /// # Safety
    /// A page of `size` bytes is mapped there, and nobody writes to it any more.
    pub unsafe fn pin(&mut self, address: *mut u8, size: usize) -> io::Result<()> {
        if self.room == 0 {
            self.next(size)?;
        }
        let Some((_, end)) = &self.filling else { unreachable!("a pipe was opened") };
        let page = libc::iovec { iov_base: address.cast::<c_void>(), iov_len: size };
        // SAFETY: the page is mapped, which the caller promises.
        let taken = unsafe { libc::vmsplice(end.as_raw_fd(), &raw const page, 1, libc::SPLICE_F_NONBLOCK) };
        match taken {
            -1 => Err(io::Error::last_os_error()),
            taken if taken as usize == size => {
                self.room -= 1;
                self.count += 1;
                Ok(())
            }
            taken => Err(io::Error::other(format!("a pipe took {taken} bytes of a page"))),
        }
    }

    fn next(&mut self, size: usize) -> io::Result<()> {
        let (read, write) = pipe()?;
        // Where an account's pipes are limited it is smaller: then there are more of them.
        let _ = fcntl_setpipe_size(&write, PIPE.max(size));
        self.room = fcntl_getpipe_size(&write)? / size;
        if self.room == 0 {
            return Err(io::Error::other("a pipe has no room for a page"));
        }
        if let Some((read, _)) = self.filling.replace((read, write)) {
            self.full.push(read);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_pages_than_a_pipe_holds_are_pinned() {
        let size = rustix::param::page_size();
        let mut pages = vec![0u8; 302 * size];
        let first = pages.as_mut_ptr().wrapping_add(pages.as_ptr().align_offset(size));
        let mut pins = Pins::default();
        for number in 0..300 {
            // SAFETY: within the vector, which outlives the pins and is not written to.
            unsafe { pins.pin(first.wrapping_add(number * size), size) }.unwrap();
        }
        assert_eq!(pins.count, 300);
        assert_eq!(pins.full.len(), 300 * size / PIPE.max(size));
    }
}
