//! Page-fault throughput: map, write once to every base page, unmap, again and again.
//!
//! Timed is the touching, and with `--include-unmap` the unmapping too; mapping and advice are not. The last round's
//! memory is held for the scan. With `--include-unmap` every timed round must end unmapped, so that an extra, untimed
//! round of the same kind is held in its place.

use anyhow::Result;
use clap::Args;

use crate::machine::pages;
use crate::protocol::event::{Value, named};
use crate::work::meter::Meter;
use crate::work::outcome::{Common, Outcome};
use crate::work::region::Memory;

#[derive(Debug, Clone, Args)]
pub struct Options {
    #[command(flatten)]
    pub memory: Memory,
    /// Rounds in the timed region
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Time the unmapping too
    #[arg(long)]
    include_unmap: bool,
    #[command(flatten)]
    pub common: Common,
}

pub fn measure(options: &Options, meter: &mut Meter) -> Result<Outcome> {
    let mut held = None;
    for _ in 0..options.rounds {
        drop(held.take());
        let region = options.memory.map()?;
        if options.include_unmap {
            meter.lap(|| {
                region.touch();
                drop(region);
            });
        } else {
            meter.lap(|| region.touch());
            held = Some(region);
        }
    }
    let region = match held {
        Some(region) => region,
        None => {
            let region = options.memory.map()?;
            region.touch();
            region
        }
    };
    let pages = options.memory.bytes.div_ceil(pages::base()) * options.rounds;
    let bytes = options.memory.bytes as f64 * options.rounds as f64;
    Ok(Outcome {
        metrics: named([
            ("ns_per_page", meter.wall_ns as f64 / pages as f64),
            ("bytes_per_s", bytes / (meter.wall_ns as f64 * 1e-9)),
        ]),
        facts: named([
            ("pages", Value::Integer(pages)),
            ("rounds", Value::Integer(options.rounds)),
            ("bytes", Value::Integer(options.memory.bytes)),
            ("unmap_timed", Value::Integer(u64::from(options.include_unmap))),
            ("map", Value::Text(options.memory.map.to_string())),
        ]),
        ranges: vec![region.range()],
        held: Box::new(region),
    })
}
