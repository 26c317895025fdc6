//! The names of counters, each spelled once: perf's (perf-list(1)).

use perf_event::events::{Cache, CacheId, CacheOp, CacheResult, Hardware, Software};

use Wanted::{OnRequest, Tried};
use Which::{Hardware as H, Software as S};

/// What a name stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    Software(Software),
    Hardware(Hardware),
    Cache(Cache),
    Raw(u64),
}

/// When a counter is opened without having been asked for.
#[derive(PartialEq)]
enum Wanted {
    OnRequest,
    /// By `hugewise-probe counters`.
    Tried,
}

/// Each with perf's other name for it.
const GENERIC: [(&str, Option<&str>, Which, Wanted); 19] = [
    ("task-clock", None, S(Software::TASK_CLOCK), Tried),
    ("cpu-clock", None, S(Software::CPU_CLOCK), Tried),
    ("page-faults", Some("faults"), S(Software::PAGE_FAULTS), Tried),
    ("minor-faults", None, S(Software::PAGE_FAULTS_MIN), Tried),
    ("major-faults", None, S(Software::PAGE_FAULTS_MAJ), Tried),
    ("context-switches", Some("cs"), S(Software::CONTEXT_SWITCHES), Tried),
    ("cpu-migrations", Some("migrations"), S(Software::CPU_MIGRATIONS), Tried),
    ("alignment-faults", None, S(Software::ALIGNMENT_FAULTS), OnRequest),
    ("emulation-faults", None, S(Software::EMULATION_FAULTS), OnRequest),
    ("cycles", Some("cpu-cycles"), H(Hardware::CPU_CYCLES), Tried),
    ("instructions", None, H(Hardware::INSTRUCTIONS), Tried),
    ("cache-references", None, H(Hardware::CACHE_REFERENCES), Tried),
    ("cache-misses", None, H(Hardware::CACHE_MISSES), Tried),
    ("branches", Some("branch-instructions"), H(Hardware::BRANCH_INSTRUCTIONS), Tried),
    ("branch-misses", None, H(Hardware::BRANCH_MISSES), Tried),
    ("bus-cycles", None, H(Hardware::BUS_CYCLES), OnRequest),
    ("ref-cycles", None, H(Hardware::REF_CPU_CYCLES), OnRequest),
    ("stalled-cycles-frontend", None, H(Hardware::STALLED_CYCLES_FRONTEND), OnRequest),
    ("stalled-cycles-backend", None, H(Hardware::STALLED_CYCLES_BACKEND), OnRequest),
];

/// Caches, with how many of the accesses below `hugewise-probe counters` tries: `dTLB-` and `load-misses` make a name.
const CACHES: [(&str, CacheId, usize); 7] = [
    ("L1-dcache-", CacheId::L1D, 2),
    ("L1-icache-", CacheId::L1I, 0),
    ("LLC-", CacheId::LL, 2),
    ("dTLB-", CacheId::DTLB, 4),
    ("iTLB-", CacheId::ITLB, 2),
    ("branch-", CacheId::BPU, 0),
    ("node-", CacheId::NODE, 0),
];

const ACCESSES: [(&str, CacheOp, CacheResult); 6] = [
    ("loads", CacheOp::READ, CacheResult::ACCESS),
    ("load-misses", CacheOp::READ, CacheResult::MISS),
    ("stores", CacheOp::WRITE, CacheResult::ACCESS),
    ("store-misses", CacheOp::WRITE, CacheResult::MISS),
    ("prefetches", CacheOp::PREFETCH, CacheResult::ACCESS),
    ("prefetch-misses", CacheOp::PREFETCH, CacheResult::MISS),
];

/// The names that `hugewise-probe counters` tries. Others (`node-loads`, `r01c4`) can be opened too. What only some
/// processors count is no name here: the caller knows the raw event, and labels it.
pub fn tried() -> Vec<String> {
    let generic = GENERIC.iter().filter(|row| row.3 != OnRequest).map(|row| row.0.to_owned());
    let of_cache = |(cache, _, count): &(&str, CacheId, usize)| {
        ACCESSES.iter().take(*count).map(|access| format!("{cache}{}", access.0)).collect::<Vec<_>>()
    };
    generic.chain(CACHES.iter().flat_map(of_cache)).collect()
}

