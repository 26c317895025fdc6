//! Pointer chase: dependent loads along one random cycle, one node in each stride.
//!
//! The cycle is made by Sattolo's algorithm (1986), in the nodes themselves, so that the harness needs no memory of
//! its own. A node lies on a random cache line of its stride: nodes at equal offsets would fight for few cache sets.

use std::hint::black_box;

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use clap::Args;

use crate::common::mistake::Mistake;
use crate::common::random::{Digest, SplitMix64, mix, scale};
use crate::common::size;
use crate::machine::{cache, pages};
use crate::protocol::event::{Range, Value, named};
use crate::work::meter::Meter;
use crate::work::outcome::{self, Common, Outcome, Resident};
use crate::work::region::{Memory, Region};

#[derive(Debug, Clone, Args)]
pub struct Options {
    #[command(flatten)]
    pub memory: Memory,
    /// Distance of two nodes [default: the kernel's base page]
    #[arg(long, value_parser = size::parse)]
    stride: Option<u64>,
    /// Loads in the timed region
    #[arg(long, default_value_t = 2_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    loads: u64,
    /// Seed of the cycle
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    pub common: Common,
}

/// Where the nodes are: node i lies in the i-th stride, on a line drawn from (seed, i).
#[derive(Debug, Clone, Copy)]
struct Nodes {
    count: u64,
    stride: u64,
    line: u64,
    seed: u64,
}

impl Nodes {
    fn new(bytes: u64, stride: u64, line: u64, seed: u64) -> Result<Self> {
        if stride < line || !stride.is_multiple_of(line) {
            bail!(Mistake(format!("--stride {stride} must be a multiple of the cache line ({line} bytes)")));
        }
        let count = bytes / stride;
        if count < 2 {
            bail!(Mistake(format!("--bytes {bytes} must hold at least two nodes of --stride {stride}")));
        }
        Ok(Self { count, stride, line, seed })
    }

    /// Byte offset of node `index` from the start.
    fn offset(&self, index: u64) -> u64 {
        let lines = self.stride / self.line;
        index * self.stride + scale(mix(self.seed ^ mix(index + 1)), lines) * self.line
    }
}

/// A linked cycle in its memory, and where the walk stands.
struct Cycle {
    region: Region,
    nodes: Nodes,
    memory: Memory,
    first: *const usize,
    way: Digest,
}

pub fn measure(options: &Options, meter: &mut Meter) -> Result<Outcome> {
    let stride = options.stride.unwrap_or_else(pages::base);
    let nodes = Nodes::new(options.memory.bytes, stride, cache::line(), options.seed)?;
    outcome::measure(Cycle::new(&options.memory, nodes, options.loads)?, options.loads, meter)
}

impl Cycle {
    fn new(memory: &Memory, nodes: Nodes, loads: u64) -> Result<Self> {
        let region = memory.map()?;
        region.touch();
        // SAFETY: the nodes lie within the region, which outlives every walk.
        let (first, way) = unsafe {
            link(region.start(), nodes);
            let first = region.start().add(nodes.offset(0) as usize).cast::<usize>().cast_const();
            (first, warm_lap(first, region.start() as u64, nodes.count.min(loads)))
        };
        Ok(Self { region, nodes, memory: memory.clone(), first, way })
    }
}

impl Resident for Cycle {
    fn work(&mut self, loads: u64) {
        // SAFETY: `first` is a node of the cycle in the region, which self owns.
        self.first = black_box(unsafe { walk(self.first, loads) });
    }

    fn metrics(&self, loads: u64, wall_ns: u64, _: u64) -> BTreeMap<String, f64> {
        named([("ns_per_load", wall_ns as f64 / loads as f64)])
    }

    fn facts(&mut self, loads: u64) -> Result<BTreeMap<String, Value>> {
        Ok(named([
            ("nodes", Value::Integer(self.nodes.count)),
            ("loads", Value::Integer(loads)),
            ("bytes", Value::Integer(self.memory.bytes)),
            ("stride", Value::Integer(self.nodes.stride)),
            ("line", Value::Integer(self.nodes.line)),
            ("cycle", Value::Text(self.way.hex())),
            ("map", Value::Text(self.memory.map.to_string())),
        ]))
    }

    fn range(&self) -> Range {
        self.region.range()
    }
}

