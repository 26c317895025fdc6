//! glibc's heap: made so large at the start that all of it lies in one region, whose pages are then chosen.
//!
//! glibc asks the kernel for its heap in small steps (132 KiB), so that no huge page fits when memory is first touched;
//! and since 2.34 it has no hook for another source of memory. But it keeps what it was given: one large allocation,
//! given back at once, leaves a heap of that size that nobody has touched. From then on all of malloc comes from there:
//! mappings of its own and further arenas are switched off, and the heap is never made smaller.
//!
//! Sources: malloc/malloc.c of glibc (sysmalloc, systrim); mallopt(3); Documentation/admin-guide/mm/hugetlbpage.rst.

use core::ffi::{c_char, c_int, c_void};

use hugewise_ground::layout::{HUGE, Layout, Pages, default_heap};
use hugewise_ground::{sys, text};

use crate::libc::Libc;

const M_TRIM_THRESHOLD: c_int = -1;
const M_MMAP_MAX: c_int = -4;
const M_PERTURB: c_int = -6;
const M_ARENA_MAX: c_int = -8;

/// More than glibc keeps at the end of its heap, so that it must ask the kernel.
const FIRST: usize = 200_000;
/// From the begin of the first allocation to the begin of the region at least: no free chunk is of that size.
const GAP: usize = 512 << 10;
const PAGE: usize = 4096;
/// Farther from its end than this nothing is in the heap that was just begun.
const NEAR: usize = 1 << 30;
/// Where the heap cannot grow, as under QEMU's user mode, malloc is to map another one.
const ELSEWHERE: &[u8] = b"HUGEWISE_LAYOUT_ELSEWHERE";
const OVERCOMMIT: &core::ffi::CStr = c"/proc/sys/vm/overcommit_memory";
/// Where the kernel promises no more memory than there is, so much of it is asked for, unless the layout says it.
const PROMISED: u64 = 1 << 30;

/// What became of the heap.
pub struct Outcome {
    pub from: usize,
    pub size: u64,
    /// Bytes that were to be of a pool, and are base pages.
    pub short: u64,
    /// Ranges whose pages were chosen, and ranges for which the kernel refused that.
    pub placed: u64,
    pub refused: u64,
    pub why: Option<&'static str>,
    /// The heap is not glibc's: an allocator that is may cut its pieces from a region of the layout.
    pub foreign: bool,
}

/// Lay the heap out.
///
/// # Safety
/// Only while the program has not begun, and has one thread.
pub unsafe fn lay_out(libc: &Libc, layout: &Layout, envp: *const *const c_char) -> Outcome {
    let size = size(layout);
    let not = |why| Outcome {
        from: 0,
        size,
        short: layout.pool(Pages::Hugetlb2m) + layout.pool(Pages::Hugetlb1g),
        placed: 0,
        refused: 0,
        why: Some(why),
        foreign: false,
    };
    let foreign = |why| Outcome { foreign: true, ..not(why) };
    let (Some(mallopt), Some(malloc), Some(realloc), Some(free), Some(sbrk)) =
        (libc.mallopt, libc.malloc, libc.realloc, libc.free, libc.sbrk)
    else {
        return not("the program is not one of glibc");
    };
    if libc.page_size() != 4096 {
        return not("base pages of this machine are not of 4 KiB");
    }
    // SAFETY: as the functions' pages say; sizes are positive, and what is given back was had from here.
    unsafe {
        mallopt(M_MMAP_MAX, 0);
        mallopt(M_ARENA_MAX, 1);
        mallopt(M_TRIM_THRESHOLD, -1);
        let first = malloc(FIRST);
        let end = sbrk(0) as usize;
        let is_there = !first.is_null() && (first as usize) < end && end - (first as usize) < NEAR;
        free(first);
        if libc.is_replaced(first, FIRST) {
            return foreign("malloc is not glibc's");
        }
        if !is_there {
            return foreign(
                "malloc does not take its memory from the heap (brk): another allocator, or glibc.malloc.hugetlb=2",
            );
        }
        let alignment = layout.alignment() as usize;
        // The end of it lies in the middle of a huge page's place, which is not whole then: malloc writes there.
        let least = size as usize + alignment + GAP;
        let whole = (first as usize + least).next_multiple_of(HUGE as usize) + HUGE as usize / 2 - first as usize;
        // malloc would take another region where the heap cannot grow, and keep to it: so it is tried first.
        let is_grown = sbrk(whole as isize) as usize == end;
        if is_grown {
            sbrk(-(whole as isize));
        } else if text::variable(envp, ELSEWHERE).is_none() {
            return not(
                "the heap cannot be made so large: a limit (ulimit -d, -v), overcommit_memory=2, or something in its way",
            );
        }
        let perturbed = perturbation(envp);
        if perturbed.is_some() {
            mallopt(M_PERTURB, 0); // else it would write to all of the region
        }
        let made = region(malloc, realloc, whole, alignment, !layout.is_unadvised);
        if let Some(value) = perturbed {
            mallopt(M_PERTURB, value);
        }
        let Some(from) = made.filter(|from| !is_grown || from + size as usize <= sbrk(0) as usize) else {
            return not("malloc did not let its heap grow");
        };
        hold(sbrk);
        let Placed { short, placed, refused } = back(layout, from, size);
        let why = match (short, refused) {
            (0, 0) => None,
            (0, _) => Some("the kernel refuses the advice"),
            _ => Some("the pool is short"),
        };
        Outcome { from, size, short, placed, refused, why, foreign: false }
    }
}