impl Which {
    /// What is called `name`, or the reason why nothing is.
    pub fn named(name: &str) -> Result<Which, String> {
        let generic = GENERIC.into_iter().find(|row| row.0 == name || row.1 == Some(name)).map(|row| row.2);
        generic
            .or_else(|| cache(name).map(Which::Cache))
            .or_else(|| u64::from_str_radix(name.strip_prefix('r')?, 16).ok().map(Which::Raw))
            .ok_or_else(|| format!("unknown counter {name:?}: use perf's spelling, such as dTLB-load-misses"))
    }

    /// Counted at points inside the kernel, so never seen by a counter that leaves the kernel out.
    pub fn is_kernel_only(&self) -> bool {
        matches!(self, S(event) if [Software::CONTEXT_SWITCHES, Software::CPU_MIGRATIONS].contains(event))
    }

    /// The software clocks count all of a task's time, whatever modes are left out.
    pub fn is_clock(&self) -> bool {
        matches!(self, S(event) if [Software::TASK_CLOCK, Software::CPU_CLOCK].contains(event))
    }
}

/// What is counted of a task: all that it does, or in one mode alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    All,
    User,
    Kernel,
}

/// A counter that was asked for: `EVENT`, `EVENT:u` (user mode), `EVENT:k` (kernel mode), each with a `LABEL=` before it
/// where its value is to have another name than it is asked for by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    pub label: String,
    pub which: Result<Which, String>,
    pub mode: Mode,
}

impl Wish {
    pub fn parse(text: &str) -> Wish {
        let (label, event) = text.split_once('=').unwrap_or((text, text));
        let (name, mode) = match event.rsplit_once(':') {
            Some((name, "u")) => (name, Mode::User),
            Some((name, "k")) => (name, Mode::Kernel),
            _ => (event, Mode::All),
        };
        Wish { label: label.to_owned(), which: Which::named(name), mode }
    }

    /// The members of a group, which are joined by `+`: the processor counts all of them at once, or none.
    pub fn group(text: &str) -> Vec<Wish> {
        text.split('+').map(Wish::parse).collect()
    }
}

fn cache(name: &str) -> Option<Cache> {
    let (rest, which) = CACHES.iter().find_map(|(prefix, id, _)| Some((name.strip_prefix(prefix)?, *id)))?;
    let (_, operation, result) = ACCESSES.into_iter().find(|access| access.0 == rest)?;
    Some(Cache { which, operation, result })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    use crate::common::fuzz;

    #[test]
    fn every_name_that_is_tried_is_known() {
        for name in tried() {
            assert!(Which::named(&name).is_ok(), "{name}");
        }
        assert_eq!(tried().len(), 23);
        assert!(Which::named("no-such-counter").is_err());
        assert_eq!(Which::named("r01c4"), Ok(Which::Raw(0x1c4)));
        assert_eq!(Which::named("cs"), Which::named("context-switches"));
    }

    #[test]
    fn a_wish_has_a_label_an_event_and_a_mode() {
        let raw = Wish::parse("walks:u=r1001008:u");
        assert_eq!((raw.label.as_str(), raw.which, raw.mode), ("walks:u", Ok(Which::Raw(0x100_1008)), Mode::User));
        let plain = Wish::parse("cycles:k");
        assert_eq!((plain.label.as_str(), plain.mode), ("cycles:k", Mode::Kernel));
        assert_eq!(plain.which, Which::named("cycles"));
        assert!(Wish::parse("cycles:x").which.unwrap_err().contains("cycles:x"));
        let labels: Vec<String> = Wish::group("cycles+walks=r1a8").into_iter().map(|wish| wish.label).collect();
        assert_eq!(labels, ["cycles", "walks"]);
    }

    #[test]
    fn cache_names_are_taken_apart() {
        let Ok(Which::Cache(cache)) = Which::named("dTLB-load-misses") else { panic!("not a cache event") };
        assert_eq!((cache.which, cache.operation, cache.result), (CacheId::DTLB, CacheOp::READ, CacheResult::MISS));
    }

    proptest! {
        #![proptest_config(fuzz::config())]

        #[test]
        fn whatever_a_counter_is_called_it_is_known_or_refused(
            name in fuzz::broken_text(&["dTLB-load-misses", "r01c4", "context-switches", "L1-dcache-loads"]),
        ) {
            for wish in Wish::group(&name) {
                if let Ok(which) = wish.which {
                    which.is_clock();
                    which.is_kernel_only();
                }
            }
        }
    }
}
