//! Whether events count: some processors and hypervisors accept an event and leave its counter at 0. So each is opened
//! around work that must make it count, and how many the processor counts at once is found by opening more and more.
//!
//! The work: first touches of base pages, loads and stores that miss both levels of the TLB, then such as only the first
//! level misses, calls into more pages of code than any instruction TLB holds, and branches that cannot be foreseen.

use std::collections::{BTreeMap, BTreeSet};
use std::hint::black_box;
use std::io;
use std::ptr::null_mut;

use crate::counters::perf::{Counters, Target};
use crate::machine::pages;

/// Base pages of data: more than a second-level TLB holds (2,048 on Zen 3, 3,072 on Zen 4, fewer elsewhere).
const PAGES: usize = 8192;
/// Pages that the second level holds and the first does not (64 to 96 entries).
const NEAR: usize = 512;
/// More counters than any processor has.
const MOST: usize = 32;
/// Events that need a general counter. Processors without them (QEMU's) count cycles, which have one of their own beside.
const GENERAL: [&str; 2] = ["branch-misses", "cache-misses"];
const CYCLES: &str = "cycles";

/// Name by name why a counter gives nothing here, or None: those that stay 0 over the work are among them. Those that may
/// be 0 on a machine that is well (nested walks outside a guest) are in `silent`, and are not looked at that closely.
/// Second, the names of those that count a part alone.
pub fn tried(names: &[String], silent: &[String]) -> (BTreeMap<String, Option<String>>, BTreeSet<String>) {
    let (mut found, mut partial) = (BTreeMap::new(), BTreeSet::new());
    for name in names {
        let mut counters = Counters::open(std::slice::from_ref(name), Target::Own);
        let reasons = counters.reasons();
        let is_missing = reasons.values().all(Option::is_some) && counters.is_closed();
        found.extend(reasons);
        partial.extend(counters.partial());
        if is_missing {
            continue;
        }
        counters.enable();
        let worked = work();
        counters.disable();
        for (label, count) in counters.read() {
            let reason = match (count.value, &worked) {
                (Some(0), Ok(())) if !silent.contains(&label) => "it stays 0 over work that must make it count".into(),
                (Some(_), _) => continue,
                (None, _) => count.reason.unwrap_or_default(),
            };
            partial.remove(&label);
            found.insert(label, Some(reason));
        }
    }
    (found, partial)
}

/// How many events are counted at once on general counters, or None without any.
pub fn slots() -> Option<u64> {
    let general = GENERAL.iter().find_map(|event| at_once(event));
    general.or_else(|| at_once(CYCLES).map(|count| (count - 1).max(1)))
}

/// The largest group of one event that runs all the time.
fn at_once(event: &str) -> Option<u64> {
    let runs = |count: usize| {
        let names: Vec<String> = (0..count).map(|index| format!("{index}={event}")).collect();
        let mut counters = Counters::open(&[names.join("+")], Target::Own);
        counters.enable();
        foreseen_by_nobody(1 << 12);
        counters.disable();
        // A group that the kernel takes can still wait for a counter that somebody else holds, as its watchdog does.
        counters.read().values().all(|count| count.value.is_some() && count.running_ns == count.enabled_ns)
    };
    (1..=MOST).take_while(|count| runs(*count)).last().map(|count| count as u64)
}

fn work() -> io::Result<()> {
    let page = pages::base() as usize;
    let data = Pages::map(PAGES, page)?;
    data.each_random(PAGES, 4 * PAGES);
    for _ in 0..32 {
        data.each_random(NEAR, NEAR);
    }
    Pages::map(PAGES / 2, page)?.call_each()?;
    foreseen_by_nobody(1 << 16);
    Ok(())
}

/// Branches on random bits.
fn foreseen_by_nobody(count: u64) -> u64 {
    let mut state = 88_172_645_463_325_252_u64;
    let mut taken = 0;
    for _ in 0..count {
        state = step(state);
        if black_box(state) & 1 == 1 {
            taken += black_box(1);
        } else {
            taken ^= black_box(3);
        }
    }
    taken
}

/// xorshift64 (Marsaglia, Journal of Statistical Software 8(14), 2003).
fn step(state: u64) -> u64 {
    let state = state ^ state << 13;
    let state = state ^ state >> 7;
    state ^ state << 17
}

