//! Opening one counter: what it follows, what limits it, and why it could not be. Mechanism: perf_event_open(2).

use std::io;

use perf_event::events::{Event, Raw};
use perf_event::{Builder, Counter, ReadFormat};

use crate::counters::names::{Mode, Which};
use crate::process::change::Pid;

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

/// A counter, and what limits it.
pub(super) fn open(
    which: &Which,
    mode: Mode,
    target: Target,
    task: Option<Pid>,
    leader: Option<&mut Counter>,
) -> io::Result<(Counter, Option<String>)> {
    if mode != Mode::All {
        return build_named(which, target, task, mode, leader).map(|counter| (counter, None));
    }
    let mut leader = leader;
    match build_named(which, target, task, mode, leader.as_deref_mut()) {
        Err(denied) if is_denied(&denied) => open_user_only(which, target, task, denied, leader),
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
    leader: Option<&mut Counter>,
) -> io::Result<(Counter, Option<String>)> {
    if which.is_kernel_only() {
        return Err(denied);
    }
    let counter = build_named(which, target, task, Mode::User, leader)?;
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

/// `beside`: how many of its group were open already.
pub(super) fn explain(error: &io::Error, beside: usize) -> String {
    match error.raw_os_error() {
        Some(libc::EINVAL) if beside > 0 => {
            format!("the processor has no counter left for it beside the {beside} others of its group")
        }
        Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV) => {
            "not offered by this processor or its hypervisor".into()
        }
        Some(libc::EACCES | libc::EPERM) => format!("not permitted: {}", paranoia()),
        Some(libc::EMFILE | libc::ENFILE) => format!("too many open files ({error})"),
        Some(libc::ENOSYS) => "this kernel has no perf events".into(),
        _ => format!("perf_event_open: {error}"),
    }
}

fn build_named(
    which: &Which,
    target: Target,
    task: Option<Pid>,
    mode: Mode,
    leader: Option<&mut Counter>,
) -> io::Result<Counter> {
    match which {
        Which::Software(event) => build(*event, target, task, mode, leader),
        Which::Hardware(event) => build(*event, target, task, mode, leader),
        Which::Cache(event) => build(event.clone(), target, task, mode, leader),
        Which::Raw(code) => build(Raw::new(*code), target, task, mode, leader),
    }
}

/// Of one task, or of this process and what is made by it.
fn build<E: Event>(
    event: E,
    target: Target,
    task: Option<Pid>,
    mode: Mode,
    leader: Option<&mut Counter>,
) -> io::Result<Counter> {
    let mut builder = Builder::new(event);
    match task {
        Some(task) => builder.observe_pid(task),
        None => builder.observe_self(),
    };
    builder
        .any_cpu()
        .inherit(true)
        .enabled(leader.is_some())
        .enable_on_exec(leader.is_none() && target == Target::Child)
        .exclude_user(mode == Mode::Kernel)
        .exclude_kernel(mode == Mode::User)
        .exclude_hv(mode != Mode::All)
        .read_format(ReadFormat::GROUP | ReadFormat::TOTAL_TIME_ENABLED | ReadFormat::TOTAL_TIME_RUNNING);
    match leader {
        Some(leader) => builder.build_with_group(leader),
        None => builder.build(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_no_counter_is_left_for_says_so() {
        let full = io::Error::from_raw_os_error(libc::EINVAL);
        assert!(explain(&full, 4).contains("no counter left for it beside the 4 others"));
        assert!(explain(&full, 0).starts_with("perf_event_open"));
    }

    #[test]
    fn without_the_kernel_a_scheduler_event_is_missing_rather_than_zero() {
        let denied = || io::Error::from_raw_os_error(libc::EACCES);
        let which = Which::named("context-switches").unwrap();
        assert!(is_denied(&open_user_only(&which, Target::Own, None, denied(), None).err().unwrap()));
        let which = Which::named("page-faults").unwrap();
        if let Ok((_, note)) = open_user_only(&which, Target::Own, None, denied(), None) {
            assert!(note.unwrap().starts_with("user mode only"));
        }
    }
}
