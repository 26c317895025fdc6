//! What really backs the memory of a process, by kind and page size: the `coverage` event.
//!
//! `common`, `protocol` and `machine` may be imported here; others get `scan_process` and `folios` alone. What root can
//! see goes into `pagemap` and `folio`, what everybody can into `smaps`; what counts as delivered, and under which key,
//! into `tally`; what is told of each mapping into `folios`.

mod area;
mod folio;
pub mod folios;
mod nodes;
mod page_flags;
mod page_set;
mod pagemap;
mod regions;
mod runs;
mod smaps;
mod tally;
mod task;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;

use crate::common::clock::now_ns;
use crate::protocol::event::{Event, Range, Source, emit};
use area::{Area, merged};
use smaps::Knowledge;
use task::Task;

/// Longest command line that is reported.
const COMMAND_LENGTH: usize = 200;

#[derive(Debug, Clone, Args)]
pub struct ScanArgs {
    /// Process to look at
    #[arg(long)]
    pid: u32,
    /// Only these addresses, hexadecimal START-END (may be repeated) [default: all anonymous, shmem and hugetlb memory]
    #[arg(long = "range", value_parser = parse_range)]
    ranges: Vec<Range>,
    /// How: kpageflags is exact and needs root; smaps serves everybody
    #[arg(long, value_enum, default_value = "kpageflags")]
    source: Source,
    /// Seconds after which a process that cannot be read is given up
    #[arg(long, default_value_t = PATIENCE.as_secs())]
    patience: u64,
}

/// How long one process may take: of 10 TiB in base pages a scan takes as long.
const PATIENCE: Duration = Duration::from_secs(300);
/// And once a process was given up.
const AGAIN: Duration = Duration::from_secs(10);

static GIVEN_UP: AtomicBool = AtomicBool::new(false);

fn parse_range(text: &str) -> Result<Range, String> {
    let number = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
    text.split_once('-')
        .and_then(|(start, end)| Some(Range { start: number(start)?, end: number(end)? }))
        .filter(|range| range.start < range.end)
        .ok_or_else(|| format!("'{text}' is not a range; write START-END in hexadecimal, as /proc/PID/maps does"))
}

/// `hugewise-probe scan`.
pub fn main(args: ScanArgs) -> Result<()> {
    let ranges = (!args.ranges.is_empty()).then_some(args.ranges.as_slice());
    emit(&scan_within(args.pid, args.pid, ranges, args.source, Duration::from_secs(args.patience))?)?;
    Ok(())
}

/// Find what backs the memory of process `pid`, read through its thread `task`. `ranges` None: all anonymous, shmem
/// and hugetlb memory. The process should stand still; one that changes its memory meanwhile may cause an error.
pub fn scan_process(pid: u32, task: u32, ranges: Option<&[Range]>, source: Source) -> Result<Event> {
    let patience = if GIVEN_UP.load(Ordering::Relaxed) { AGAIN } else { PATIENCE };
    scan_within(pid, task, ranges, source, patience)
}

/// The same in a thread, which is given up after so long: its files are read under the lock of its map of memory, and
/// who has that may have it for ever, where it hangs in a page fault on a file whose server does not answer.
fn scan_within(pid: u32, task: u32, ranges: Option<&[Range]>, source: Source, patience: Duration) -> Result<Event> {
    let own = ranges.map(<[Range]>::to_vec);
    within(pid, patience, move || scan(pid, task, own.as_deref(), source))
}

/// What `look` finds of process `pid` in a thread that is given up after so long.
fn within<T: Send + 'static>(
    pid: u32,
    patience: Duration,
    look: impl FnOnce() -> Result<T> + Send + Clone + 'static,
) -> Result<T> {
    let (give, take) = mpsc::channel();
    let other = look.clone();
    let begun = thread::Builder::new().spawn(move || give.send(other()));
    if begun.is_err() {
        return look(); // no more threads are allowed here
    }
    match take.recv_timeout(patience) {
        Ok(found) => found,
        Err(RecvTimeoutError::Disconnected) => bail!("the scan of process {pid} broke off"),
        Err(RecvTimeoutError::Timeout) => {
            GIVEN_UP.store(true, Ordering::Relaxed);
            bail!(
                "process {pid} could not be read within {} s: its map of memory is held (it hangs in the kernel, or who \
                 looks into it does: see /proc/{pid}/task/*/stack)",
                patience.as_secs()
            )
        }
    }
}

fn scan(pid: u32, task: u32, ranges: Option<&[Range]>, source: Source) -> Result<Event> {
    let start = now_ns();
    let task = Task { pid, task };
    let thp_disabled = thp_disabled(&task.read("status")?);
    let whole = ranges.map(merged);
    let ranges = whole.as_deref();
    let bytes = match source {
        Source::Kpageflags => {
            let areas: Vec<Area> = task.read("maps")?.lines().filter_map(Area::parse).collect();
            pagemap::scan(&task, &areas, ranges)?
        }
        Source::Smaps => smaps::tally(&task.read("smaps")?, ranges, &Knowledge::gather(thp_disabled)),
    };
    // Pages that were given back meanwhile would count as what they have become since.
    if !bytes.is_empty() && task.read("maps")?.is_empty() {
        bail!("process {pid} left while its memory was scanned");
    }
    let command = command(&task);
    Ok(Event::Coverage {
        pid,
        command,
        named: ranges.is_some(),
        source,
        bytes,
        thp_disabled,
        scan_ns: now_ns() - start,
    })
}

/// PR_SET_THP_DISABLE as in a status file; it does not show the except-advised form.
fn thp_disabled(status: &str) -> Option<bool> {
    let value = status.lines().find_map(|line| line.strip_prefix("THP_enabled:"))?;
    Some(value.trim() == "0")
}

/// The command line, its start if it is long, or the short name where there is none.
fn command(task: &Task) -> String {
    let line = task.read("cmdline").unwrap_or_default();
    let words = line.trim_end_matches('\0').replace('\0', " ");
    if words.is_empty() {
        return task.read("comm").map(|name| name.trim_end().to_owned()).unwrap_or_default();
    }
    words.chars().take(COMMAND_LENGTH).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_maps_writes_them() {
        assert_eq!(parse_range("7f00-7fff"), Ok(Range { start: 0x7f00, end: 0x7fff }));
        assert_eq!(parse_range("0x10-0x20"), Ok(Range { start: 16, end: 32 }));
        for bad in ["", "1000", "20-10", "10-10", "x-y"] {
            assert!(parse_range(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_status_tells_whether_thp_is_disabled() {
        assert_eq!(thp_disabled("Name:\tx\nTHP_enabled:\t0\n"), Some(true));
        assert_eq!(thp_disabled("THP_enabled:\t1\n"), Some(false));
        assert_eq!(thp_disabled("Name:\tx\n"), None);
    }

    #[test]
    fn a_missing_process_is_named() {
        let error = scan_process(u32::MAX, u32::MAX, None, Source::Smaps).unwrap_err();
        assert!(format!("{error:#}").contains("there is no process"), "{error:#}");
    }
}
