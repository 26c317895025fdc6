//! Performance counters by perf's own names, behind one small type.
//!
//! A counter that cannot be opened, or that never ran, has no value but a reason: null is never 0. What is divided by each
//! other is in one group, which the processor counts whole or not at all (PERF_FORMAT_GROUP). Multiplexed values are
//! scaled by enabled/running time, as `perf stat` does, and both times are told: whoever judges takes none that ran for
//! less than all of its time. Mechanism: perf_event_open(2).

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use perf_event::{CountAndTime, Counter};

use crate::counters::names::Wish;
pub use crate::counters::opening::Target;
use crate::counters::opening::{explain, open};
use crate::process::change::Pid;
use crate::protocol::event::Count;

/// A set of counters, in the order in which they were asked for.
pub struct Counters {
    groups: Vec<Group>,
}

/// Counters that run together or not at all: a value of one can be divided by that of another.
struct Group {
    members: Vec<Member>,
    /// Of each task the counters of those members that are open, the leader first.
    tasks: Vec<Vec<Counter>>,
    lost: Option<String>,
}

struct Member {
    label: String,
    /// What limits its value, or why there is none.
    state: Result<Option<String>, String>,
}

impl Counters {
    /// Open what can be opened, disabled. Never fails as a whole: each counter keeps its own reason. Each name is that of
    /// a counter, or several joined by `+`: these are one group (`names::Wish`).
    pub fn open(names: &[String], target: Target) -> Counters {
        Counters { groups: names.iter().map(|name| Group::open(Wish::group(name), target)).collect() }
    }

    /// Whether nothing of it could be opened.
    pub fn is_closed(&self) -> bool {
        self.groups.iter().all(|group| group.tasks.iter().all(Vec::is_empty))
    }

    /// Start counting (`Target::Own`; a child's exec does this for `Target::Child`).
    pub fn enable(&mut self) {
        self.each_leader(Counter::enable);
    }

    /// Stop counting.
    pub fn disable(&mut self) {
        self.each_leader(Counter::disable);
    }

    /// A member runs while its leader does.
    fn each_leader(&mut self, act: fn(&mut Counter) -> io::Result<()>) {
        for group in &mut self.groups {
            if let Err(error) = group.tasks.iter_mut().filter_map(|of| of.first_mut()).try_for_each(act) {
                group.give_up(&format!("the kernel refused to switch it: {error}"));
            }
        }
    }

    /// The values so far, of living and of ended processes; times are nanoseconds summed over processes and threads.
    pub fn read(&mut self) -> BTreeMap<String, Count> {
        self.groups.iter_mut().flat_map(Group::read).collect()
    }

    /// Names of the counters that are open and count a part alone (user mode), of which `reasons` has the reason too.
    pub fn partial(&self) -> BTreeSet<String> {
        let members = self.groups.iter().flat_map(|group| &group.members);
        members.filter(|member| matches!(member.state, Ok(Some(_)))).map(|member| member.label.clone()).collect()
    }

    /// Name by name, the reason why a counter is missing, or None where it was opened in full.
    pub fn reasons(&self) -> BTreeMap<String, Option<String>> {
        let reason = |group: &Group, member: &Member| match &member.state {
            Ok(note) => joined(note.clone(), group.lost.clone()),
            Err(reason) => Some(reason.clone()),
        };
        let named = |group: &Group| {
            group.members.iter().map(|member| (member.label.clone(), reason(group, member))).collect::<Vec<_>>()
        };
        self.groups.iter().flat_map(named).collect()
    }
}

