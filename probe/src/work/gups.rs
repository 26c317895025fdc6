//! Independent 64-bit XOR updates at pseudo-random places, after HPCC RandomAccess (Luszczek et al. 2006).
//!
//! A restatement: SplitMix64 takes the place of HPCC's shift register, so that the table may have any size and
//! neighbouring updates are not shifted copies of one another. Results do not compare with HPCC's.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use clap::Args;

use crate::common::mistake::Mistake;
use crate::common::random::{Digest, SplitMix64, scale};
use crate::protocol::event::{Range, Value, named};
use crate::work::meter::Meter;
use crate::work::outcome::{self, Common, Outcome, Resident};
use crate::work::region::{Memory, Region};

/// Words that the result's hash looks at, spread over the table.
const SAMPLED: usize = 4096;

#[derive(Debug, Clone, Args)]
pub struct Options {
    #[command(flatten)]
    pub memory: Memory,
    /// Updates in the timed region
    #[arg(long, default_value_t = 8_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    updates: u64,
    /// Seed of the places
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    pub common: Common,
}

/// The table in its memory, and how far the draws have come.
struct Table {
    region: Region,
    memory: Memory,
    words: usize,
    random: SplitMix64,
}

pub fn measure(options: &Options, meter: &mut Meter) -> Result<Outcome> {
    let words = options.memory.bytes as usize / size_of::<u64>();
    if words == 0 {
        bail!(Mistake(format!("--bytes {} holds no 64-bit word", options.memory.bytes)));
    }
    let random = SplitMix64::new(options.seed);
    let mut table = Table { region: options.memory.map()?, memory: options.memory.clone(), words, random };
    for (index, word) in table.words().iter_mut().enumerate() {
        *word = index as u64;
    }
    outcome::measure(table, options.updates, meter)
}

impl Table {
    fn words(&mut self) -> &mut [u64] {
        // SAFETY: the region is mapped, aligned to a page, zeroed by the kernel, holds `words` words, and is self's own.
        unsafe { std::slice::from_raw_parts_mut(self.region.start().cast::<u64>(), self.words) }
    }
}

impl Resident for Table {
    fn work(&mut self, updates: u64) {
        let mut random = self.random.clone();
        update(self.words(), &mut random, updates);
        self.random = random;
    }

    fn metrics(&self, updates: u64, wall_ns: u64, _: u64) -> BTreeMap<String, f64> {
        named([("gups", updates as f64 / wall_ns as f64)])
    }

    fn facts(&mut self, updates: u64) -> Result<BTreeMap<String, Value>> {
        Ok(named([
            ("words", Value::Integer(self.words as u64)),
            ("updates", Value::Integer(updates)),
            ("bytes", Value::Integer(self.memory.bytes)),
            ("table", Value::Text(sample(self.words()).hex())),
            ("map", Value::Text(self.memory.map.to_string())),
        ]))
    }

    fn range(&self) -> Range {
        self.region.range()
    }
}

/// XOR `count` draws into the places that they choose. Doing it twice restores the table.
#[inline(never)]
fn update(table: &mut [u64], random: &mut SplitMix64, count: u64) {
    let words = table.len() as u64;
    for _ in 0..count {
        let value = random.draw();
        table[scale(value, words) as usize] ^= value;
    }
}

fn sample(table: &[u64]) -> Digest {
    let mut digest = Digest::default();
    for word in table.iter().step_by(table.len().div_ceil(SAMPLED)) {
        digest.add(*word);
    }
    digest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twice_restores_the_table() {
        for words in [1, 2, 3, 1000, 4096] {
            let fresh: Vec<u64> = (0..words).collect();
            let mut table = fresh.clone();
            update(&mut table, &mut SplitMix64::new(9), 10_000);
            assert_ne!(table, fresh);
            update(&mut table, &mut SplitMix64::new(9), 10_000);
            assert_eq!(table, fresh);
        }
    }

    #[test]
    fn the_updates_reach_the_whole_table() {
        let mut table = vec![0u64; 1000];
        update(&mut table, &mut SplitMix64::new(1), 20_000);
        assert!(table.iter().all(|word| *word != 0));
    }

    #[test]
    fn the_hash_sees_the_seed() {
        let after = |seed| {
            let mut table = vec![0u64; 100];
            update(&mut table, &mut SplitMix64::new(seed), 1000);
            sample(&table)
        };
        assert_eq!(after(1), after(1));
        assert_ne!(after(1), after(2));
    }
}