/// Join the nodes to one random cycle: each holds the address of the next.
///
/// # Safety
/// `count * stride` bytes from `start` must be mapped writable and aligned to a line.
unsafe fn link(start: *mut u8, nodes: Nodes) {
    // SAFETY: offset() < count * stride for index < count, and lines are aligned for a usize.
    let node = |index: u64| unsafe { start.add(nodes.offset(index) as usize).cast::<usize>() };
    let mut random = SplitMix64::new(nodes.seed);
    // SAFETY: all indices are below count.
    unsafe {
        for index in 0..nodes.count {
            node(index).write(index as usize);
        }
        for index in (1..nodes.count).rev() {
            std::ptr::swap(node(index), node(random.below(index)));
        }
        for index in 0..nodes.count {
            let next = node(index).read();
            node(index).write(node(next as u64) as usize);
        }
    }
}

/// Walk `loads` nodes untimed, and hash the way relative to `origin`, so that it is equal in every arm.
///
/// # Safety
/// `first` must be a node of a linked cycle.
unsafe fn warm_lap(first: *const usize, origin: u64, loads: u64) -> Digest {
    let mut digest = Digest::default();
    let mut at = first;
    for _ in 0..loads {
        // SAFETY: every node holds the address of another.
        at = unsafe { at.read() } as *const usize;
        digest.add(at as u64 - origin);
    }
    digest
}

/// The timed region: `loads` loads, each of which needs the one before.
///
/// # Safety
/// `first` must be a node of a linked cycle.
#[inline(never)]
unsafe fn walk(first: *const usize, loads: u64) -> *const usize {
    let mut at = first;
    for _ in 0..loads {
        // SAFETY: every node holds the address of another.
        at = unsafe { at.read() } as *const usize;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn linked(nodes: Nodes) -> Vec<u64> {
        let mut memory = vec![0u64; (nodes.count * nodes.stride / 8) as usize];
        let start = memory.as_mut_ptr().cast::<u8>();
        // SAFETY: memory has room for every stride.
        unsafe { link(start, nodes) };
        let mut order = Vec::new();
        let mut offset = nodes.offset(0);
        loop {
            order.push(offset);
            offset = memory[(offset / 8) as usize] - start as u64;
            if offset == nodes.offset(0) || order.len() as u64 > nodes.count {
                return order;
            }
        }
    }

    #[test]
    fn one_cycle_visits_every_node_once() {
        for count in [2, 3, 17, 256, 1000] {
            for seed in 0..8 {
                let nodes = Nodes::new(count * 256, 256, 64, seed).unwrap();
                let mut order = linked(nodes);
                assert_eq!(order.len() as u64, count);
                order.sort_unstable();
                let expected: Vec<u64> = (0..count).map(|index| nodes.offset(index)).collect();
                assert_eq!(order, expected);
            }
        }
    }

    #[test]
    fn the_seed_decides_the_cycle() {
        let nodes = |seed| Nodes::new(64 * 256, 256, 64, seed).unwrap();
        assert_eq!(linked(nodes(1)), linked(nodes(1)));
        assert_ne!(linked(nodes(1)), linked(nodes(2)));
    }

    #[test]
    fn nodes_stay_in_their_stride_and_use_its_lines() {
        let nodes = Nodes::new(4096 * 512, 4096, 64, 3).unwrap();
        let lines: std::collections::BTreeSet<u64> = (0..512)
            .map(|index| {
                let offset = nodes.offset(index);
                assert_eq!(offset / 4096, index);
                assert_eq!(offset % 64, 0);
                offset % 4096 / 64
            })
            .collect();
        assert!(lines.len() > 60, "{}", lines.len());
    }

    #[test]
    fn a_full_walk_returns_to_its_start() {
        let nodes = Nodes::new(100 * 64, 64, 64, 5).unwrap();
        let mut memory = vec![0u64; 800];
        let start = memory.as_mut_ptr().cast::<u8>();
        // SAFETY: memory has room for every stride.
        unsafe {
            link(start, nodes);
            let first = start.add(nodes.offset(0) as usize).cast::<usize>().cast_const();
            assert_eq!(walk(first, 100), first);
            assert_ne!(walk(first, 99), first);
            assert_eq!(walk(first, 250), walk(first, 50));
        }
    }

    #[test]
    fn impossible_nodes_are_refused() {
        assert!(Nodes::new(4096, 4096, 64, 0).is_err());
        assert!(Nodes::new(1 << 20, 32, 64, 0).is_err());
        assert!(Nodes::new(1 << 20, 100, 64, 0).is_err());
    }
}
