//! What a program needs that no C library starts: its first instruction, and functions that the compiler calls.

use core::arch::global_asm;
use core::ffi::{c_char, c_int};

use hugewise_exec::Started;
use hugewise_ground::sys;

// The kernel leaves on the stack: the number of arguments, them, null, the environment, null, pairs of facts.
#[cfg(target_arch = "x86_64")]
global_asm!(
    ".globl _start",
    "_start:",
    "xor ebp, ebp",
    "mov rdi, rsp",
    "and rsp, -16",
    "call {begin}",
    "ud2",
    begin = sym begin,
);
#[cfg(target_arch = "aarch64")]
global_asm!(".globl _start", "_start:", "mov x29, xzr", "mov x0, sp", "bl {begin}", "brk #1", begin = sym begin);

unsafe extern "C" fn begin(stack: *const usize) -> ! {
    const AT_SECURE: usize = 23;
    // SAFETY: the stack is as the kernel has made it.
    let status = unsafe {
        let count = *stack;
        let argv = stack.add(1).cast::<*const c_char>();
        let envp = argv.add(count + 1);
        let mut fact = envp;
        while !(*fact).is_null() {
            fact = fact.add(1);
        }
        let mut fact = fact.add(1).cast::<usize>();
        let mut is_secure = false;
        while *fact != 0 {
            is_secure |= *fact == AT_SECURE && *fact.add(1) != 0;
            fact = fact.add(2);
        }
        hugewise_exec::main(&Started {
            argv: core::slice::from_raw_parts(argv.cast(), count),
            envp,
            is_secure,
            name: "hugewise-exec",
        })
    };
    sys::exit(status)
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    let _ = sys::write(2, b"hugewise-exec: a defect: it met a case that it does not know; nothing was started\n");
    sys::exit(125)
}

// What the compiler calls by these names. Volatile, so that it does not make calls of themselves of them.

/// # Safety
/// As memcpy(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    for index in 0..count {
        // SAFETY: the caller's.
        unsafe { to.add(index).write_volatile(from.add(index).read_volatile()) };
    }
    to
}

/// # Safety
/// As memmove(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    if (to as usize) <= from as usize {
        // SAFETY: the caller's; forwards, no byte is overwritten before it is read.
        return unsafe { memcpy(to, from, count) };
    }
    for index in (0..count).rev() {
        // SAFETY: the caller's.
        unsafe { to.add(index).write_volatile(from.add(index).read_volatile()) };
    }
    to
}

/// # Safety
/// As memset(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, value: c_int, count: usize) -> *mut u8 {
    for index in 0..count {
        // SAFETY: the caller's.
        unsafe { to.add(index).write_volatile(value as u8) };
    }
    to
}

/// # Safety
/// As memcmp(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(one: *const u8, other: *const u8, count: usize) -> c_int {
    for index in 0..count {
        // SAFETY: the caller's.
        let (one, other) = unsafe { (one.add(index).read_volatile(), other.add(index).read_volatile()) };
        if one != other {
            return c_int::from(one) - c_int::from(other);
        }
    }
    0
}

/// # Safety
/// As bcmp(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(one: *const u8, other: *const u8, count: usize) -> c_int {
    // SAFETY: the caller's.
    unsafe { memcmp(one, other, count) }
}

/// # Safety
/// As strlen(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn strlen(text: *const c_char) -> usize {
    let mut length = 0;
    // SAFETY: the caller's.
    while unsafe { text.add(length).read_volatile() } != 0 {
        length += 1;
    }
    length
}

/// Named by the standard library's objects, for unwinding, which this program does not have.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}
