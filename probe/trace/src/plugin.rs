//! What QEMU calls, and what is called of QEMU: its plugin interface of version 1 (QEMU 6.0 to 8.2).
//!
//! Arguments: `ask=FILE`, which is read; `answer=FILE`, which is written when the program ends; and `begin=FILE`, where
//! only what comes after that file is there counts. A child that the program forks is not traced.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::ask::{Answer, Ask, Counts};
use crate::filter::{BASE, Filter, page};
use crate::laid::Regions;
use crate::memory::Memory;
use crate::simulator::Simulator;

type Id = u64;

const ADD_U64: c_int = 0;
const NO_REGISTERS: c_int = 0;
const READ_OR_WRITE: c_int = 3;
const WIDEST: u64 = 64;
const IN_PAGE: u64 = (1 << BASE) - 1;
const MOST: usize = 1024;
/// The answer's descriptor: programs look for theirs among the lowest.
const LOWEST: c_int = 900;
/// Of each target execve and execveat, and madvise.
const CALLS: [(&CStr, [i64; 2], i64); 2] = [(c"x86_64", [59, 322], 28), (c"aarch64", [221, 281], 233)];
const MADV_HUGEPAGE: u64 = 14;

/// The begin of `qemu_info_t`.
#[repr(C)]
struct Info {
    target: *const c_char,
}

unsafe extern "C" {
    fn qemu_plugin_register_vcpu_init_cb(id: Id, call: extern "C" fn(Id, c_uint));
    fn qemu_plugin_register_vcpu_exit_cb(id: Id, call: extern "C" fn(Id, c_uint));
    fn qemu_plugin_register_vcpu_tb_trans_cb(id: Id, call: extern "C" fn(Id, *mut c_void));
    fn qemu_plugin_register_vcpu_syscall_cb(id: Id, call: Syscall);
    fn qemu_plugin_register_atexit_cb(id: Id, call: extern "C" fn(Id, *mut c_void), with: *mut c_void);
    fn qemu_plugin_tb_n_insns(block: *const c_void) -> usize;
    fn qemu_plugin_tb_get_insn(block: *const c_void, at: usize) -> *mut c_void;
    fn qemu_plugin_register_vcpu_tb_exec_cb(block: *mut c_void, call: Executed, flags: c_int, with: *mut c_void);
    fn qemu_plugin_register_vcpu_tb_exec_inline(block: *mut c_void, what: c_int, to: *mut c_void, number: u64);
    fn qemu_plugin_register_vcpu_mem_cb(of: *mut c_void, call: Accessed, flags: c_int, on: c_int, with: *mut c_void);
    fn qemu_plugin_mem_size_shift(info: u32) -> c_uint;
    fn pthread_atfork(before: Forked, parent: Forked, child: Forked) -> c_int;
}

type Executed = extern "C" fn(c_uint, *mut c_void);
type Accessed = extern "C" fn(c_uint, u32, u64, *mut c_void);
type Forked = Option<extern "C" fn()>;
type Syscall = extern "C" fn(Id, c_uint, i64, u64, u64, u64, u64, u64, u64, u64, u64);

#[unsafe(no_mangle)]
static qemu_plugin_version: c_int = 1;

/// One thread of the program.
struct Thread {
    filter: Filter,
    simulator: Simulator,
    instructions: u64,
    /// Accesses before those that count; None: none counts yet.
    before: Option<u64>,
}

struct Given {
    ask: Ask,
    answer: File,
    begin: Option<PathBuf>,
    target: &'static CStr,
    regions: Regions,
}

static GIVEN: OnceLock<Given> = OnceLock::new();
static THREADS: [AtomicPtr<Thread>; MOST] = [const { AtomicPtr::new(ptr::null_mut()) }; MOST];
/// Of the threads that have ended.
static SUMS: Mutex<Option<(Memory, Answer)>> = Mutex::new(None);
static RECORDS: AtomicU64 = AtomicU64::new(0);
/// Of the first thread, as long as it is alone: added by translated code.
static INSTRUCTIONS: AtomicU64 = AtomicU64::new(0);
/// As many of them do not count.
static INSTRUCTIONS_BEFORE: AtomicU64 = AtomicU64::new(0);
/// The file of `begin` is there.
static COUNTING: AtomicBool = AtomicBool::new(false);
static CHILD: AtomicBool = AtomicBool::new(false);
static FORKS: AtomicU64 = AtomicU64::new(0);
static BEGUN: AtomicU64 = AtomicU64::new(0);
static UNTRACED: AtomicU64 = AtomicU64::new(0);

