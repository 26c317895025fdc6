//! Performance counters by perf's own names, behind one small type.
//!
//! A counter that cannot be opened, or that never ran, has no value but a reason: null is never 0. Multiplexed
//! values are scaled by enabled/running time, as `perf stat` does. Mechanism: perf_event_open(2).

use std::collections::BTreeMap;
use std::io;

use perf_event::events::{Event, Raw};
use perf_event::{Builder, CountAndTime, Counter, ReadFormat};

use crate::counters::names::Which;
use crate::process::change::Pid;
use crate::protocol::event::Count;

/// What the counters are to follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target<'a> {
    /// Processes made by this one from now on, from their exec. The counters are opened on the calling process
    /// itself, disabled; a child inherits them, and its exec enables its copy. So they are open before a child exists.
    Child,
    /// This process and the threads that it makes from now on, between `enable` and `disable`.
    Own,
    /// These threads of other processes, and what they make from now on, between `enable` and `disable`. What has ended
    /// before it could be counted is told beside the value.
    Tasks(&'a [Pid]),
}

/// A set of counters, in the order of their names.
pub struct Counters {
    slots: BTreeMap<String, Slot>,
}

enum Slot {
    /// One counter for each task.
    Open {
        counters: Vec<Counter>,
        note: Option<String>,
    },
    Missing(String),
}

impl Counters {
    /// Open what can be opened, disabled. Never fails as a whole: each counter keeps its own reason.
    pub fn open(names: &[String], target: Target) -> Counters {
        let slots = names.iter().map(|name| (name.clone(), open_slot(name, target))).collect();
        Counters { slots }
    }

    /// Start counting (`Target::Own`; a child's exec does this for `Target::Child`).
    pub fn enable(&mut self) {
        self.each_open(Counter::enable);
    }

    /// Stop counting.
    pub fn disable(&mut self) {
        self.each_open(Counter::disable);
    }

    fn each_open(&mut self, act: fn(&mut Counter) -> io::Result<()>) {
        for slot in self.slots.values_mut() {
            if let Slot::Open { counters, .. } = slot
                && let Err(error) = counters.iter_mut().try_for_each(act)
            {
                *slot = Slot::Missing(format!("the kernel refused to switch it: {error}"));
            }
        }
    }

    /// The values so far, of living and of ended processes; times are nanoseconds summed over processes and threads.
    pub fn read(&mut self) -> BTreeMap<String, Count> {
        self.slots.iter_mut().map(|(name, slot)| (name.clone(), slot.read())).collect()
    }

    /// Name by name, the reason why a counter is missing, or None where it was opened in full.
    pub fn reasons(&self) -> BTreeMap<String, Option<String>> {
        let reason = |slot: &Slot| match slot {
            Slot::Open { note, .. } => note.clone(),
            Slot::Missing(reason) => Some(reason.clone()),
        };
        self.slots.iter().map(|(name, slot)| (name.clone(), reason(slot))).collect()
    }
}

impl Slot {
    fn read(&mut self) -> Count {
        match self {
            Slot::Missing(reason) => missing(reason.clone()),
            Slot::Open { counters, note } => {
                match counters.iter_mut().map(Counter::read_count_and_time).collect::<io::Result<Vec<_>>>() {
                    Err(error) => missing(format!("cannot be read: {error}")),
                    Ok(raw) => {
                        let sum = |of: fn(&CountAndTime) -> u64| raw.iter().map(of).sum::<u64>();
                        merged(sum(|one| one.count), sum(|one| one.time_enabled), sum(|one| one.time_running), note)
                    }
                }
            }
        }
    }
}

fn missing(reason: impl Into<String>) -> Count {
    Count { value: None, reason: Some(reason.into()), enabled_ns: 0, running_ns: 0 }
}

/// The count of all tasks together, scaled as one, so that a task that slept throughout takes nothing away.
fn merged(count: u64, enabled_ns: u64, running_ns: u64, note: &Option<String>) -> Count {
    match scale(count, enabled_ns, running_ns) {
        Some(value) => Count { value: Some(value), reason: note.clone(), enabled_ns, running_ns },
        None if enabled_ns == 0 => missing("nothing ran while it was counted"),
        None => Count { enabled_ns, ..missing("never ran (not scheduled on a PMU)") },
    }
}

