//! Crossover: several layouts of the same memory resident in one process, taking turns of milliseconds.
//!
//! Drift that is slower than a round of turns is the same for all of them. What is compared is another quantity than in
//! processes of their own: each layout finds caches and TLB as the other one left them.
//! The order of the turns is a coin's, given on the command line.

use std::any::Any;
use std::collections::BTreeMap;
use std::str::FromStr;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};

use crate::common::mistake::Mistake;
use crate::protocol::event::{Range, Value};
use crate::work::meter::Meter;
use crate::work::outcome::{Outcome, Timed};
use crate::work::region::{Advice, Backing, Memory};

/// Another mapping of the same size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    map: Backing,
    advice: Advice,
}

impl FromStr for Layout {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (map, advice) = text.split_once(',').unwrap_or((text, "none"));
        Ok(Self { map: map.parse()?, advice: Advice::from_str(advice, false)? })
    }
}

#[derive(Debug, Clone, Args)]
pub struct Residency {
    /// A further layout of the memory in the same process, as MAP or MAP,ADVICE; with --turns
    #[arg(long, value_name = "MAP,ADVICE", requires = "turns")]
    beside: Vec<Layout>,
    /// Order of the turns, a digit each: 0 is --map and --advice, 1 the first --beside
    #[arg(long, value_name = "DIGITS", requires = "beside")]
    turns: Option<Turns>,
}

/// The layout of each turn.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Turns(Vec<usize>);

impl FromStr for Turns {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits: Option<Vec<usize>> = text.chars().map(|c| c.to_digit(10).map(|digit| digit as usize)).collect();
        digits.filter(|digits| !digits.is_empty()).map(Turns).ok_or_else(|| "give a digit for each turn".into())
    }
}

/// A workload that is set up in its memory and can be asked for some of its work at a time.
pub trait Resident {
    /// Do `amount` of the work: loads, updates, rounds.
    fn work(&mut self, amount: u64);
    /// The metrics of `amount` of work in `wall_ns`, for which it had the CPU for `cpu_ns`.
    fn metrics(&self, amount: u64, wall_ns: u64, cpu_ns: u64) -> BTreeMap<String, f64>;
    /// What was done, in facts; also checks the result.
    fn facts(&mut self, amount: u64) -> Result<BTreeMap<String, Value>>;
    fn range(&self) -> Range;
}

/// Measure `amount` of the work: in one lap, or each layout's in turns.
pub fn measure<R: Resident + Any>(
    memory: &Memory,
    options: &Residency,
    amount: u64,
    meter: &mut Meter,
    make: impl Fn(&Memory) -> Result<R>,
) -> Result<Vec<Timed>> {
    let Some(turns) = &options.turns else {
        let mut resident = make(memory)?;
        meter.lap(|| resident.work(amount));
        let metrics = resident.metrics(amount, meter.wall_ns, meter.cpu_ns);
        return Ok(vec![told(resident, metrics, amount, meter.wall_ns)?]);
    };
    let layouts = 1 + options.beside.len();
    let shares = shares(&turns.0, layouts, amount)?;
    let further =
        options.beside.iter().map(|layout| Memory { map: layout.map, advice: layout.advice, ..memory.clone() });
    let mut residents =
        std::iter::once(memory.clone()).chain(further).map(|memory| make(&memory)).collect::<Result<Vec<R>>>()?;
    let mut spent = vec![(0, 0); layouts];
    for (layout, share) in shares {
        let (wall, cpu) = (meter.wall_ns, meter.cpu_ns);
        let resident = &mut residents[layout];
        meter.lap(|| resident.work(share));
        spent[layout].0 += meter.wall_ns - wall;
        spent[layout].1 += meter.cpu_ns - cpu;
    }
    let timed = residents.into_iter().zip(spent).map(|(resident, (wall_ns, cpu_ns))| {
        let mut metrics = resident.metrics(amount, wall_ns, cpu_ns);
        metrics.insert("cpu_s".into(), cpu_ns as f64 * 1e-9);
        told(resident, metrics, amount, wall_ns)
    });
    timed.collect()
}

fn told<R: Resident + Any>(
    mut resident: R,
    metrics: BTreeMap<String, f64>,
    amount: u64,
    wall_ns: u64,
) -> Result<Timed> {
    let (facts, ranges) = (resident.facts(amount)?, vec![resident.range()]);
    Ok(Timed { outcome: Outcome { metrics, facts, ranges, held: Box::new(resident) }, wall_ns })
}

/// Layout and amount of each turn; every layout does `amount` in equal parts.
fn shares(turns: &[usize], layouts: usize, amount: u64) -> Result<Vec<(usize, u64)>> {
    let mut total = vec![0; layouts];
    for layout in turns {
        match total.get_mut(*layout) {
            Some(count) => *count += 1,
            None => bail!(Mistake(format!("--turns: there is no layout {layout} (0 to {})", layouts - 1))),
        }
    }
    if let Some(layout) = total.iter().position(|count| *count == 0 || *count > amount) {
        bail!(Mistake(format!("--turns: layout {layout} has {} turns for {amount} pieces of work", total[layout])));
    }
    let mut had = vec![0; layouts];
    let share = |layout: usize| {
        let done = had[layout] * amount / total[layout];
        had[layout] += 1;
        (layout, had[layout] * amount / total[layout] - done)
    };
    Ok(turns.iter().copied().map(share).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_and_turns_are_read() {
        assert_eq!("anon,huge".parse(), Ok(Layout { map: Backing::Anon, advice: Advice::Huge }));
        assert_eq!("hugetlb:2m".parse(), Ok(Layout { map: Backing::Hugetlb(2 << 20), advice: Advice::None }));
        assert!("anon,big".parse::<Layout>().is_err());
        assert_eq!("0110".parse(), Ok(Turns(vec![0, 1, 1, 0])));
        assert!("".parse::<Turns>().is_err() && "0a".parse::<Turns>().is_err());
    }

    #[test]
    fn every_layout_does_all_of_the_work() {
        let shares = shares(&[0, 1, 1, 0, 0, 1], 2, 100).unwrap();
        for layout in 0..2 {
            assert_eq!(shares.iter().filter(|share| share.0 == layout).map(|share| share.1).sum::<u64>(), 100);
        }
        assert!(shares.iter().all(|share| share.1 == 33 || share.1 == 34));
    }

    #[test]
    fn impossible_turns_are_refused() {
        assert!(shares(&[0, 2], 2, 10).is_err());
        assert!(shares(&[0, 0], 2, 10).is_err());
        assert!(shares(&[0, 1, 0, 1], 2, 1).is_err());
    }
}