/// # Safety
/// QEMU calls it once, with its own description and `count` words.
#[unsafe(no_mangle)]
unsafe extern "C" fn qemu_plugin_install(id: Id, info: *const Info, count: c_int, of: *const *const c_char) -> c_int {
    // SAFETY: as QEMU promises; the name of the target stays.
    let target: &'static CStr = unsafe { CStr::from_ptr((*info).target) };
    // SAFETY: as QEMU promises.
    let words = (0..count as usize).map(|at| unsafe { CStr::from_ptr(*of.add(at)) }.to_string_lossy());
    let given = match given(words.map(|word| word.into_owned()).collect(), target) {
        Ok(given) => given,
        Err(why) => {
            eprintln!("libhugewise-trace.so: {why}");
            return 1;
        }
    };
    let _ = GIVEN.set(given);
    // SAFETY: the functions have these types, and pthread_atfork(3) those.
    unsafe {
        qemu_plugin_register_vcpu_init_cb(id, begins);
        qemu_plugin_register_vcpu_exit_cb(id, ends);
        qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
        qemu_plugin_register_vcpu_syscall_cb(id, calls);
        qemu_plugin_register_atexit_cb(id, leaves, ptr::null_mut());
        pthread_atfork(None, Some(forked), Some(in_child))
    }
}

fn given(words: Vec<String>, target: &'static CStr) -> Result<Given, String> {
    let named = |name: &str| {
        let found = words.iter().find_map(|word| word.strip_prefix(name));
        found.map(str::to_owned).ok_or_else(|| format!("{name}FILE is missing"))
    };
    let path = named("ask=")?;
    let text = fs::read(&path).map_err(|error| format!("{path}: {error}"))?;
    let ask: Ask = serde_json::from_slice(&text).map_err(|error| format!("{path}: {error}"))?;
    if let Some(fault) = ask.fault() {
        return Err(format!("{path}: {fault}"));
    }
    let begin = named("begin=").ok().map(PathBuf::from);
    COUNTING.store(begin.is_none(), Relaxed);
    let path = named("answer=")?;
    let answer = opened(&path).map_err(|error| format!("{path}: {error}"))?;
    Ok(Given { ask, answer, begin, target, regions: Regions::default() })
}

/// The file is opened now: the program may change its account, or its root.
fn opened(path: &str) -> io::Result<File> {
    let file = File::create(path)?;
    // SAFETY: it is open; the new descriptor is this function's alone.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, LOWEST) } {
        -1 => Ok(file),
        // SAFETY: as above.
        new => Ok(unsafe { File::from_raw_fd(new) }),
    }
}

extern "C" fn begins(_: Id, at: c_uint) {
    let Some(place) = THREADS.get(at as usize).filter(|_| !CHILD.load(Relaxed)) else {
        UNTRACED.fetch_add(1, Relaxed);
        return;
    };
    BEGUN.fetch_add(1, Relaxed);
    let Some(given) = GIVEN.get() else { return };
    let before = COUNTING.load(Relaxed).then_some(0);
    let simulator = Simulator::new(&given.ask, given.regions.clone());
    let thread = Thread { filter: Filter::new(), simulator, instructions: 0, before };
    place.store(Box::into_raw(Box::new(thread)), Relaxed);
}

extern "C" fn ends(_: Id, at: c_uint) {
    let Some(place) = THREADS.get(at as usize) else { return };
    let thread = place.swap(ptr::null_mut(), Relaxed);
    if thread.is_null() || CHILD.load(Relaxed) {
        return;
    }
    // SAFETY: it was made by `begins`, and is taken once; its thread has ended.
    let mut thread = unsafe { Box::from_raw(thread) };
    thread.flush();
    let mut sums = SUMS.lock().unwrap_or_else(PoisonError::into_inner);
    let (memory, sums) = sums.get_or_insert_default();
    let counts = thread.simulator.counts();
    sums.configurations.resize(counts.len(), Counts::default());
    sums.configurations.iter_mut().zip(&counts).for_each(|(sum, each)| sum.add(each));
    let laid = thread.simulator.layouts.counts();
    sums.laid.resize(laid.len(), [0; 3]);
    sums.laid.iter_mut().flatten().zip(laid.iter().flatten()).for_each(|(sum, each)| *sum += each);
    memory.add(&thread.simulator.memory);
    sums.accesses += thread.filter.accesses - thread.before.unwrap_or(thread.filter.accesses);
    sums.instructions += thread.instructions;
    sums.threads += 1;
}

impl Thread {
    #[inline(never)]
    fn flush(&mut self) {
        self.simulator.feed(&self.filter.records);
        if self.before.is_some() {
            RECORDS.fetch_add(self.filter.records.len() as u64, Relaxed);
        } else if counting() {
            self.simulator.forget_counts();
            self.instructions = 0;
            self.before = Some(self.filter.accesses);
        }
        self.filter.records.clear();
    }

    #[inline(always)]
    fn access(&mut self, page: u64) {
        if !self.filter.again(page) {
            self.change(page);
        }
    }

    /// What is not often needed is by itself, so that the usual access saves no registers.
    #[inline(never)]
    fn change(&mut self, page: u64) {
        if self.filter.change(page) {
            self.flush();
        }
    }