/// count x enabled / running, rounded; None when it never ran.
fn scale(count: u64, enabled: u64, running: u64) -> Option<u64> {
    if running == 0 {
        return None;
    }
    let (count, enabled, running) = (u128::from(count), u128::from(enabled), u128::from(running));
    u64::try_from((count * enabled + running / 2) / running).ok()
}

fn open_slot(name: &str, target: Target) -> Slot {
    let which = match Which::named(name) {
        Ok(which) => which,
        Err(reason) => return Slot::Missing(reason),
    };
    let tasks = match target {
        Target::Tasks(tasks) => tasks.iter().copied().map(Some).collect(),
        Target::Child | Target::Own => vec![None],
    };
    let (mut counters, mut note) = (Vec::new(), None);
    for task in &tasks {
        match open(&which, target, *task) {
            Ok((counter, limit)) => {
                counters.push(counter);
                note = limit;
            }
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            // A sum without this task would be too small.
            Err(error) => return Slot::Missing(explain(&error)),
        }
    }
    let lost = tasks.len() - counters.len();
    if counters.is_empty() {
        return Slot::Missing(format!("all {lost} threads had ended before they could be counted"));
    }
    if lost > 0 {
        let ended = format!("{lost} of {} threads had ended before they could be counted", tasks.len());
        note = Some(note.map_or(ended.clone(), |limit| format!("{limit}; {ended}")));
    }
    Slot::Open { counters, note }
}

/// A counter, and what limits it.
fn open(which: &Which, target: Target, task: Option<Pid>) -> io::Result<(Counter, Option<String>)> {
    match build_named(which, target, task, false) {
        Err(denied) if is_denied(&denied) => open_user_only(which, target, task, denied),
        opened => Ok((opened?, None)),
    }
}

/// An ordinary user under perf_event_paranoid 2 may count user mode only. The scheduler's events happen in the kernel,
/// so they would read a false 0 there: those stay missing.
fn open_user_only(
    which: &Which,
    target: Target,
    task: Option<Pid>,
    denied: io::Error,
) -> io::Result<(Counter, Option<String>)> {
    if which.is_kernel_only() {
        return Err(denied);
    }
    let counter = build_named(which, target, task, true)?;
    let limit = (!which.is_clock()).then(|| format!("user mode only: {}", paranoia()));
    Ok((counter, limit))
}

fn is_denied(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM))
}

fn paranoia() -> String {
    match std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid") {
        Ok(level) => format!("kernel.perf_event_paranoid is {} and this user lacks CAP_PERFMON", level.trim()),
        Err(_) => "this kernel has no perf events".into(),
    }
}

fn explain(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV) => {
            "not offered by this processor or its hypervisor".into()
        }
        Some(libc::EACCES | libc::EPERM) => format!("not permitted: {}", paranoia()),
        Some(libc::EMFILE | libc::ENFILE) => format!("too many open files ({error})"),
        Some(libc::ENOSYS) => "this kernel has no perf events".into(),
        _ => format!("perf_event_open: {error}"),
    }
}

fn build_named(which: &Which, target: Target, task: Option<Pid>, user_only: bool) -> io::Result<Counter> {
    match which {
        Which::Software(event) => build(*event, target, task, user_only),
        Which::Hardware(event) => build(*event, target, task, user_only),
        Which::Cache(event) => build(event.clone(), target, task, user_only),
        Which::Raw(code) => build(Raw::new(*code), target, task, user_only),
    }
}

