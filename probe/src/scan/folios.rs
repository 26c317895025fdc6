//! What size of pages backs each mapping of a process, and how: the `folios` event.

use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;

use crate::common::clock::now_ns;
use crate::protocol::event::{Event, Fault, emit};
use crate::protocol::folios::{Folios, FoliosOfMapping};
use crate::scan::area::Area;
use crate::scan::page_set::PageSet;
use crate::scan::pagemap::{Scanner, exactly};
use crate::scan::tally::Tally;
use crate::scan::task::Task;
use crate::scan::{PATIENCE, within};

#[derive(Debug, Clone, Args)]
pub struct FoliosArgs {
    /// Process to look at (may be repeated: one event each, in this order)
    #[arg(long = "pid", required = true)]
    pids: Vec<u32>,
    /// Say of each page that was counted already, in these processes, that it was
    #[arg(long)]
    once: bool,
    /// Read every entry of the page tables and every page's flags, as on a kernel that has nothing better
    #[arg(long)]
    plain: bool,
    /// Seconds after which a process that cannot be read is given up
    #[arg(long, default_value_t = PATIENCE.as_secs())]
    patience: u64,
}

/// `hugewise-probe folios`: one event a process, in the order of the arguments. For one that cannot be read, or has ended,
/// that is an `error`, and the others are looked at all the same.
pub fn main(args: &FoliosArgs) -> Result<()> {
    let mut seen = args.once.then(PageSet::default);
    for pid in &args.pids {
        let (pid, asked, before) = (*pid, args.clone(), seen.clone());
        match within(pid, Duration::from_secs(args.patience), move || look(pid, &asked, before)) {
            Ok((found, after)) => {
                seen = after;
                emit(&Event::Folios(Box::new(found)))?;
            }
            Err(error) => {
                emit(&Event::Error { fault: Fault::Workload, before_timed: true, message: format!("{error:#}") })?;
            }
        }
    }
    Ok(())
}

type Seen = Option<PageSet>;

fn look(pid: u32, asked: &FoliosArgs, seen: Seen) -> Result<(Folios, Seen)> {
    let start = now_ns();
    let task = Task { pid, task: pid };
    // Above the middle of all addresses there are pages of the kernel's alone (vsyscall), of which pagemap has nothing.
    let of_user = |area: &Area| area.range.end <= i64::MAX as u64;
    let areas: Vec<Area> = task.read("maps")?.lines().filter_map(Area::parse).filter(of_user).collect();
    let (mappings, seen) = exactly(|order| {
        let mut scanner = Scanner::open(&task, order, true)?;
        if let Some(seen) = &seen {
            scanner.once(seen.clone());
        }
        if asked.plain {
            scanner.plainly();
        }
        let found = all(&mut scanner, &areas)?;
        Ok((found, scanner.into_seen()))
    })?;
    // Pages that were given back meanwhile would count as what they have become since.
    if !mappings.is_empty() && task.read("maps")?.is_empty() {
        bail!("process {pid} left while its memory was scanned");
    }
    Ok((Folios { pid, mappings, scan_ns: now_ns() - start }, seen))
}

/// Every mapping that something backs.
fn all(scanner: &mut Scanner, areas: &[Area]) -> Result<Vec<FoliosOfMapping>> {
    let mut found = Vec::new();
    for area in areas {
        let mut tally = scanner.tally();
        scanner.part(area, area.range, &mut tally)?;
        let one = of_mapping(area, &tally, scanner.take_rest(&tally));
        if !one.bytes.is_empty() || one.swapped + one.zero > 0 {
            found.push(one);
        }
    }
    Ok(found)
}

fn of_mapping(area: &Area, tally: &Tally, (whole, swapped): (u64, u64)) -> FoliosOfMapping {
    let (bytes, again) = tally.states();
    FoliosOfMapping {
        start: area.range.start,
        end: area.range.end,
        permissions: area.permissions.clone(),
        offset: area.offset,
        device: area.device.clone(),
        inode: area.inode,
        name: area.name.clone(),
        bytes,
        again,
        nodes: tally.nodes().iter().map(|(node, size)| (node.to_string(), *size)).collect(),
        swapped,
        zero: tally.zero(),
        whole,
    }
}