    #[inline(never)]
    fn at_end_of_page(&mut self, info: u32, address: u64) {
        self.access(page(address));
        // SAFETY: `info` is of this call.
        let last = address.wrapping_add((1 << unsafe { qemu_plugin_mem_size_shift(info) }) - 1);
        if page(last) != page(address) {
            self.access(page(last));
        }
    }
}

fn counting() -> bool {
    if COUNTING.load(Relaxed) {
        return true;
    }
    let there = GIVEN.get().and_then(|given| given.begin.as_ref()).is_some_and(|begin| begin.exists());
    if there && !COUNTING.swap(true, Relaxed) {
        INSTRUCTIONS_BEFORE.store(INSTRUCTIONS.load(Relaxed), Relaxed);
    }
    there
}

extern "C" fn translated(_: Id, block: *mut c_void) {
    // SAFETY: the block is QEMU's, of this call.
    unsafe {
        let count = qemu_plugin_tb_n_insns(block);
        if BEGUN.load(Relaxed) > 1 {
            // Translated code adds without a lock: several threads would lose some.
            qemu_plugin_register_vcpu_tb_exec_cb(block, executed, NO_REGISTERS, ptr::without_provenance_mut(count));
        } else {
            qemu_plugin_register_vcpu_tb_exec_inline(block, ADD_U64, INSTRUCTIONS.as_ptr().cast(), count as u64);
        }
        for at in 0..count {
            let instruction = qemu_plugin_tb_get_insn(block, at);
            qemu_plugin_register_vcpu_mem_cb(instruction, accessed, NO_REGISTERS, READ_OR_WRITE, ptr::null_mut());
        }
    }
}

extern "C" fn executed(at: c_uint, count: *mut c_void) {
    let Some(place) = THREADS.get(at as usize) else { return };
    // SAFETY: made by `begins`, and used by this thread alone.
    if let Some(thread) = unsafe { place.load(Relaxed).as_mut() } {
        thread.instructions += count.addr() as u64;
    }
}

extern "C" fn accessed(at: c_uint, info: u32, address: u64, _: *mut c_void) {
    let Some(place) = THREADS.get(at as usize) else { return };
    // SAFETY: as above.
    let Some(thread) = (unsafe { place.load(Relaxed).as_mut() }) else { return };
    match address & IN_PAGE > IN_PAGE + 1 - WIDEST {
        true => thread.at_end_of_page(info, address),
        false => thread.access(page(address)),
    }
}

extern "C" fn calls(_: Id, _: c_uint, call: i64, at: u64, size: u64, how: u64, _: u64, _: u64, _: u64, _: u64, _: u64) {
    let Some(given) = GIVEN.get().filter(|_| !CHILD.load(Relaxed)) else { return };
    let Some((_, replacing, madvise)) = CALLS.iter().find(|(target, ..)| *target == given.target) else { return };
    let is_region = given.ask.laid.as_ref().is_some_and(|laid| laid.heap == size);
    if call == *madvise && how == MADV_HUGEPAGE && is_region {
        given.regions.write().unwrap_or_else(PoisonError::into_inner).push(page(at));
    }
    if replacing.contains(&call) {
        // Where it succeeds, nothing of this is left; where it fails, the end of the program writes another answer.
        write(given, Answer { replaced: true, ..Answer::default() });
    }
}

extern "C" fn forked() {
    FORKS.fetch_add(1, Relaxed);
}

extern "C" fn in_child() {
    CHILD.store(true, Relaxed);
    THREADS.iter().for_each(|place| place.store(ptr::null_mut(), Relaxed));
}

/// The program ends: QEMU has stopped all callbacks.
extern "C" fn leaves(id: Id, _: *mut c_void) {
    let Some(given) = GIVEN.get().filter(|_| !CHILD.load(Relaxed)) else { return };
    (0..MOST).for_each(|at| ends(id, at as c_uint));
    let sums = SUMS.lock().unwrap_or_else(PoisonError::into_inner).take();
    let (memory, sums) = sums.unwrap_or_default();
    let answer = Answer {
        instructions: match COUNTING.load(Relaxed) {
            true => sums.instructions + INSTRUCTIONS.load(Relaxed) - INSTRUCTIONS_BEFORE.load(Relaxed),
            false => 0,
        },
        records: RECORDS.load(Relaxed),
        untraced: UNTRACED.load(Relaxed),
        forks: FORKS.load(Relaxed),
        touched: memory.touched(),
        sizes: given.ask.sizes.iter().map(|&shift| memory.size(shift)).collect(),
        regions: given.regions.read().unwrap_or_else(PoisonError::into_inner).len(),
        ..sums
    };
    write(given, answer);
}

fn write(given: &Given, answer: Answer) {
    let target = given.target.to_string_lossy().into_owned();
    let text = serde_json::to_vec(&Answer { version: 1, target, ..answer }).unwrap_or_default();
    let length = text.len() as u64;
    if let Err(error) = given.answer.write_all_at(&text, 0).and_then(|()| given.answer.set_len(length)) {
        eprintln!("libhugewise-trace.so: the answer cannot be written: {error}");
    }
}
