//! The numbers of system calls, which each architecture has of its own.

pub use of_architecture::*;

#[cfg(target_arch = "x86_64")]
mod of_architecture {
    pub const READ: usize = 0;
    pub const WRITE: usize = 1;
    pub const CLOSE: usize = 3;
    pub const MMAP: usize = 9;
    pub const MPROTECT: usize = 10;
    pub const MUNMAP: usize = 11;
    pub const PREAD64: usize = 17;
    pub const SCHED_YIELD: usize = 24;
    pub const MADVISE: usize = 28;
    pub const GETPID: usize = 39;
    pub const EXECVE: usize = 59;
    pub const FCNTL: usize = 72;
    pub const SYSINFO: usize = 99;
    pub const GETUID: usize = 102;
    pub const GETGID: usize = 104;
    pub const GETEUID: usize = 107;
    pub const GETEGID: usize = 108;
    pub const FSTATFS: usize = 138;
    pub const PRCTL: usize = 157;
    pub const FGETXATTR: usize = 193;
    pub const EXIT_GROUP: usize = 231;
    pub const OPENAT: usize = 257;
    pub const READLINKAT: usize = 267;
    pub const FACCESSAT: usize = 269;
    pub const PRLIMIT64: usize = 302;
    pub const STATX: usize = 332;
}

#[cfg(target_arch = "aarch64")]
mod of_architecture {
    pub const FGETXATTR: usize = 10;
    pub const FCNTL: usize = 25;
    pub const FSTATFS: usize = 44;
    pub const FACCESSAT: usize = 48;
    pub const OPENAT: usize = 56;
    pub const CLOSE: usize = 57;
    pub const READ: usize = 63;
    pub const WRITE: usize = 64;
    pub const PREAD64: usize = 67;
    pub const READLINKAT: usize = 78;
    pub const EXIT_GROUP: usize = 94;
    pub const SCHED_YIELD: usize = 124;
    pub const PRCTL: usize = 167;
    pub const GETPID: usize = 172;
    pub const GETUID: usize = 174;
    pub const GETEUID: usize = 175;
    pub const GETGID: usize = 176;
    pub const GETEGID: usize = 177;
    pub const SYSINFO: usize = 179;
    pub const MUNMAP: usize = 215;
    pub const EXECVE: usize = 221;
    pub const MMAP: usize = 222;
    pub const MPROTECT: usize = 226;
    pub const MADVISE: usize = 233;
    pub const PRLIMIT64: usize = 261;
    pub const STATX: usize = 291;
}
