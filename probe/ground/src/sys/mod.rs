//! System calls, as the kernel has them: an error is its number, and nothing else is touched (no errno).
//!
//! Sources: syscall(2) for the registers; the kernel's tables of system calls for the numbers.

use core::arch::asm;
use core::ffi::{CStr, c_char, c_int};

mod file;
mod number;

pub use file::{File, Status, is_executable, open, read_link, status};

/// An error of the kernel: errno(3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub c_int);

pub const ENOENT: Errno = Errno(2);
pub const E2BIG: Errno = Errno(7);
pub const ENOEXEC: Errno = Errno(8);
pub const EINTR: Errno = Errno(4);
pub const ENOMEM: Errno = Errno(12);
pub const EACCES: Errno = Errno(13);
pub const ENOTDIR: Errno = Errno(20);
pub const EINVAL: Errno = Errno(22);
pub const ELOOP: Errno = Errno(40);

pub type Answer<T> = Result<T, Errno>;

pub const O_RDONLY: c_int = 0;
pub const O_WRONLY: c_int = 1;
pub const O_CREAT: c_int = 0o100;
pub const O_NOCTTY: c_int = 0o400;
pub const O_APPEND: c_int = 0o2000;
pub const O_NONBLOCK: c_int = 0o4000;
#[cfg(target_arch = "x86_64")]
pub const O_NOFOLLOW: c_int = 0o400_000;
#[cfg(target_arch = "aarch64")]
pub const O_NOFOLLOW: c_int = 0o100_000;
pub const O_CLOEXEC: c_int = 0o2_000_000;
pub const O_PATH: c_int = 0o10_000_000;

pub const PROT_NONE: c_int = 0;
pub const PROT_READ_WRITE: c_int = 3;
pub const MAP_SHARED_TYPE: c_int = 0x0f;
pub const MAP_PRIVATE: c_int = 0x02;
pub const MAP_FIXED: c_int = 0x10;
pub const MAP_ANONYMOUS: c_int = 0x20;
pub const MAP_NORESERVE: c_int = 0x4000;
pub const MAP_HUGETLB: c_int = 0x40000;
pub const MAP_HUGE_SHIFT: c_int = 26;
pub const MADV_HUGEPAGE: c_int = 14;
pub const MADV_NOHUGEPAGE: c_int = 15;
pub const MADV_WIPEONFORK: c_int = 18;

pub const PR_GET_NO_NEW_PRIVS: c_int = 39;
pub const PR_SET_THP_DISABLE: c_int = 41;
pub const PR_GET_THP_DISABLE: c_int = 42;
/// A flag of PR_SET_THP_DISABLE (Linux 6.18 and later): memory that is advised may still have huge pages.
pub const EXCEPT_ADVISED: usize = 1 << 1;

pub const RLIMIT_DATA: c_int = 2;
pub const RLIMIT_AS: c_int = 9;
pub const RLIM_INFINITY: u64 = u64::MAX;

