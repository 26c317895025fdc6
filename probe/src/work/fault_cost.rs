//! What a page fault costs here: fresh memory is touched once, in rounds, and each is timed by the thread's CPU clock.
//!
//! With base pages, and with the largest that a fault is served with where memory asks for them: the size is what the
//! faults say, not what was asked. Zeroing is in it, since it is in every fault of anonymous memory.

use anyhow::Result;

use crate::common::clock::cpu_ns;
use crate::common::usage::Usage;
use crate::protocol::event::{Event, FaultRound, emit};
use crate::work::region::{Advice, Backing, Region};

const ROUNDS: usize = 12;
/// Long enough for the clock with base pages (some milliseconds), and 16 pages of 2 MiB.
const BYTES: u64 = 32 << 20;

/// `hugewise-probe fault-cost`.
pub fn main() -> Result<()> {
    let mut rounds = Vec::new();
    for advice in [Advice::Nohuge, Advice::Huge] {
        // The first is left out: a guest's memory that was never used is found by its host then.
        rounds.extend((0..=ROUNDS).map(|_| round(advice)).skip(1).collect::<Result<Vec<_>>>()?);
    }
    emit(&Event::FaultCost { rounds })?;
    Ok(())
}

fn round(advice: Advice) -> Result<FaultRound> {
    let region = Region::map(BYTES, Backing::Anon, advice)?;
    let (faults, start) = (minor_faults(), cpu_ns());
    region.touch();
    let cpu_ns = cpu_ns() - start;
    Ok(FaultRound { bytes: BYTES, faults: minor_faults() - faults, cpu_ns })
}

fn minor_faults() -> u64 {
    Usage::of(libc::RUSAGE_THREAD).minor_faults
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::pages;

    #[test]
    fn base_pages_fault_one_by_one() {
        let found = round(Advice::Nohuge).unwrap();
        let pages = BYTES / pages::base();
        // Mappings without THP are served by base pages, one fault each.
        assert!(found.faults >= pages && found.faults < pages + pages / 8, "{found:?}");
        assert!(found.cpu_ns > 0);
    }

    #[test]
    fn memory_that_asks_for_large_pages_faults_no_more_often() {
        assert!(round(Advice::Huge).unwrap().faults <= round(Advice::Nohuge).unwrap().faults);
    }
}
