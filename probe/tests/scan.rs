//! The scan against real memory: of micro-workloads, and of this test program itself.

mod common;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::process::CommandExt;
use std::ptr;

use common::{Held, events, need, need_root, probe, text};
use serde_json::Value;

const THP: &str = "/sys/kernel/mm/transparent_hugepage";

fn base() -> u64 {
    rustix::param::page_size() as u64
}

/// The size that a PMD maps, if huge pages can be had by madvise now.
fn need_advised_thp() -> Option<u64> {
    let setting = fs::read_to_string(format!("{THP}/enabled")).unwrap_or_default();
    let usable = !setting.is_empty() && !setting.contains("[never]");
    let size: u64 =
        fs::read_to_string(format!("{THP}/hpage_pmd_size")).ok().and_then(|text| text.trim().parse().ok())?;
    let own = fs::read_to_string(format!("{THP}/hugepages-{}kB/enabled", size >> 10)).unwrap_or_default();
    need(usable && !own.contains("[never]"), "transparent huge pages by madvise").then_some(size)
}

fn scan(pid: u32, source: &str, ranges: &[(u64, u64)]) -> Value {
    let mut command = probe();
    command.args(["scan", "--pid", &pid.to_string(), "--source", source]);
    for (start, end) in ranges {
        command.args(["--range", &format!("{start:x}-{end:x}")]);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    events(&output.stdout).remove(0)
}

fn bytes(coverage: &Value) -> BTreeMap<String, u64> {
    let entries = coverage["bytes"].as_object().unwrap().iter();
    entries.map(|(key, value)| (key.clone(), value.as_u64().unwrap())).collect()
}

fn only(key: String, size: u64) -> BTreeMap<String, u64> {
    BTreeMap::from([(key, size)])
}

/// Memory of this test program.
struct Memory {
    start: *mut u8,
    length: usize,
}

impl Memory {
    fn anonymous(length: u64) -> Self {
        Self::map(length, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, None)
    }

    fn map(length: u64, flags: i32, file: Option<&File>) -> Self {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let descriptor = file.map_or(-1, AsRawFd::as_raw_fd);
        // SAFETY: the kernel picks a free place.
        let start = unsafe { libc::mmap(ptr::null_mut(), length as usize, protection, flags, descriptor, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        Self { start: start.cast(), length: length as usize }
    }

    fn advise(&self, advice: i32) {
        // SAFETY: our own mapping.
        let status = unsafe { libc::madvise(self.start.cast(), self.length, advice) };
        // A kernel without huge pages need not be told to leave them out.
        assert!(status == 0 || advice == libc::MADV_NOHUGEPAGE, "{}", std::io::Error::last_os_error());
    }

    fn write(&self) {
        for at in (0..self.length).step_by(base() as usize) {
            // SAFETY: within our own mapping.
            unsafe { self.start.add(at).write_volatile(1) };
        }
    }

    fn read(&self) {
        for at in (0..self.length).step_by(base() as usize) {
            // SAFETY: within our own mapping.
            unsafe { self.start.add(at).read_volatile() };
        }
    }

    fn range(&self) -> (u64, u64) {
        (self.start as u64, self.start as u64 + self.length as u64)
    }

    fn coverage(&self, source: &str) -> BTreeMap<String, u64> {
        bytes(&scan(std::process::id(), source, &[self.range()]))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: our own mapping; parts that are gone already do no harm.
        unsafe { libc::munmap(self.start.cast(), self.length) };
    }
}

#[test]
fn base_pages_are_all_found() {
    if !need_root() {
        return;
    }
    for size in [base(), 256 << 10, 16 << 20, (8 << 20) + 5] {
        let held = Held::start(&["fault", "--bytes", &size.to_string(), "--rounds", "1", "--advice", "nohuge"]);
        let coverage = scan(held.pid(), "kpageflags", &held.ranges());
        assert_eq!(coverage["named"], true);
        assert_eq!(bytes(&coverage), only(format!("anon:{}", base()), size.next_multiple_of(base())));
        assert!(text(&coverage, "command").contains("fault"), "{coverage}");
    }
}

#[test]
fn huge_pages_are_told_from_base_pages_by_both_sources() {
    let Some(pmd) = need_advised_thp() else { return };
    let held = Held::start(&["chase", "--bytes", "16m", "--loads", "1000", "--advice", "huge"]);
    let of = |source| bytes(&scan(held.pid(), source, &held.ranges())).remove(&format!("anon:{pmd}")).unwrap_or(0);
    let proven = of("smaps");
    if need(proven > 0, "free memory in huge pages") && need_root() {
        assert_eq!(of("kpageflags"), proven);
    }
}

#[test]
fn a_small_footprint_in_a_huge_page_counts_its_own_bytes() {
    let (true, Some(pmd)) = (need_root(), need_advised_thp()) else { return };
    let held = Held::start(&["chase", "--bytes", "256k", "--loads", "1000", "--advice", "huge"]);
    let found = bytes(&scan(held.pid(), "kpageflags", &held.ranges()));
    assert_eq!(found.values().sum::<u64>(), 256 << 10);
    if need(!found.contains_key(&format!("anon:{}", base())), "free memory in huge pages") {
        assert_eq!(found, only(format!("anon:{pmd}"), 256 << 10));
    }
}

#[test]
fn a_huge_page_mapped_by_base_entries_is_not_delivered() {
    let (true, Some(pmd)) = (need_root(), need_advised_thp()) else { return };
    let memory = Memory::anonymous(3 * pmd);
    memory.advise(libc::MADV_HUGEPAGE);
    memory.write();
    let start = (memory.range().0).next_multiple_of(pmd);
    let coverage = || bytes(&scan(std::process::id(), "kpageflags", &[(start, start + pmd)]));
    if !need(coverage() == only(format!("anon:{pmd}"), pmd), "free memory in huge pages") {
        return;
    }
    // A hole of one page splits the mapping, and leaves the folio whole.
    // SAFETY: within our own mapping.
    assert_eq!(unsafe { libc::munmap((start + base()) as *mut _, base() as usize) }, 0);
    assert_eq!(coverage(), only(format!("anon-pte:{pmd}"), pmd - base()));
    let by_smaps = bytes(&scan(std::process::id(), "smaps", &[(start, start + pmd)]));
    assert!(!by_smaps.contains_key(&format!("anon:{pmd}")), "{by_smaps:?}");
}

#[test]
fn what_was_read_and_never_written_is_no_memory() {
    if !need_root() {
        return;
    }
    let memory = Memory::anonymous(64 * base());
    memory.advise(libc::MADV_NOHUGEPAGE);
    memory.read();
    assert_eq!(memory.coverage("kpageflags"), BTreeMap::new());
    // SAFETY: within our own mapping.
    unsafe { memory.start.write_volatile(1) };
    assert_eq!(memory.coverage("kpageflags"), only(format!("anon:{}", base()), base()));
}

#[test]
fn what_was_read_of_the_huge_zero_page_is_no_memory() {
    let (true, Some(pmd)) = (need_root(), need_advised_thp()) else { return };
    if !need(fs::read_to_string(format!("{THP}/use_zero_page")).is_ok_and(|text| text.trim() == "1"), "use_zero_page") {
        return;
    }
    let memory = Memory::anonymous(8 * pmd);
    memory.advise(libc::MADV_HUGEPAGE);
    memory.read();
    let start = memory.range().0.next_multiple_of(pmd);
    let coverage = || bytes(&scan(std::process::id(), "kpageflags", &[(start, start + 4 * pmd)]));
    assert_eq!(coverage(), BTreeMap::new());
    // SAFETY: within our own mapping.
    unsafe { (start as *mut u8).write_volatile(1) };
    assert!(coverage().values().sum::<u64>() <= pmd, "{:?}", coverage());
}

#[test]
fn untouched_memory_is_not_counted() {
    let memory = Memory::anonymous(1 << 40);
    memory.advise(libc::MADV_NOHUGEPAGE);
    // SAFETY: within our own mapping.
    unsafe { memory.start.add(1 << 39).write_volatile(1) };
    assert_eq!(memory.coverage("smaps").values().sum::<u64>(), base());
    if need_root() {
        assert_eq!(memory.coverage("kpageflags"), only(format!("anon:{}", base()), base()));
    }
}

fn memory_file(size: u64) -> File {
    // SAFETY: a C string; the descriptor is ours.
    let descriptor = unsafe { libc::memfd_create(c"scan-test".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(descriptor >= 0);
    // SAFETY: as above.
    let file = unsafe { File::from_raw_fd(descriptor) };
    file.set_len(size).unwrap();
    file
}

#[test]
fn shared_memory_is_shmem_and_private_copies_are_anonymous() {
    if !need_root() {
        return;
    }
    let size = 32 * base();
    let file = memory_file(size);
    let shared = Memory::map(size, libc::MAP_SHARED, Some(&file));
    shared.write();
    let found = shared.coverage("kpageflags");
    assert!(found.keys().all(|key| key.starts_with("shmem")), "{found:?}");
    assert_eq!(found.values().sum::<u64>(), size);
    let copy = Memory::map(size, libc::MAP_PRIVATE, Some(&file));
    copy.write();
    assert_eq!(copy.coverage("kpageflags"), only(format!("anon:{}", base()), size));
}

#[test]
fn shared_anonymous_memory_is_shmem() {
    if !need_root() {
        return;
    }
    let memory = Memory::map(16 * base(), libc::MAP_SHARED | libc::MAP_ANONYMOUS, None);
    memory.write();
    let found = memory.coverage("kpageflags");
    assert!(found.keys().all(|key| key.starts_with("shmem")), "{found:?}");
}

#[test]
fn files_count_only_where_they_are_named() {
    if !need_root() {
        return;
    }
    let held = Held::start(&["lat-mmap", "--bytes", "1m", "--rounds", "1", "--dir", "/var/tmp"]);
    let named = bytes(&scan(held.pid(), "kpageflags", &held.ranges()));
    if need(!named.keys().any(|key| key.starts_with("shmem")), "/var/tmp on a disk") {
        assert!(!named.is_empty() && named.keys().all(|key| key.starts_with("file")), "{named:?}");
        let whole = bytes(&scan(held.pid(), "kpageflags", &[]));
        assert!(!whole.keys().any(|key| key.starts_with("file")), "{whole:?}");
    }
}

/// The totals of both sources agree for a whole process.
#[test]
fn totals_agree_with_smaps() {
    if !need_root() {
        return;
    }
    for arguments in [
        &["fault", "--bytes", "8m", "--rounds", "1", "--advice", "nohuge"][..],
        &["fault", "--bytes", "8m", "--rounds", "1", "--advice", "none"],
        &["mmap-perf", "--calls", "5000"],
        &["lat-mmap", "--bytes", "4m", "--rounds", "2"],
    ] {
        let held = Held::start(arguments);
        let total = |source| bytes(&scan(held.pid(), source, &[])).values().sum::<u64>();
        let (exact, smaps) = (total("kpageflags"), total("smaps"));
        assert!(exact.abs_diff(smaps) <= 4 * base(), "{arguments:?}: {exact} {smaps}");
        assert!(smaps > 0);
    }
}

#[test]
fn overlapping_ranges_count_once() {
    if !need_root() {
        return;
    }
    let held = Held::start(&["fault", "--bytes", "1m", "--rounds", "1", "--advice", "nohuge"]);
    let (start, end) = held.ranges()[0];
    let twice = scan(held.pid(), "kpageflags", &[(start, end), (start, start + base()), (end - base(), end)]);
    assert_eq!(bytes(&twice), only(format!("anon:{}", base()), 1 << 20));
}

#[test]
fn base_pages_are_proven_without_root_where_thp_is_disabled() {
    let mut command = probe();
    command.args(["fault", "--bytes", "1m", "--rounds", "1"]);
    // SAFETY: prctl is async-signal-safe, and takes no memory.
    unsafe {
        command.pre_exec(|| match libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    let held = Held::start_command(command);
    let coverage = scan(held.pid(), "smaps", &held.ranges());
    assert_eq!(coverage["thp_disabled"], true);
    assert_eq!(bytes(&coverage), only(format!("anon:{}", base()), 1 << 20));
}

#[test]
fn who_lacks_the_right_is_told_of_smaps() {
    if !need_root() {
        return;
    }
    let nobody = |arguments: &[&str]| {
        let mut command = probe();
        command.args(arguments).uid(65534).gid(65534);
        command
    };
    if !need(nobody(&["cpu"]).output().is_ok(), "a build folder that everybody can reach") {
        return;
    }
    let held = Held::start_command(nobody(&["fault", "--bytes", "1m", "--rounds", "1"]));
    let pid = held.pid().to_string();
    let output = nobody(&["scan", "--pid", &pid]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--source smaps"), "{output:?}");
    let output = nobody(&["scan", "--pid", &pid, "--source", "smaps"]).output().unwrap();
    assert!(bytes(&events(&output.stdout)[0]).values().sum::<u64>() >= 1 << 20, "{output:?}");
}

#[test]
fn bad_ranges_and_missing_processes_are_errors() {
    let output = probe().args(["scan", "--pid", "1", "--range", "zz"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let output = probe().args(["scan", "--pid", "4194304", "--source", "smaps"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("there is no process 4194304"));
}
