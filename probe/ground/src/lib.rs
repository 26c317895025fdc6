//! What the launcher `hugewise-exec`, the layout library and the probe share. Without std, libc and an allocator: the
//! library works inside of programs whose malloc is not ready, and the launcher is a program of its own.
#![cfg_attr(not(test), no_std)]

pub mod elf;
pub mod layout;
pub mod sys;
pub mod text;
