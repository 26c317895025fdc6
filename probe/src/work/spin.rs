//! Arithmetic over a small table in the first cache: time that no page size changes.
//!
//! It is what `hugewise calibrate` runs, and what an effect of a known size is planted in: the work is proportional to
//! the iterations, and nothing else of it changes with them.

use std::hint::black_box;

use anyhow::{Result, bail};
use clap::Args;

use crate::event::Value;
use crate::spec::Usage;
use crate::work::meter::Meter;
use crate::work::random::mix;
use crate::work::region::Memory;
use crate::work::{Common, Outcome, facts, metrics};

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

pub fn measure(options: &Options, meter: &mut Meter) -> Result<Outcome> {
    let words = options.memory.bytes as usize / size_of::<u64>();
    if !words.is_power_of_two() {
        bail!(Usage(format!("--bytes {} must hold a power of two of 64-bit words", options.memory.bytes)));
    }
    let region = options.memory.map()?;
    // SAFETY: the region is mapped, aligned to a page, zeroed by the kernel, and holds `words` words.
    let table = unsafe { std::slice::from_raw_parts_mut(region.start().cast::<u64>(), words) };
    black_box(spin(table, options.iterations.min(1 << 16)));
    let last = meter.lap(|| spin(table, options.iterations));
    Ok(Outcome {
        metrics: metrics([("loop_cpu_s", meter.cpu_ns as f64 * 1e-9)]),
        facts: facts([
            ("iterations", Value::Integer(options.iterations)),
            ("bytes", Value::Integer(options.memory.bytes)),
            ("last", Value::Text(format!("{last:016x}"))),
        ]),
        ranges: vec![region.range()],
        held: Box::new(region),
    })
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