/// Have a heap that reaches `whole` bytes further, in which malloc goes on at a multiple of `alignment`: where that is.
///
/// # Safety
/// malloc is glibc's, with mmap and trimming switched off.
unsafe fn region(
    malloc: unsafe extern "C" fn(usize) -> *mut c_void,
    realloc: unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void,
    whole: usize,
    alignment: usize,
    is_advised: bool,
) -> Option<usize> {
    const HEADER: usize = 8; // of a chunk, before what it holds
    // SAFETY: sizes are positive; the allocation is live, and made smaller in its place.
    unsafe {
        let held = malloc(whole) as usize;
        if held == 0 {
            return None;
        }
        let from = (held + GAP).next_multiple_of(alignment);
        if is_advised {
            // What lies before the region is written to at both of its ends, and is no part of any window.
            let begin = held.next_multiple_of(PAGE);
            let _ = sys::madvise(begin, from - begin, sys::MADV_NOHUGEPAGE);
        }
        // Never given back and never touched: what lies before the region costs nothing.
        (realloc(held as *mut c_void, from - held - HEADER) as usize == held).then_some(from)
    }
}

/// Keep malloc_trim(3) from giving the end of the heap back, which would grow again without its pages: a page that malloc
/// does not know of lies behind it from now on, and malloc gives nothing back where it finds that somebody else has made
/// the heap larger. What the heap grows by later lies behind that page, and can be given back. Without room for it (a
/// limit) all is as it would be.
///
/// # Safety
/// malloc is glibc's, and the program has one thread.
unsafe fn hold(sbrk: unsafe extern "C" fn(isize) -> *mut c_void) {
    // SAFETY: nobody else asks for the heap's end meanwhile.
    unsafe { sbrk(PAGE as isize) };
}

/// What became of the ranges of the region: bytes that were to be of a pool which is short, ranges that are as they were
/// to be, and those that are not.
#[derive(Default)]
struct Placed {
    short: u64,
    placed: u64,
    refused: u64,
}

/// Choose the pages of the region.
///
/// # Safety
/// Nothing in the region has been touched.
unsafe fn back(layout: &Layout, from: usize, size: u64) -> Placed {
    let mut found = Placed::default();
    for window in layout.windows(size) {
        let (begin, length) = (from + window.from as usize, (window.to - window.from) as usize);
        // SAFETY: the region's, of which nothing is touched.
        let is_placed = unsafe {
            match window.pages {
                Pages::Base => {
                    // A kernel that has no transparent huge pages refuses it, and has base pages.
                    let _ = sys::madvise(begin, length, sys::MADV_NOHUGEPAGE);
                    true
                }
                Pages::Thp => sys::madvise(begin, length, sys::MADV_HUGEPAGE).is_ok(),
                Pages::Hugetlb2m | Pages::Hugetlb1g => from_pool(begin, length, window.pages),
            }
        };
        found.placed += u64::from(is_placed);
        found.refused += u64::from(!is_placed);
        if !is_placed && window.pages.is_hugetlb() {
            found.short += length as u64;
        }
    }
    found
}