/// Of one task, or of this process and what is made by it.
fn build<E: Event>(event: E, target: Target, task: Option<Pid>, user_only: bool) -> io::Result<Counter> {
    let mut builder = Builder::new(event);
    match task {
        Some(task) => builder.observe_pid(task),
        None => builder.observe_self(),
    };
    builder
        .any_cpu()
        .inherit(true)
        .enabled(false)
        .enable_on_exec(target == Target::Child)
        .exclude_kernel(user_only)
        .exclude_hv(user_only)
        .read_format(ReadFormat::TOTAL_TIME_ENABLED | ReadFormat::TOTAL_TIME_RUNNING)
        .build()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|name| name.to_string()).collect()
    }

    #[test]
    fn scaling_is_rounded_and_needs_running_time() {
        assert_eq!(scale(100, 300, 200), Some(150));
        assert_eq!(scale(7, 5, 5), Some(7));
        assert_eq!(scale(0, 5, 0), None);
        assert_eq!(scale(u64::MAX, 1, 1), Some(u64::MAX));
    }

    #[test]
    fn an_unknown_counter_has_a_reason_and_no_value() {
        let mut counters = Counters::open(&names(&["nonsense"]), Target::Own);
        counters.enable();
        let count = &counters.read()["nonsense"];
        assert_eq!(count.value, None);
        assert!(count.reason.as_ref().unwrap().contains("nonsense"));
    }

    #[test]
    fn own_page_faults_are_counted_between_enable_and_disable() {
        let mut counters = Counters::open(&names(&["minor-faults"]), Target::Own);
        assert_eq!(counters.reasons().len(), 1);
        let pages = 256;
        // Memory of its own: an allocator hands out again what others have touched.
        // SAFETY: a fresh anonymous mapping, written within its length, and unmapped before the test ends.
        let memory = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(std::ptr::null_mut(), pages * 4096, access, kind, -1, 0)
        };
        assert_ne!(memory, libc::MAP_FAILED);
        counters.enable();
        // SAFETY: as above.
        unsafe { std::ptr::write_bytes(memory.cast::<u8>(), 1, pages * 4096) };
        counters.disable();
        // SAFETY: as above.
        unsafe { libc::munmap(memory, pages * 4096) };
        let count = counters.read().remove("minor-faults").unwrap();
        match count.value {
            // Fewer than one fault a page where THP or large folios back the vector.
            Some(value) => assert!(value >= 1 && count.running_ns > 0, "{count:?}"),
            None => assert!(count.reason.unwrap().contains("perf"), "a counter without a value needs a reason"),
        }
    }

    #[test]
    fn a_counter_that_was_never_enabled_is_not_zero() {
        let mut counters = Counters::open(&names(&["task-clock"]), Target::Child);
        assert_eq!(counters.read()["task-clock"].value, None);
    }

    #[test]
    fn tasks_are_scaled_together() {
        assert_eq!(merged(100, 300, 200, &None).value, Some(150));
        let idle = merged(0, 0, 0, &None);
        assert_eq!((idle.value, idle.reason.as_deref()), (None, Some("nothing ran while it was counted")));
        assert!(merged(0, 5, 0, &None).reason.unwrap().contains("not scheduled"));
        let noted = merged(1, 1, 1, &Some("1 of 2 threads".into()));
        assert_eq!((noted.value, noted.reason.as_deref()), (Some(1), Some("1 of 2 threads")));
    }

    #[test]
    fn a_task_that_has_gone_is_told_beside_the_value() {
        let mut child = std::process::Command::new("sleep").arg("30").spawn().unwrap();
        let living = child.id() as Pid;
        let mut gone = std::process::Command::new("true").spawn().unwrap();
        let dead = gone.id() as Pid;
        gone.wait().unwrap();
        let both = Counters::open(&names(&["page-faults"]), Target::Tasks(&[living, dead])).reasons();
        let none = Counters::open(&names(&["page-faults"]), Target::Tasks(&[dead])).reasons();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(none["page-faults"].as_ref().unwrap().starts_with("all 1 threads had ended"), "{none:?}");
        assert!(both["page-faults"].as_ref().unwrap().contains("1 of 2 threads had ended"), "{both:?}");
    }

    #[test]
    fn without_the_kernel_a_scheduler_event_is_missing_rather_than_zero() {
        let denied = || io::Error::from_raw_os_error(libc::EACCES);
        let which = Which::named("context-switches").unwrap();
        assert!(is_denied(&open_user_only(&which, Target::Own, None, denied()).err().unwrap()));
        let which = Which::named("page-faults").unwrap();
        if let Ok((_, note)) = open_user_only(&which, Target::Own, None, denied()) {
            assert!(note.unwrap().starts_with("user mode only"));
        }
    }
}
