//! libhugewise-layout.so: the heap of an unmodified program on the pages that HUGEWISE_LAYOUT names.
//!
//! It is preloaded (LD_PRELOAD), by `hugewise-exec` or by hand, into dynamically linked programs of glibc. Its
//! constructor lays glibc's heap out (`heap`), and its mmap carves what allocators of their own ask for (`arena`).
//! docs/concepts/layouts.md says what it does and what it cannot.
//!
//! It needs no version of glibc: what it calls is taken from the program as it is, and where that has no such functions
//! (another C library) nothing is done.
#![cfg_attr(not(test), no_std)]

mod arena;
mod environment;
mod heap;
mod libc;
mod report;

use core::ffi::{c_char, c_int, c_long, c_void};
use core::sync::atomic::{AtomicBool, Ordering};

use hugewise_ground::layout::{Fault, Layout};
use hugewise_ground::{sys, text};

use crate::libc::Libc;

const VARIABLE: &[u8] = b"HUGEWISE_LAYOUT";
const REPORT: &[u8] = b"HUGEWISE_LAYOUT_REPORT";

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn(c_int, *const *const c_char, *mut *mut c_char) = begin;

/// The constructor has run: the layout is as it will be.
static BEGUN: AtomicBool = AtomicBool::new(false);

/// Before the constructor, other libraries' constructors have run: an allocator among them has mapped memory already,
/// which is laid out as what comes later. A text that is no layout is left to the constructor.
fn begin_early() {
    let libc = Libc::found();
    // SAFETY: constructors run in one thread; an environment is a list that ends with a null pointer.
    unsafe {
        let Some(envp) = libc.environment(core::ptr::null_mut()).filter(|envp| !envp.is_null()) else { return };
        let said = text::variable(envp.cast_const().cast(), VARIABLE);
        if let Some(Ok(layout)) = said.map(Layout::parse) {
            arena::begin(&layout, heap::size(&layout), libc.errno_location());
        }
    }
}

/// The constructor: glibc calls it with what main will have.
extern "C" fn begin(_count: c_int, _arguments: *const *const c_char, envp: *mut *mut c_char) {
    BEGUN.store(true, Ordering::Release);
    let libc = Libc::found();
    // SAFETY: an environment is a list of strings that ends with a null pointer; no thread has been started yet.
    let Some(envp) = (unsafe { libc.environment(envp) }) else { return };
    // SAFETY: as above.
    let Some(said) = (unsafe { text::variable(envp.cast_const().cast(), VARIABLE) }) else { return };
    let layout = match Layout::parse(said) {
        Ok(layout) => layout,
        Err(fault) => refuse(&fault),
    };
    let errno = libc.errno();
    // SAFETY: it is the constructor; the program has not begun.
    unsafe {
        let outcome = heap::lay_out(&libc, &layout, envp.cast_const().cast());
        arena::begin(&layout, outcome.size, libc.errno_location());
        if let Some(path) = text::variable(envp.cast_const().cast(), REPORT) {
            report::append(path, said, &outcome);
        }
        if !layout.children {
            environment::withdraw(envp);
        }
    }
    libc.set_errno(errno);
}

/// A text that is no layout: the program does not run under another one.
fn refuse(fault: &Fault) -> ! {
    let mut room = [0u8; 512];
    let mut line = text::Line::over(&mut room);
    let shown = &fault.word[..fault.word.len().min(100)];
    line.say(b"libhugewise-layout.so: HUGEWISE_LAYOUT: '").quote(shown).say(b"' ").say(fault.what.as_bytes());
    line.say(b"\n  cure: ").say(fault.cure.as_bytes()).say(b"; or unset HUGEWISE_LAYOUT\n");
    let _ = sys::write(2, line.bytes());
    sys::exit(2)
}

/// mmap(2), as all of the program but glibc itself calls it.
///
/// # Safety
/// As mmap(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mmap(
    address: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: c_long,
) -> *mut c_void {
    // SAFETY: the caller's.
    unsafe { arena::mmap(address as usize, length, protection, flags, file, offset as usize) as *mut c_void }
}

/// The same: offsets are of 64 bits.
///
/// # Safety
/// As mmap(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mmap64(
    address: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: c_long,
) -> *mut c_void {
    // SAFETY: the caller's.
    unsafe { arena::mmap(address as usize, length, protection, flags, file, offset as usize) as *mut c_void }
}

#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    let _ = sys::write(2, b"libhugewise-layout.so: a defect: it met a case that it does not know\n");
    sys::exit(2)
}