/// Anonymous memory in base pages, each touched.
struct Pages {
    start: *mut u8,
    count: usize,
    page: usize,
}

impl Pages {
    fn map(count: usize, page: usize) -> io::Result<Pages> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh anonymous mapping.
        let start =
            unsafe { libc::mmap(null_mut(), count * page, access, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: within the mapping. Kernels without THP refuse it, and have base pages anyway.
        unsafe { libc::madvise(start, count * page, libc::MADV_NOHUGEPAGE) };
        let pages = Pages { start: start.cast(), count, page };
        for index in 0..count {
            // SAFETY: `at` lies within the mapping.
            unsafe { pages.at(index).write_volatile(1) };
        }
        Ok(pages)
    }

    fn at(&self, index: usize) -> *mut u8 {
        // Another line of each page, so that the pages are not all in one set of the cache.
        self.start.wrapping_add(index * self.page + index % (self.page / 64) * 64)
    }

    /// A load and a store each in pages drawn at random from the first `among`.
    fn each_random(&self, among: usize, times: usize) {
        let mut state = 88_172_645_463_325_252_u64;
        for _ in 0..times {
            state = step(state);
            // SAFETY: `among` is at most `count`.
            let read = unsafe { self.at(state as usize % among).read_volatile() };
            state = step(state ^ u64::from(read));
            // SAFETY: as above.
            unsafe { self.at(state as usize % among).write_volatile(1) };
        }
    }

    /// Call a function that returns at once in every page, twice.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    fn call_each(&self) -> io::Result<()> {
        #[cfg(target_arch = "x86_64")]
        const RETURN: [u8; 1] = [0xc3];
        #[cfg(target_arch = "aarch64")]
        const RETURN: [u8; 4] = 0xd65f_03c0_u32.to_le_bytes();
        for index in 0..self.count {
            // SAFETY: within the mapping, which nobody executes yet.
            unsafe { RETURN.as_ptr().copy_to_nonoverlapping(self.at(index), RETURN.len()) };
        }
        // SAFETY: the mapping is this value's own. The kernel cleans caches for what becomes executable.
        if unsafe { libc::mprotect(self.start.cast(), self.count * self.page, libc::PROT_READ | libc::PROT_EXEC) } != 0
        {
            return Err(io::Error::last_os_error());
        }
        for index in (0..self.count).chain(0..self.count) {
            // SAFETY: the code there is one instruction, which returns.
            unsafe { std::mem::transmute::<*mut u8, extern "C" fn()>(self.at(index))() };
        }
        Ok(())
    }

    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fn call_each(&self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own.
        unsafe { libc::munmap(self.start.cast(), self.count * self.page) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_work_can_be_done_and_makes_faults() {
        let names = ["task-clock".to_owned(), "faults=page-faults".to_owned(), "nothing=dummy".to_owned()];
        let (found, _) = tried(&names, &[]);
        assert_eq!(found.len(), 3);
        assert!(found["nothing"].as_ref().unwrap().contains("unknown counter"));
        if found["task-clock"].is_none() {
            assert_eq!(found["faults"], None, "{found:?}");
        }
    }

    #[test]
    fn what_stays_at_zero_is_told_unless_it_may() {
        // Nothing here moves it: perf-list(1), `emulation-faults` is of instructions that the kernel emulates.
        let names = ["emulation-faults".to_owned()];
        let strict = tried(&names, &[]).0["emulation-faults"].clone();
        let lenient = tried(&names, &names).0["emulation-faults"].clone();
        if lenient.is_none() {
            assert_eq!(strict.as_deref(), Some("it stays 0 over work that must make it count"));
        } else {
            assert_eq!(strict, lenient, "where it cannot be opened, both say why");
        }
    }

    #[test]
    fn a_machine_without_a_pmu_has_no_slots() {
        let opened = Counters::open(&[CYCLES.to_owned()], Target::Own).reasons()[CYCLES].is_none();
        assert_eq!(slots().is_some(), opened);
    }

    #[test]
    fn the_largest_group_is_found_by_software_events_too() {
        // Of these there is no end: each that is asked for runs.
        let clocks = at_once("task-clock");
        assert!(clocks.is_none_or(|count| count == MOST as u64), "{clocks:?}");
    }
}
