//! What size of pages backs each mapping of a process, and how: the `folios` event.

use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;

use crate::common::clock::now_ns;
use crate::machine::pages;
use crate::protocol::event::{Event, Fault, Range, emit};
use crate::protocol::folios::{Drawn, Folios, FoliosOfMapping, Sampled};
use crate::scan::area::Area;
use crate::scan::page_set::PageSet;
use crate::scan::pagemap::{Scanner, exactly};
use crate::scan::sample::{Stretch, draw, population};
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
    /// Look at so many blocks of the PMD size, drawn at random, where the process has more
    #[arg(long, conflicts_with = "once")]
    sample: Option<u64>,
    /// Seed of the draw
    #[arg(long, default_value_t = 0)]
    seed: u64,
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
    let ((mappings, sampled), seen) = exactly(|order| {
        let mut scanner = Scanner::open(&task, order, true)?;
        if let Some(seen) = &seen {
            scanner.once(seen.clone());
        }
        if asked.plain {
            scanner.plainly();
        }
        let found = match asked.sample {
            Some(blocks) => some(&mut scanner, &areas, blocks, asked.seed)?,
            None => (all(&mut scanner, &areas)?, None),
        };
        Ok((found, scanner.into_seen()))
    })?;
    // Pages that were given back meanwhile would count as what they have become since.
    if !mappings.is_empty() && task.read("maps")?.is_empty() {
        bail!("process {pid} left while its memory was scanned");
    }
    Ok((Folios { pid, mappings, sampled, scan_ns: now_ns() - start }, seen))
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

/// So many blocks of all mappings together; all of them where there are no more.
fn some(
    scanner: &mut Scanner,
    areas: &[Area],
    count: u64,
    seed: u64,
) -> Result<(Vec<FoliosOfMapping>, Option<Sampled>)> {
    let block = pages::pmd();
    let mut stretches = Vec::new();
    for (mapping, area) in areas.iter().enumerate() {
        stretches.extend(joined(scanner.filled(area.range)?, area.range, block, mapping));
    }
    let population = population(&stretches, block);
    if population <= count {
        return Ok((all(scanner, areas)?, None));
    }
    let drawn = draw(&stretches, block, count, seed);
    // Read in the order of addresses, told in the order of the draw.
    let mut order: Vec<usize> = (0..drawn.len()).collect();
    order.sort_unstable_by_key(|place| drawn[*place].range.start);
    let mut tallies: Vec<Option<Tally>> = drawn.iter().map(|_| None).collect();
    let mut mappings: Vec<FoliosOfMapping> =
        areas.iter().map(|area| of_mapping(area, &scanner.tally(), (0, 0))).collect();
    for place in order {
        let one = drawn[place];
        let mut tally = scanner.tally();
        scanner.part(&areas[one.mapping], one.range, &mut tally)?;
        let found = of_mapping(&areas[one.mapping], &tally, scanner.take_rest(&tally));
        let whole = &mut mappings[one.mapping];
        for (key, size) in &found.bytes {
            *whole.bytes.entry(key.clone()).or_default() += size;
        }
        for (node, size) in &found.nodes {
            *whole.nodes.entry(node.clone()).or_default() += size;
        }
        whole.swapped += found.swapped;
        whole.zero += found.zero;
        whole.whole += found.whole;
        tallies[place] = Some(tally);
    }
    let told = drawn.iter().zip(&tallies).map(|(one, tally)| Drawn {
        mapping: one.mapping,
        bytes: tally.as_ref().map(|tally| tally.states().0).unwrap_or_default(),
    });
    let sampled = Sampled { population, block, drawn: told.collect() };
    Ok((mappings, Some(sampled)))
}

/// Stretches of a mapping that have pages, in blocks: two that meet the same block are one.
fn joined(filled: Vec<Range>, whole: Range, block: u64, mapping: usize) -> Vec<Stretch> {
    let mut found: Vec<Stretch> = Vec::new();
    for part in filled {
        let start = (part.start / block * block).max(whole.start);
        let end = part.end.checked_next_multiple_of(block).unwrap_or(whole.end).min(whole.end);
        match found.last_mut() {
            Some(last) if start <= last.range.end => last.range.end = last.range.end.max(end),
            _ => found.push(Stretch { mapping, range: Range { start, end } }),
        }
    }
    found
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_meets_the_same_block_is_drawn_as_one() {
        let range = |start, end| Range { start, end };
        let found = joined(vec![range(5, 6), range(7, 9), range(40, 41)], range(4, 45), 16, 3);
        let one = |start, end| Stretch { mapping: 3, range: range(start, end) };
        assert_eq!(found, [one(4, 16), one(32, 45)]);
    }
}