impl Group {
    fn open(wishes: Vec<Wish>, target: Target) -> Group {
        let tasks: Vec<Option<Pid>> = match target {
            Target::Tasks(tasks) => tasks.iter().copied().map(Some).collect(),
            Target::Child | Target::Own => vec![None],
        };
        let known = |wish: &Wish| wish.which.clone().map(|_| None);
        let members = wishes.iter().map(|wish| Member { label: wish.label.clone(), state: known(wish) }).collect();
        let mut group = Group { members, tasks: vec![], lost: None };
        'again: loop {
            group.tasks.clear();
            for task in &tasks {
                match group.open_task(&wishes, target, *task) {
                    Ok(counters) => group.tasks.push(counters),
                    Err(Refused::Gone) => {}
                    // A sum without this task would be too small: nobody has this member, and all begin anew without it.
                    Err(Refused::Member(index, reason)) => {
                        group.members[index].state = Err(reason);
                        continue 'again;
                    }
                }
            }
            break;
        }
        let lost = tasks.len() - group.tasks.len();
        if group.tasks.is_empty() {
            group.give_up(&format!("all {lost} threads had ended before they could be counted"));
        } else if lost > 0 {
            group.lost = Some(format!("{lost} of {} threads had ended before they could be counted", tasks.len()));
        }
        group
    }

    /// The counters of one task, of all members that are not missing yet.
    fn open_task(&mut self, wishes: &[Wish], target: Target, task: Option<Pid>) -> Result<Vec<Counter>, Refused> {
        let mut found: Vec<Counter> = Vec::new();
        for (index, wish) in wishes.iter().enumerate() {
            let (Ok(which), Ok(_)) = (&wish.which, &self.members[index].state) else { continue };
            let beside = found.len();
            match open(which, wish.mode, target, task, found.first_mut()) {
                Ok((counter, limit)) => {
                    found.push(counter);
                    self.members[index].state = Ok(limit);
                }
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Err(Refused::Gone),
                Err(error) => return Err(Refused::Member(index, explain(&error, beside))),
            }
        }
        Ok(found)
    }

    fn give_up(&mut self, reason: &str) {
        self.tasks.clear();
        for member in self.members.iter_mut().filter(|member| member.state.is_ok()) {
            member.state = Err(reason.to_owned());
        }
    }

    fn read(&mut self) -> Vec<(String, Count)> {
        let read = self.tasks.iter_mut().map(|counters| read_task(counters)).collect::<io::Result<Vec<_>>>();
        if let Err(error) = &read {
            self.give_up(&format!("cannot be read: {error}"));
        }
        let read = read.unwrap_or_default();
        let mut open = 0;
        let value = |member: &Member| match &member.state {
            Err(reason) => (member.label.clone(), missing(reason.clone())),
            Ok(note) => {
                let sum = |of: fn(&CountAndTime) -> u64| read.iter().map(|task| of(&task[open])).sum::<u64>();
                let (count, enabled, running) =
                    (sum(|one| one.count), sum(|one| one.time_enabled), sum(|one| one.time_running));
                let note = joined(note.clone(), self.lost.clone());
                open += 1;
                (member.label.clone(), merged(count, enabled, running, &note))
            }
        };
        self.members.iter().map(value).collect()
    }
}

/// Why a task's group was not opened: the task has gone, or a member was refused.
enum Refused {
    Gone,
    Member(usize, String),
}

/// All counters of a task in one read(2), so that they are of the same moment.
fn read_task(counters: &mut [Counter]) -> io::Result<Vec<CountAndTime>> {
    let Some((leader, others)) = counters.split_first_mut() else { return Ok(vec![]) };
    let data = leader.read_group()?;
    let times = data.time_enabled().zip(data.time_running());
    let (enabled, running) = times.ok_or_else(|| io::Error::other("the kernel gave no times"))?;
    let one = |counter: &Counter| {
        let count = data.get(counter).ok_or_else(|| io::Error::other("the kernel left it out"))?.value();
        let nanos = |time: std::time::Duration| time.as_nanos() as u64;
        Ok(CountAndTime { count, time_enabled: nanos(enabled), time_running: nanos(running) })
    };
    std::iter::once(&*leader).chain(others.iter()).map(one).collect()
}

fn joined(note: Option<String>, more: Option<String>) -> Option<String> {
    match (note, more) {
        (Some(note), Some(more)) => Some(format!("{note}; {more}")),
        (note, more) => note.or(more),
    }
}

fn missing(reason: impl Into<String>) -> Count {
    Count { value: None, reason: Some(reason.into()), enabled_ns: 0, running_ns: 0 }
}

/// The count of all tasks together, scaled as one, so that a task that slept throughout takes nothing away. Who reads a
/// scaled value sees it by its times: it is an estimate, from the part of the time in which it ran.
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
    fn a_group_is_read_at_once_and_keeps_what_could_be_opened_of_it() {
        let group = "task-clock+faults=page-faults+nonsense+minor-faults:u";
        let mut counters = Counters::open(&names(&[group]), Target::Own);
        counters.enable();
        let touched = vec![1_u8; 1 << 20];
        std::hint::black_box(&touched);
        counters.disable();
        let found = counters.read();
        assert_eq!(found.keys().collect::<Vec<_>>(), ["faults", "minor-faults:u", "nonsense", "task-clock"]);
        assert!(found["nonsense"].reason.as_ref().unwrap().contains("unknown counter"));
        if let (Some(clock), Some(faults)) = (found["task-clock"].value, found["faults"].value) {
            assert!(clock > 0 && faults > 0, "{found:?}");
            let times = |count: &Count| (count.enabled_ns, count.running_ns);
            assert_eq!(times(&found["task-clock"]), times(&found["faults"]), "one group has one time");
        }
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
}
