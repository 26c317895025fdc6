//! Arithmetic over a small table in the first cache: time that no page size changes.
//!
//! It is what `hugewise calibrate` runs, and what an effect of a known size is planted in: the work is proportional to
//! the iterations, and nothing else of it changes with them.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use clap::Args;

use crate::common::mistake::Mistake;
use crate::common::random::mix;
use crate::protocol::event::{Range, Value, named};
use crate::work::meter::Meter;
use crate::work::outcome::{self, Common, Outcome, Resident};
use crate::work::region::{Memory, Region};

#[derive(Debug, Clone, Args)]
pub struct Options {
    #[command(flatten)]
    pub memory: Memory,
    /// Iterations in the timed region
    #[arg(long, default_value_t = 20_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    iterations: u64,
    #[command(flatten)]
    pub common: Common,
}

/// The table in its memory.
struct Table {
    region: Region,
    memory: Memory,
    words: usize,
    last: u64,
}

pub fn measure(options: &Options, meter: &mut Meter) -> Result<Outcome> {
    let words = options.memory.bytes as usize / size_of::<u64>();
    if !words.is_power_of_two() {
        bail!(Mistake(format!("--bytes {} must hold a power of two of 64-bit words", options.memory.bytes)));
    }
    let mut table = Table { region: options.memory.map()?, memory: options.memory.clone(), words, last: 0 };
    table.work(1 << 16);
    outcome::measure(table, options.iterations, meter)
}

impl Resident for Table {
    fn work(&mut self, iterations: u64) {
        // SAFETY: the region is mapped, aligned to a page, zeroed by the kernel, holds `words` words, and is self's own.
        let table = unsafe { std::slice::from_raw_parts_mut(self.region.start().cast::<u64>(), self.words) };
        self.last = spin(table, iterations);
    }

    fn metrics(&self, _: u64, _: u64, cpu_ns: u64) -> BTreeMap<String, f64> {
        named([("loop_cpu_s", cpu_ns as f64 * 1e-9)])
    }

    fn facts(&mut self, iterations: u64) -> Result<BTreeMap<String, Value>> {
        Ok(named([
            ("iterations", Value::Integer(iterations)),
            ("bytes", Value::Integer(self.memory.bytes)),
            ("last", Value::Text(format!("{:016x}", self.last))),
        ]))
    }

    fn range(&self) -> Range {
        self.region.range()
    }
}

/// Each iteration reads and writes the word that the one before it chose. The number of the iteration keeps the chain
/// from ending in a short cycle.
#[inline(never)]
fn spin(table: &mut [u64], iterations: u64) -> u64 {
    let mask = table.len() - 1;
    let mut value = 1;
    for index in 0..iterations {
        let word = &mut table[value as usize & mask];
        value = mix(value ^ *word ^ index);
        *word = value;
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_iterations_decide_the_result_and_reach_the_table() {
        let after = |iterations| {
            let mut table = vec![0; 64];
            (spin(&mut table, iterations), table)
        };
        assert_eq!(after(10_000), after(10_000));
        assert_ne!(after(10_000), after(10_001));
        assert!(after(10_000).1.iter().all(|word| *word != 0));
    }
}
