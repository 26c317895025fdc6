//! The stack on which a child that shares this process's memory runs until its exec.

use std::io;

const STACK_BYTES: usize = 64 * 1024;

/// The child's stack, with a page below it that faults.
pub struct Stack(*mut libc::c_void);

impl Stack {
    pub fn new() -> io::Result<Stack> {
        use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};
        // SAFETY: a fresh mapping, whose lowest page is then closed.
        unsafe {
            let flags = MapFlags::PRIVATE | MapFlags::STACK;
            let base = mmap_anonymous(std::ptr::null_mut(), STACK_BYTES, ProtFlags::READ | ProtFlags::WRITE, flags)?;
            mprotect(base, rustix::param::page_size(), MprotectFlags::empty())?;
            Ok(Stack(base))
        }
    }

    /// Where it starts: stacks grow downwards.
    pub fn top(&self) -> *mut libc::c_void {
        self.0.wrapping_byte_add(STACK_BYTES)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: made in `new`, and no child uses it once `clone` has returned.
        let _ = unsafe { rustix::mm::munmap(self.0, STACK_BYTES) };
    }
}
