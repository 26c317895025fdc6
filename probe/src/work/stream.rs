//! The triad of STREAM (McCalpin 1995), a[i] = b[i] + s * c[i], over three equal arrays in one mapping.

use std::hint::black_box;

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use clap::Args;

use crate::common::mistake::Mistake;
use crate::machine::cache;
use crate::protocol::event::{Range, Value, named};
use crate::work::meter::Meter;
use crate::work::outcome::{self, Common, Outcome, Resident};
use crate::work::region::{Memory, Region};

const SCALAR: f64 = 3.0;

#[derive(Debug, Clone, Args)]
pub struct Options {
    #[command(flatten)]
    pub memory: Memory,
    /// Passes in the timed region
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    #[command(flatten)]
    pub common: Common,
}

/// Three arrays in one mapping.
struct Arrays {
    region: Region,
    memory: Memory,
    elements: usize,
}

pub fn measure(options: &Options, meter: &mut Meter) -> Result<Outcome> {
    let elements = elements(options.memory.bytes, cache::line());
    if elements == 0 {
        bail!(Mistake(format!("--bytes {} is too small for three arrays", options.memory.bytes)));
    }
    let mut arrays = Arrays { region: options.memory.map()?, memory: options.memory.clone(), elements };
    arrays.region.touch();
    let [_, b, c] = arrays.slices();
    for (index, (b, c)) in b.iter_mut().zip(c.iter_mut()).enumerate() {
        (*b, *c) = (1.0, (index % 7) as f64);
    }
    arrays.work(1);
    outcome::measure(arrays, options.rounds, meter)
}

impl Arrays {
    fn slices(&mut self) -> [&mut [f64]; 3] {
        // SAFETY: 3 * elements doubles fit into the region, which is aligned to a page and self's own; the three slices
        // do not overlap.
        unsafe {
            let start = self.region.start().cast::<f64>();
            [0, 1, 2].map(|number| std::slice::from_raw_parts_mut(start.add(number * self.elements), self.elements))
        }
    }
}

impl Resident for Arrays {
    fn work(&mut self, rounds: u64) {
        let [a, b, c] = self.slices();
        for _ in 0..rounds {
            triad(black_box(&mut *a), black_box(&*b), black_box(&*c));
        }
    }

    fn metrics(&self, rounds: u64, wall_ns: u64, _: u64) -> BTreeMap<String, f64> {
        // Two reads and one write for each element; the read that a write-allocating cache adds is not counted.
        let bytes = (self.elements * 3 * size_of::<f64>()) as f64 * rounds as f64;
        named([("gib_per_s", bytes / (1u64 << 30) as f64 / (wall_ns as f64 * 1e-9))])
    }

    fn facts(&mut self, rounds: u64) -> Result<BTreeMap<String, Value>> {
        let last = self.elements - 1;
        if self.slices()[0][last] != 1.0 + SCALAR * (last % 7) as f64 {
            bail!("the triad's result is wrong: faulty memory?");
        }
        Ok(named([
            ("elements", Value::Integer(self.elements as u64)),
            ("rounds", Value::Integer(rounds)),
            ("bytes", Value::Integer(self.memory.bytes)),
            ("map", Value::Text(self.memory.map.to_string())),
        ]))
    }

    fn range(&self) -> Range {
        self.region.range()
    }
}

/// Elements of each array: a third of `bytes`, in whole cache lines.
fn elements(bytes: u64, line: u64) -> usize {
    (bytes / 3 / line * line) as usize / size_of::<f64>()
}

#[inline(never)]
fn triad(a: &mut [f64], b: &[f64], c: &[f64]) {
    for ((a, b), c) in a.iter_mut().zip(b).zip(c) {
        *a = b + SCALAR * c;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_triad_is_the_triad() {
        let mut a = [0.0; 4];
        triad(&mut a, &[1.0, 2.0, 3.0, 4.0], &[0.0, 1.0, 2.0, 3.0]);
        assert_eq!(a, [1.0, 5.0, 9.0, 13.0]);
    }

    #[test]
    fn three_arrays_fit_and_start_on_lines() {
        for bytes in [0, 191, 192, 4096, 1 << 20, (1 << 20) + 13] {
            let count = elements(bytes, 64);
            assert!((count * 24) as u64 <= bytes);
            assert_eq!(count % 8, 0);
        }
        assert_eq!(elements(192, 64), 8);
    }
}
