//! One example of each event, which the reader's tests decode. That is the contract.

use std::collections::BTreeSet;

use crate::common::usage::Usage;
use crate::protocol::event::{Count, Event, Fault, FaultRound, Range, Scope, Source, Tlb, VERSION, Value, named};
use crate::protocol::folios::Folios;
use crate::protocol::load::Load;
use crate::protocol::series::Series;

/// All kinds in order: `following` of each, from the first on.
pub fn examples() -> Vec<Event> {
    std::iter::successors(Some(first()), following).collect()
}

fn first() -> Event {
    Event::Start { v: VERSION, t_ns: 1_000_000_000, pid: 4242, probe: "0.1.0".into() }
}

/// The example after this one. A new kind of event does not compile until it has its place in this chain, and the test
/// below fails while nothing leads to it.
fn following(event: &Event) -> Option<Event> {
    let next = match event {
        Event::Start { .. } => Event::Phase { t_ns: 1_000_100_000, name: "timed".into() },
        Event::Phase { .. } => Event::Result {
            workload: "chase".into(),
            wall_ns: 5_000_000,
            metrics: named([("ns_per_access", 4.25)]),
            facts: named([
                ("loads", Value::Integer(1_000_000)),
                ("share", Value::Number(0.5)),
                ("hash", Value::Text("9f86d081884c7d65".into())),
            ]),
        },
        Event::Result { .. } => Event::Hold { ranges: vec![Range { start: 0x7f00_0000_0000, end: 0x7f00_0020_0000 }] },
        Event::Hold { .. } => Event::Counters {
            scope: Scope::Timed,
            values: named([
                ("page-faults", Count { value: Some(512), reason: None, enabled_ns: 5_000_000, running_ns: 5_000_000 }),
                (
                    "dTLB-load-misses",
                    Count {
                        value: None,
                        reason: Some("not offered by this processor or its hypervisor".into()),
                        enabled_ns: 0,
                        running_ns: 0,
                    },
                ),
            ]),
        },
        Event::Counters { .. } => Event::Coverage {
            pid: 4242,
            command: "hugewise-probe".into(),
            named: true,
            source: Source::Kpageflags,
            bytes: named([("anon:4096", 8192), ("anon:2097152", 2_097_152), ("unproven", 0)]),
            thp_disabled: Some(false),
            scan_ns: 250_000,
        },
        Event::Coverage { .. } => Event::Usage(Usage {
            user_s: 0.5,
            system_s: 0.25,
            peak_bytes: 4_194_304,
            minor_faults: 600,
            major_faults: 0,
            voluntary: 3,
            involuntary: 1,
        }),
        Event::Usage(_) => Event::Exit {
            t_ns: 1_006_000_000,
            wall_ns: 6_000_000,
            code: Some(0),
            signal: None,
            timed_out: false,
            early_exits: 0,
            killed: 0,
            looked_ns: Some([1_005_000_000, 1_006_000_000]),
            exceeded: None,
            forked: Some(0),
            executed: Some(2),
            threads: Some(3),
        },
        Event::Exit { .. } => Event::Load(Box::new(Load::example())),
        Event::Load(_) => Event::Series(Box::new(Series::example())),
        Event::Series(_) => Event::Error {
            fault: Fault::Workload,
            before_timed: true,
            message: "\"no-such-command\" is not on the workload's PATH (/usr/bin)".into(),
        },
        Event::Error { .. } => Event::Cpu {
            vendor: "AuthenticAMD".into(),
            model: "AMD EPYC".into(),
            tlbs: vec![Tlb {
                level: 2,
                kind: "data".into(),
                page_sizes: vec![4096, 2_097_152],
                entries: 4096,
                ways: 16,
            }],
            reason: None,
        },
        Event::Cpu { .. } => Event::Touched { bytes: 4_194_304, wall_ns: 1_300_000, blocks_ns: vec![270_000, 900_000] },
        Event::Touched { .. } => Event::Fragmented {
            free_bytes: 21_474_836_480,
            huge_bytes: 4_194_304,
            pinned: 10_240,
            rounds: 2,
            wall_ns: 27_000_000_000,
        },
        Event::Fragmented { .. } => Event::Available {
            counters: named([("task-clock", None), ("cycles", Some("not offered by this processor".into()))]),
            partial: BTreeSet::from(["instructions".into()]),
            slots: Some(6),
        },
        Event::Available { .. } => {
            Event::FaultCost { rounds: vec![FaultRound { bytes: 33_554_432, faults: 8192, cpu_ns: 5_900_000 }] }
        }
        Event::FaultCost { .. } => Event::Folios(Box::new(Folios::example())),
        Event::Folios(_) => return None,
    };
    Some(next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    use crate::common::fuzz;

    #[test]
    fn every_kind_has_one_example_that_reads_back() {
        let kinds: Vec<_> = examples().iter().map(std::mem::discriminant).collect();
        for (index, kind) in kinds.iter().enumerate() {
            assert!(!kinds[..index].contains(kind), "number {index} is there twice");
        }
        for example in examples() {
            let line = serde_json::to_string(&example).unwrap();
            assert_eq!(serde_json::from_str::<Event>(&line).unwrap(), example);
        }
        // Kinds are counted in the source, as the compiler cannot: variants are the names at one indentation.
        let source = include_str!("event.rs");
        let body = source.split("pub enum Event {").nth(1).unwrap().split("\n}").next().unwrap();
        let is_variant = |line: &&str| line.starts_with("    ") && line.as_bytes()[4].is_ascii_uppercase();
        assert_eq!(kinds.len(), body.lines().filter(|line| line.len() > 4).filter(is_variant).count());
    }

    proptest! {
        #![proptest_config(fuzz::config())]

        #[test]
        fn whatever_a_workload_says_is_an_event_or_none(
            line in fuzz::broken(&[
                r#"{"ev":"hold","ranges":[{"start":4096,"end":8192}]}"#,
                r#"{"ev":"result","workload":"chase","wall_ns":5,"metrics":{"a":1.5},"facts":{"hash":"x","loads":3}}"#,
                r#"{"ev":"exit","t_ns":1,"wall_ns":1,"code":0,"signal":null,"timed_out":false,"early_exits":0,"killed":0}"#,
            ]),
        ) {
            if let Ok(event) = serde_json::from_slice::<Event>(&line) {
                prop_assert!(serde_json::to_vec(&event).is_ok());
            }
        }
    }
}