/// # Safety
/// As the call of that number with those arguments.
#[cfg(target_arch = "x86_64")]
unsafe fn call(number: usize, a: [usize; 6]) -> Answer<usize> {
    let result: isize;
    // SAFETY: the registers of the ABI; the rest is the caller's.
    unsafe {
        asm!("syscall", inlateout("rax") number as isize => result, in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
            in("r10") a[3], in("r8") a[4], in("r9") a[5], lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    answer(result)
}

/// # Safety
/// As the call of that number with those arguments.
#[cfg(target_arch = "aarch64")]
unsafe fn call(number: usize, a: [usize; 6]) -> Answer<usize> {
    let result: isize;
    // SAFETY: the registers of the ABI; the rest is the caller's.
    unsafe {
        asm!("svc 0", in("x8") number, inlateout("x0") a[0] as isize => result, in("x1") a[1], in("x2") a[2],
            in("x3") a[3], in("x4") a[4], in("x5") a[5], options(nostack));
    }
    answer(result)
}

fn answer(result: isize) -> Answer<usize> {
    if (-4095..0).contains(&result) { Err(Errno(-result as c_int)) } else { Ok(result as usize) }
}

/// To a descriptor that the caller knows.
pub fn write(descriptor: c_int, bytes: &[u8]) -> Answer<usize> {
    // SAFETY: the bytes are live and so many.
    unsafe { call(number::WRITE, [descriptor as usize, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0]) }
}

/// # Safety
/// As mmap(2): with MAP_FIXED nobody else uses that memory.
pub unsafe fn mmap(
    address: usize,
    length: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: usize,
) -> Answer<usize> {
    // SAFETY: the caller's.
    unsafe {
        call(number::MMAP, [address, length, protection as usize, flags as usize, file as isize as usize, offset])
    }
}

/// # Safety
/// Nobody uses that memory in another way.
pub unsafe fn mprotect(address: usize, length: usize, protection: c_int) -> Answer<()> {
    // SAFETY: the caller's.
    unsafe { call(number::MPROTECT, [address, length, protection as usize, 0, 0, 0]) }.map(drop)
}

/// # Safety
/// Nobody uses that memory.
pub unsafe fn munmap(address: usize, length: usize) -> Answer<()> {
    // SAFETY: the caller's.
    unsafe { call(number::MUNMAP, [address, length, 0, 0, 0, 0]) }.map(drop)
}

/// # Safety
/// The advice does not take away contents that are used.
pub unsafe fn madvise(address: usize, length: usize, advice: c_int) -> Answer<()> {
    // SAFETY: the caller's.
    unsafe { call(number::MADVISE, [address, length, advice as usize, 0, 0, 0]) }.map(drop)
}

pub fn prctl(option: c_int, first: usize, second: usize) -> Answer<usize> {
    // SAFETY: the options that are used here take integers.
    unsafe { call(number::PRCTL, [option as usize, first, second, 0, 0, 0]) }
}

pub fn pid() -> u64 {
    // SAFETY: no arguments.
    unsafe { call(number::GETPID, [0; 6]) }.unwrap_or(0) as u64
}

pub fn yield_now() {
    // SAFETY: no arguments.
    let _ = unsafe { call(number::SCHED_YIELD, [0; 6]) };
}

/// The accounts of this process: real and effective user, real and effective group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accounts {
    pub user: u32,
    pub acting_user: u32,
    pub group: u32,
    pub acting_group: u32,
}

pub fn accounts() -> Accounts {
    // SAFETY: no arguments.
    let ask = |number| unsafe { call(number, [0; 6]) }.unwrap_or(0) as u32;
    Accounts {
        user: ask(number::GETUID),
        acting_user: ask(number::GETEUID),
        group: ask(number::GETGID),
        acting_group: ask(number::GETEGID),
    }
}

/// Bytes of memory that this machine has.
pub fn memory() -> u64 {
    let mut told = [0u64; 14]; // struct sysinfo: totalram is its fifth long, mem_unit an int after the eleventh
    // SAFETY: the buffer is as large as the structure.
    if unsafe { call(number::SYSINFO, [told.as_mut_ptr() as usize, 0, 0, 0, 0, 0]) }.is_err() {
        return 0;
    }
    told[4].saturating_mul(u64::from(told[13] as u32).max(1))
}

/// The soft limit of a resource; none is `RLIM_INFINITY`.
pub fn limit(resource: c_int) -> u64 {
    let mut pair = [RLIM_INFINITY; 2];
    // SAFETY: it is only read, into a pair of so many bytes.
    let said = unsafe { call(number::PRLIMIT64, [0, resource as usize, 0, pair.as_mut_ptr() as usize, 0, 0]) };
    if said.is_ok() { pair[0] } else { RLIM_INFINITY }
}

/// Become another program; it returns only with the reason why not.
///
/// # Safety
/// Both lists are of strings that end with NUL, and end with a null pointer.
pub unsafe fn execve(path: &CStr, argv: *const *const c_char, envp: *const *const c_char) -> Errno {
    // SAFETY: the caller's.
    match unsafe { call(number::EXECVE, [path.as_ptr() as usize, argv as usize, envp as usize, 0, 0, 0]) } {
        Ok(_) => EINVAL,
        Err(error) => error,
    }
}

/// End the process: nothing of it runs on, no handler, no destructor.
pub fn exit(status: c_int) -> ! {
    loop {
        // SAFETY: it does not return.
        let _ = unsafe { call(number::EXIT_GROUP, [status as usize, 0, 0, 0, 0, 0]) };
    }
}
