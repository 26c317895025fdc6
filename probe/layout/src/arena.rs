//! Memory that allocators of their own ask for: CPython's arenas (1 MiB), jemalloc's extents.
//!
//! They map small pieces, beside one another or not, so that no huge page fits when one is first touched; advice
//! comes too late for that. Here each piece is cut from a region that is reserved as a whole, aligned and advised. What
//! the region has behind the last piece is without access, but for the rest of its huge page. A piece is never cut
//! twice: what the program unmaps is the kernel's again, so that every piece is as new.
//!
//! Mappings of files, shared ones, those at fixed addresses, guard pages and stacks are the kernel's, as ever; glibc's
//! own do not come through here.

use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use hugewise_ground::layout::{HUGE, Layout, Pages};
use hugewise_ground::sys::{self, Answer};

use crate::libc::ErrnoLocation;

const UNIT: usize = HUGE as usize;
const PAGE: usize = 4096;
/// Smaller pieces are no arenas.
const LEAST: usize = 256 << 10;
/// How often a thread yields to the one that holds the lock before it asks the kernel instead.
const PATIENCE: u32 = 1000;

struct Region {
    layout: Option<Layout>,
    size: usize,
    /// The next piece begins here; up to `open` there is access; the region ends at `end`.
    next: usize,
    open: usize,
    end: usize,
    errno: ErrnoLocation,
}

struct Shared(UnsafeCell<Region>);

// SAFETY: it is used by the holder of the lock alone.
unsafe impl Sync for Shared {}

static REGION: Shared =
    Shared(UnsafeCell::new(Region { layout: None, size: 0, next: 0, open: 0, end: 0, errno: None }));
/// The lock, in a page that a forked child finds wiped: nobody holds it there. Null before all is ready.
static LOCK: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

/// From now on pieces are cut, from regions of `size` bytes. The first call counts.
///
/// # Safety
/// Only while the program has one thread.
pub unsafe fn begin(layout: &Layout, size: u64, errno: ErrnoLocation) {
    const ANONYMOUS: c_int = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS;
    // SAFETY: one thread; a page of its own.
    unsafe {
        if !LOCK.load(Ordering::Acquire).is_null() {
            return; // it has begun early
        }
        let region = &mut *REGION.0.get();
        (region.layout, region.size, region.errno) = (Some(*layout), size as usize, errno);
        let Ok(page) = sys::mmap(0, PAGE, sys::PROT_READ_WRITE, ANONYMOUS, -1, 0) else { return };
        let _ = sys::madvise(page, PAGE, sys::MADV_WIPEONFORK); // without it a child may go without pieces
        LOCK.store(page as *mut AtomicU32, Ordering::Release);
    }
}

/// mmap(2): from the region, or from the kernel. The address, or -1 with errno set.
///
/// # Safety
/// As mmap(2).
pub unsafe fn mmap(
    address: usize,
    length: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: usize,
) -> isize {
    const PLAIN: c_int = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS;
    let is_piece = protection == sys::PROT_READ_WRITE && flags & !sys::MAP_NORESERVE == PLAIN && length >= LEAST;
    if is_piece && !crate::BEGUN.load(Ordering::Acquire) {
        crate::begin_early();
    }
    if is_piece && let Some(found) = piece(address, length) {
        return found as isize;
    }
    // SAFETY: the caller's.
    match unsafe { sys::mmap(address, length, protection, flags, file, offset) } {
        Ok(found) => found as isize,
        Err(error) => {
            // SAFETY: it is set before the lock is there, and never again; errno is this thread's own.
            unsafe {
                let errno = if LOCK.load(Ordering::Acquire).is_null() { None } else { (*REGION.0.get()).errno };
                if let Some(location) = errno.or_else(|| crate::Libc::found().errno_location()) {
                    *location() = error.0;
                }
            }
            -1
        }
    }
}

/// A piece of the region, at `hint` where that is not 0; None where the kernel is to be asked.
fn piece(hint: usize, length: usize) -> Option<usize> {
    // SAFETY: null, or a page that is never given back.
    let lock = unsafe { LOCK.load(Ordering::Acquire).as_ref() }?;
    let mut tries = 0;
    while lock.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
        tries += 1;
        if tries > PATIENCE {
            return None; // a signal handler's, or in a child whose parent held it
        }
        sys::yield_now();
    }
    // SAFETY: the lock is held.
    let found = cut(unsafe { &mut *REGION.0.get() }, hint, length);
    lock.store(0, Ordering::Release);
    found
}

fn cut(region: &mut Region, hint: usize, length: usize) -> Option<usize> {
    let length = length.checked_next_multiple_of(PAGE)?;
    if length > region.size / 2 || (hint != 0 && hint != region.next) {
        return None;
    }
    if length > region.end - region.next {
        if hint != 0 {
            return None;
        }
        reserve(region).ok()?;
    }
    let wanted = (region.next + length).next_multiple_of(UNIT);
    if wanted > region.open {
        // SAFETY: nobody has a piece of that range yet.
        unsafe { sys::mprotect(region.open, wanted - region.open, sys::PROT_READ_WRITE) }.ok()?;
        region.open = wanted;
    }
    let found = region.next;
    region.next += length;
    Some(found)
}

/// A new region: only addresses, without access. Windows of a pool are of base pages here, for pieces are unmapped and
/// protected in units that pages of a pool do not have.
fn reserve(region: &mut Region) -> Answer<()> {
    const FLAGS: c_int = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS | sys::MAP_NORESERVE;
    let Some(layout) = &region.layout else { return Err(sys::EINVAL) };
    // SAFETY: new addresses, of which the ends are given back.
    unsafe {
        let held = sys::mmap(0, region.size + UNIT, sys::PROT_NONE, FLAGS, -1, 0)?;
        let from = held.next_multiple_of(UNIT);
        if from > held {
            let _ = sys::munmap(held, from - held);
        }
        if held + UNIT > from {
            let _ = sys::munmap(from + region.size, held + UNIT - from);
        }
        for window in layout.windows(region.size as u64) {
            let advice = if window.pages == Pages::Thp { sys::MADV_HUGEPAGE } else { sys::MADV_NOHUGEPAGE };
            let _ = sys::madvise(from + window.from as usize, (window.to - window.from) as usize, advice);
        }
        (region.next, region.open, region.end) = (from, from, from + region.size);
    }
    Ok(())
}