/// Whether the pool had the pages; else the range is base pages, as it was.
///
/// # Safety
/// Nothing in the range has been touched.
unsafe fn from_pool(begin: usize, length: usize, pages: Pages) -> bool {
    const ANONYMOUS: c_int = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS | sys::MAP_FIXED;
    let size = pages.size().trailing_zeros() as c_int;
    let flags = ANONYMOUS | sys::MAP_HUGETLB | size << sys::MAP_HUGE_SHIFT;
    // SAFETY: nothing in the range is in use; with MAP_FIXED it is there afterwards in any case.
    unsafe {
        if sys::mmap(begin, length, sys::PROT_READ_WRITE, flags, -1, 0).is_ok() {
            return true;
        }
        // A kernel that finds the pool short may have taken away what was there. No other thread is there yet to map it.
        if sys::mmap(begin, length, sys::PROT_READ_WRITE, ANONYMOUS | sys::MAP_NORESERVE, -1, 0).is_err() {
            let _ = sys::write(2, b"libhugewise-layout.so: the heap was lost: no memory for mappings\n");
            sys::exit(2);
        }
        let _ = sys::madvise(begin, length, sys::MADV_NOHUGEPAGE);
    }
    false
}

/// How much of the heap is laid out, in bytes.
pub fn size(layout: &Layout) -> u64 {
    layout.heap.unwrap_or_else(usual)
}

fn usual() -> u64 {
    let heap = default_heap(sys::memory(), [sys::limit(sys::RLIMIT_DATA), sys::limit(sys::RLIMIT_AS)]);
    let mut said = [0u8; 1];
    let is_promised =
        sys::open(OVERCOMMIT, sys::O_RDONLY, 0).and_then(|file| file.read(&mut said)).is_ok() && said == *b"2";
    if is_promised { heap.min(PROMISED) } else { heap.max(HUGE) }
}

/// The byte that malloc is told to fill memory with (a debugging aid), or None.
///
/// # Safety
/// `envp` is an environment.
unsafe fn perturbation(envp: *const *const c_char) -> Option<c_int> {
    // SAFETY: the caller's.
    let (tunables, own) =
        unsafe { (text::variable(envp, b"GLIBC_TUNABLES"), text::variable(envp, b"MALLOC_PERTURB_")) };
    let tunable = tunables.unwrap_or_default().split(|&byte| byte == b':');
    tunable
        .filter_map(|each| each.strip_prefix(b"glibc.malloc.perturb="))
        .next_back()
        .or(own)
        .map(|text| integer(text) as c_int)
}

/// As strtoul(3) reads it with the base 0, up to what is no digit.
fn integer(text: &[u8]) -> u64 {
    let (digits, base) = match text {
        [b'0', b'x' | b'X', rest @ ..] => (rest, 16),
        [b'0', rest @ ..] => (rest, 8),
        _ => (text, 10),
    };
    let value = |byte: &u8| (*byte as char).to_digit(base).map(u64::from);
    digits.iter().map_while(value).fold(0, |sum: u64, digit| sum.wrapping_mul(u64::from(base)).wrapping_add(digit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_read_as_glibc_reads_them() {
        let texts: [&[u8]; 6] = [b"85", b"0x55", b"0X5a", b"0125", b"", b"7x"];
        assert_eq!(texts.map(integer), [85, 85, 90, 85, 0, 7]);
    }

    #[test]
    fn the_last_tunable_counts_and_then_the_variable() {
        let of = |entries: &[&core::ffi::CStr]| {
            let list: Vec<_> = entries.iter().map(|entry| entry.as_ptr()).chain([core::ptr::null()]).collect();
            // SAFETY: a list of strings that ends with a null pointer.
            unsafe { perturbation(list.as_ptr()) }
        };
        assert_eq!(of(&[c"A=1"]), None);
        assert_eq!(of(&[c"MALLOC_PERTURB_=3"]), Some(3));
        assert_eq!(of(&[c"MALLOC_PERTURB_=3", c"GLIBC_TUNABLES=x=1:glibc.malloc.perturb=4"]), Some(4));
    }
}
