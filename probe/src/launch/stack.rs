//! The stack on which a child that shares this process's memory runs until its exec.

use std::io;

const STACK_BYTES: usize = 64 * 1024;

/// The child's stack, with a page below it that faults: of 64 KiB on some kernels, as large as the stack itself.
pub struct Stack {
    base: *mut libc::c_void,
    bytes: usize,
}

impl Stack {
    pub fn new() -> io::Result<Stack> {
        use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};
        // SAFETY: a fresh mapping, whose lowest page is then closed.
        unsafe {
            let flags = MapFlags::PRIVATE | MapFlags::STACK;
            let guard = rustix::param::page_size();
            let bytes = guard + STACK_BYTES;
            let base = mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags)?;
            mprotect(base, guard, MprotectFlags::empty())?;
            Ok(Stack { base, bytes })
        }
    }

    /// Where it starts: stacks grow downwards.
    pub fn top(&self) -> *mut libc::c_void {
        self.base.wrapping_byte_add(self.bytes)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: made in `new`, and no child uses it once `clone` has returned.
        let _ = unsafe { rustix::mm::munmap(self.base, self.bytes) };
    }
}
