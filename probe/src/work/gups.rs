//! Independent 64-bit XOR updates at pseudo-random places, after HPCC RandomAccess (Luszczek et al. 2006).
//!
//! A restatement: SplitMix64 takes the place of HPCC's shift register, so that the table may have any size and
//! neighbouring updates are not shifted copies of one another. Results do not compare with HPCC's.

use anyhow::{Result, bail};
use clap::Args;

use crate::event::Value;
use crate::spec::Usage;
use crate::work::meter::Meter;
use crate::work::random::{Digest, SplitMix64, scale};
use crate::work::region::Memory;
use crate::work::{Common, Outcome, facts, metrics};

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

pub fn measure(options: &Options, meter: &mut Meter) -> Result<Outcome> {
    let words = options.memory.bytes as usize / size_of::<u64>();
    if words == 0 {
        bail!(Usage(format!("--bytes {} holds no 64-bit word", options.memory.bytes)));
    }
    let region = options.memory.map()?;
    // SAFETY: the region is mapped, aligned to a page, zeroed by the kernel, and holds `words` words.
    let table = unsafe { std::slice::from_raw_parts_mut(region.start().cast::<u64>(), words) };
    for (index, word) in table.iter_mut().enumerate() {
        *word = index as u64;
    }
    meter.lap(|| update(table, options.seed, options.updates));
    Ok(Outcome {
        metrics: metrics([("gups", options.updates as f64 / meter.wall_ns as f64)]),
        facts: facts([
            ("words", Value::Integer(words as u64)),
            ("updates", Value::Integer(options.updates)),
            ("bytes", Value::Integer(options.memory.bytes)),
            ("table", Value::Text(sample(table).hex())),
            ("map", Value::Text(options.memory.map.to_string())),
        ]),
        ranges: vec![region.range()],
        held: Box::new(region),
    })
}

/// XOR `count` draws into the places that they choose. Doing it twice restores the table.
#[inline(never)]
fn update(table: &mut [u64], seed: u64, count: u64) {
    let words = table.len() as u64;
    let mut random = SplitMix64::new(seed);
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
            update(&mut table, 9, 10_000);
            assert_ne!(table, fresh);
            update(&mut table, 9, 10_000);
            assert_eq!(table, fresh);
        }
    }

    #[test]
    fn the_updates_reach_the_whole_table() {
        let mut table = vec![0u64; 1000];
        update(&mut table, 1, 20_000);
        assert!(table.iter().all(|word| *word != 0));
    }

    #[test]
    fn the_hash_sees_the_seed() {
        let after = |seed| {
            let mut table = vec![0u64; 100];
            update(&mut table, seed, 1000);
            sample(&table)
        };
        assert_eq!(after(1), after(1));
        assert_ne!(after(1), after(2));
    }
}
