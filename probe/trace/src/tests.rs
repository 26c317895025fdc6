//! The filter and the simulator against a reference that looks at every access and uses lists alone.

use crate::ask::{Answer, Ask, Both, Configuration, Counts, First, Laid, Second, Walks};
use crate::filter::{BASE, Filter, page};
use crate::laid::Regions;
use crate::memory::Memory;
use crate::sets::Random;
use crate::simulator::Simulator;

/// A list of keys, the newest first.
#[derive(Default, Clone)]
struct List(Vec<u64>);

impl List {
    fn enter(&mut self, key: u64, room: usize) -> bool {
        let found = self.0.iter().position(|&each| each == key);
        found.map(|at| self.0.remove(at));
        self.0.insert(0, key);
        self.0.truncate(room);
        found.is_some()
    }
}

struct Reference<'a> {
    asked: &'a Configuration,
    first: List,
    sets: Vec<List>,
    at_random: Vec<Vec<u64>>,
    random: Random,
    /// For each policy and size of the caches, one for each level.
    caches: [[Vec<List>; 3]; 2],
    counts: Counts,
}

impl<'a> Reference<'a> {
    fn new(asked: &'a Configuration) -> Self {
        let sets = asked.l2.map_or(0, |l2| l2.sets);
        let caches = || vec![List::default(); asked.cached.len()];
        Reference {
            asked,
            first: List::default(),
            sets: vec![List::default(); sets],
            at_random: vec![Vec::new(); sets],
            random: Random::new(),
            caches: [[caches(), caches(), caches()], [caches(), caches(), caches()]],
            counts: Counts::default(),
        }
    }

    fn access(&mut self, address: u64) {
        if self.first.enter(address >> self.asked.l1.shift, self.asked.l1.entries) {
            return;
        }
        self.counts.l1_misses += 1;
        let hits = self.asked.l2.map_or([false; 2], |l2| self.second(address >> l2.shift, l2));
        for (policy, hit) in hits.into_iter().enumerate() {
            if !hit {
                self.walk(policy, address);
            }
        }
    }

    fn second(&mut self, key: u64, l2: Second) -> [bool; 2] {
        let set = (key % l2.sets as u64) as usize;
        let ways = &mut self.at_random[set];
        let there = ways.contains(&key);
        if !there && ways.len() < l2.ways {
            ways.push(key);
        } else if !there {
            ways[self.random.below(l2.ways)] = key;
        }
        [self.sets[set].enter(key, l2.ways), there]
    }

    fn walk(&mut self, policy: usize, address: u64) {
        let walks: &mut Walks = if policy == 0 { &mut self.counts.lru } else { &mut self.counts.random };
        walks.misses += 1;
        for (size, caches) in self.caches[policy].iter_mut().enumerate() {
            let mut steps = self.asked.walk.len();
            for (level, cache) in caches.iter_mut().enumerate() {
                let entries = self.asked.cached[level];
                let room = [(entries / 2).max(1), entries, 2 * entries][size];
                if entries > 0 && cache.enter(address >> self.asked.walk[level], room) {
                    steps = self.asked.walk.len() - 1 - level;
                }
            }
            walks.steps[size] += steps as u64;
        }
    }
}

fn number(random: &mut Random, from: usize, to: usize) -> usize {
    from + random.below(to - from)
}

const WALKS: [&[u32]; 7] =
    [&[39, 30, 21, 12], &[39, 30, 21], &[39, 30], &[47, 36, 25, 14], &[36, 25], &[42, 29, 16], &[29]];
const SHIFTS: [u32; 7] = [12, 14, 16, 21, 25, 29, 30];

fn configuration(random: &mut Random) -> Configuration {
    let walk = WALKS[random.below(WALKS.len())].to_vec();
    let shift = SHIFTS[random.below(SHIFTS.len())];
    let l2 = Second {
        shift: if random.below(4) == 0 { SHIFTS[random.below(SHIFTS.len())] } else { shift },
        sets: 64 << random.below(2),
        ways: number(random, 1, 20),
    };
    Configuration {
        l1: First { shift, entries: number(random, 16, 50) },
        l2: (random.below(8) > 0).then_some(l2),
        cached: (1..walk.len()).map(|_| random.below(6)).collect(),
        walk,
    }
}

/// Addresses that return: steps of a size that is drawn, in some places, with jumps back to where it was before.
fn trace(random: &mut Random, length: usize) -> Vec<u64> {
    let spread = number(random, 13, 38);
    let pages = 1 << number(random, 1, 10);
    let mut addresses: Vec<u64> = Vec::new();
    let mut at = 0u64;
    for _ in 0..length {
        at = match random.below(6) {
            0 => (random.below(1 << 30) as u64) << 18 & ((1 << spread) - 1),
            1 => at + 64,
            2 => at + (1 << SHIFTS[random.below(4)]),
            3 if !addresses.is_empty() => addresses[addresses.len() - 1 - random.below(addresses.len().min(40))],
            _ => (random.below(pages) as u64) << BASE,
        };
        addresses.push(at % (1 << 47));
    }
    addresses
}

fn accessed(filter: &mut Filter, address: u64) -> bool {
    !filter.again(page(address)) && filter.change(page(address))
}

fn simulated(asked: &Ask, addresses: &[u64], batch: usize) -> (Simulator, Filter) {
    let (mut simulator, mut filter) = (Simulator::new(asked, Regions::default()), Filter::new());
    for &address in addresses {
        if accessed(&mut filter, address) || filter.records.len() >= batch {
            simulator.feed(&filter.records);
            filter.records.clear();
        }
    }
    simulator.feed(&filter.records);
    (simulator, filter)
}

#[test]
fn ten_thousand_random_cases_are_as_the_reference_has_them() {
    let mut random = Random::new();
    let (mut misses, mut walks) = (0, 0);
    for case in 0..2500 {
        let asked = Ask { configurations: (0..4).map(|_| configuration(&mut random)).collect(), ..Ask::default() };
        assert_eq!(asked.fault(), None);
        let length = number(&mut random, 100, 1200);
        let addresses = trace(&mut random, length);
        let (simulator, _) = simulated(&asked, &addresses, number(&mut random, 1, 100));
        for (at, (each, counts)) in asked.configurations.iter().zip(simulator.counts()).enumerate() {
            let mut reference = Reference::new(each);
            addresses.iter().for_each(|&address| reference.access(address));
            assert_eq!(counts, reference.counts, "case {case}, configuration {at}: {each:?}");
            misses += counts.l1_misses;
            walks += counts.lru.misses;
        }
    }
    assert!(
        misses > 500_000 && walks > 300_000 && walks < misses,
        "{misses} misses, {walks} walks: the cases are weak"
    );
}

/// Misses by lists alone: base pages outside of what is huge in the region from `from` on.
fn laid_reference(asked: &Both, from: u64, huge: &[[u64; 2]], addresses: &[u64]) -> [u64; 3] {
    let mut firsts = [List::default(), List::default()];
    let mut sets = asked.l2.map(|l2| vec![List::default(); l2.map_or(0, |l2| l2.sets)]);
    let mut counts = [0; 3];
    for &address in addresses {
        let place = address.wrapping_sub(from);
        let kind = usize::from(huge.iter().any(|range| range[0] <= place && place < range[1]));
        let ways = |kind: usize| asked.l2[kind].map_or(0, |l2| l2.ways);
        let first = if asked.l1[0].entries == asked.l1[1].entries { 0 } else { kind };
        let second = if ways(0) == ways(1) { 0 } else { kind };
        let key = |shift: u32| (address >> shift) | (kind as u64) << 60;
        if firsts[first].enter(key(asked.l1[kind].shift), asked.l1[kind].entries) {
            continue;
        }
        let hit = asked.l2[kind].is_some_and(|l2| {
            let set = ((address >> l2.shift) % l2.sets as u64) as usize;
            sets[second][set].enter(key(l2.shift), l2.ways)
        });
        counts[if hit { 1 } else { 2 * kind }] += 1;
    }
    counts
}

#[test]
fn layouts_are_as_the_reference_has_them() {
    let mut random = Random::new();
    let (mut base, mut large) = (0, 0);
    for case in 0..1000 {
        let heap = 8u64 << 20;
        let quarters: [&[[u64; 2]]; 4] = [&[], &[[0, 1]], &[[2, 4]], &[[0, 1], [3, 4]]];
        let layouts: Vec<Vec<_>> =
            quarters.iter().map(|ranges| ranges.iter().map(|r| r.map(|e| e * heap / 4)).collect()).collect();
        let first = |random: &mut Random, shift| First { shift, entries: number(random, 16, 40) };
        let tlbs: Vec<Both> = (0..2)
            .map(|_| {
                let shifts = [12, [12, 21][random.below(2)]];
                let second = |shift| Second { shift, sets: 64, ways: number(&mut random, 1, 4) };
                let l2 = shifts.map(second).map(|second| (random.below(8) > 0).then_some(second));
                let mut l1 = shifts.map(|shift| first(&mut random, shift));
                if random.below(2) == 0 {
                    l1[1].entries = l1[0].entries;
                }
                Both { l1, l2 }
            })
            .collect();
        let asked = Ask { laid: Some(Laid { heap, layouts: layouts.clone(), tlbs }), ..Ask::default() };
        assert_eq!(asked.fault(), None);
        let length = number(&mut random, 100, 1500);
        let from = 64u64 << 20;
        let inside = |(at, address): (usize, u64)| if at % 4 == 0 { address } else { from + address % heap };
        let addresses: Vec<u64> = trace(&mut random, length).into_iter().enumerate().map(inside).collect();
        let regions = Regions::default();
        regions.write().unwrap().push(page(from));
        let (mut simulator, mut filter) = (Simulator::new(&asked, regions), Filter::new());
        addresses.iter().for_each(|&address| assert!(!accessed(&mut filter, address)));
        filter.records.chunks(number(&mut random, 1, 100)).for_each(|some| simulator.feed(some));
        let tlbs = &asked.laid.as_ref().unwrap().tlbs;
        let expected =
            tlbs.iter().flat_map(|tlb| layouts.iter().map(|huge| laid_reference(tlb, from, huge, &addresses)));
        let expected: Vec<_> = expected.collect();
        assert_eq!(simulator.layouts.counts(), expected, "case {case}: {tlbs:?}");
        base += expected.iter().map(|each| each[0]).sum::<u64>();
        large += expected.iter().map(|each| each[2]).sum::<u64>();
    }
    assert!(base > 500_000 && large > 20_000, "{base} and {large} walks: the cases are weak");
}

fn one(l1: First, l2: Option<Second>, walk: &[u32], cached: &[usize]) -> Ask {
    let configuration = Configuration { l1, l2, walk: walk.to_vec(), cached: cached.to_vec() };
    Ask { configurations: vec![configuration], sizes: vec![16, 21], laid: None }
}

/// 100 pages of 4 KiB, in order, three times.
fn sweep() -> Vec<u64> {
    (0..300u64).map(|at| (at % 100) << BASE).collect()
}

#[test]
fn a_sweep_of_more_pages_than_entries_misses_always_and_one_of_fewer_but_once() {
    let l1 = |entries| First { shift: 12, entries };
    for (entries, l1_misses) in [(99, 300), (100, 100)] {
        let asked = one(l1(entries), None, &[39, 30, 21, 12], &[1, 1, 1]);
        let (simulator, _) = simulated(&asked, &sweep(), 4096);
        let steps = 4 + (l1_misses - 1);
        let walks = Walks { misses: l1_misses, steps: [steps; 3] };
        assert_eq!(simulator.counts(), [Counts { l1_misses, lru: walks, random: walks }]);
    }
}

#[test]
fn a_second_level_that_holds_all_leaves_the_first_misses_alone() {
    let second = Second { shift: 12, sets: 64, ways: 2 };
    let asked = one(First { shift: 12, entries: 16 }, Some(second), &[39, 30, 21, 12], &[0, 0, 0]);
    let (simulator, filter) = simulated(&asked, &sweep(), 4096);
    let walks = Walks { misses: 100, steps: [400; 3] };
    assert_eq!(simulator.counts(), [Counts { l1_misses: 300, lru: walks, random: walks }]);
    assert_eq!(filter.accesses, 300);
}

#[test]
fn caches_of_half_and_twice_the_entries_take_their_part_of_the_steps() {
    // Three pages of 2 MiB in turn: a cache of two entries never has the next one, one of four always.
    let addresses: Vec<u64> = (0..3000u64).map(|at| (at % 3) << 21 | ((at * 7) % 512) << BASE).collect();
    let asked = one(First { shift: 12, entries: 16 }, None, &[39, 30, 21, 12], &[0, 0, 2]);
    let counts = &simulated(&asked, &addresses, 4096).0.counts()[0];
    let all = counts.lru.misses;
    assert_eq!(all, 3000);
    assert_eq!(counts.lru.steps, [4 * all, 4 * all, 4 * 3 + (all - 3)]);
}

#[test]
fn counts_begin_anew_and_the_entries_stay() {
    let asked = one(First { shift: 12, entries: 100 }, None, &[39, 30, 21, 12], &[1, 1, 1]);
    let (mut simulator, mut filter) = simulated(&asked, &sweep(), 4096);
    simulator.forget_counts();
    filter.records.clear();
    sweep().iter().for_each(|&address| assert!(!accessed(&mut filter, address)));
    simulator.feed(&filter.records);
    assert_eq!(simulator.counts(), [Counts::default()]);
    assert_eq!((simulator.memory.touched(), simulator.memory.size(21).needed), (100, None));
}

#[test]
fn memory_is_counted_in_pages_of_each_size() {
    let mut memory = Memory::default();
    let pages = [0, 1, 16, 512, 513].map(|page| memory.touch(page));
    (0..90).for_each(|_| memory.walked(pages[0]));
    (0..10).for_each(|_| memory.walked(pages[3]));
    let mut other = Memory::default();
    other.touch(2);
    memory.add(&other);
    assert_eq!(memory.touched(), 6);
    let (small, large) = (memory.size(16), memory.size(21));
    assert_eq!((small.touched, small.needed), (3, Some(1)));
    assert_eq!((large.touched, large.needed), (2, Some(1)));
    assert_eq!(other.size(21).needed, None);
}

#[test]
fn what_cannot_be_simulated_is_refused() {
    let good = one(First { shift: 12, entries: 64 }, None, &[39, 30, 21, 12], &[1, 2, 3]);
    assert_eq!(good.fault(), None);
    let broken: [fn(&mut Configuration); 6] = [
        |each| each.l1.entries = 15,
        |each| each.l1.entries = 251,
        |each| each.l1.shift = 11,
        |each| each.walk = vec![12, 21],
        |each| each.cached = vec![1],
        |each| each.l2 = Some(Second { shift: 12, sets: 96, ways: 4 }),
    ];
    for (at, break_it) in broken.into_iter().enumerate() {
        let mut asked = good.clone();
        break_it(&mut asked.configurations[0]);
        assert!(asked.fault().is_some(), "{at}");
    }
    assert!(Ask { sizes: vec![12], ..good }.fault().is_some());
}

#[test]
fn an_answer_is_written_with_null_for_what_is_not_known() {
    let size = Memory::default().size(21);
    let answer = Answer { version: 1, target: "x86_64".into(), sizes: vec![size], ..Answer::default() };
    let text = serde_json::to_string(&answer).unwrap();
    assert!(text.contains(r#""sizes":[{"shift":21,"touched":0,"needed":null}]"#), "{text}");
}

#[test]
fn counts_of_threads_are_added() {
    let walks = |misses| Walks { misses, steps: [3, 2, 1] };
    let mut sum = Counts { l1_misses: 5, lru: walks(2), random: walks(3) };
    sum.add(&Counts { l1_misses: 1, lru: walks(1), random: walks(1) });
    let doubled = |misses| Walks { misses, steps: [6, 4, 2] };
    assert_eq!(sum, Counts { l1_misses: 6, lru: doubled(3), random: doubled(4) });
}

#[test]
fn tags_of_pointers_do_not_count() {
    assert_eq!(page(0xff00_7fff_ffff_f123), page(0x7fff_ffff_f123));
}

/// Counts of a trace that once were given, of a machine of each kind.
#[test]
fn a_trace_gives_the_counts_that_it_gave() {
    let mut random = Random::new();
    let addresses: Vec<u64> = (0..20).flat_map(|_| trace(&mut random, 1000)).collect();
    let second = |shift| Some(Second { shift, sets: 256, ways: 5 });
    let first = |shift| First { shift, entries: 48 };
    let walks = [vec![39, 30, 21, 12], vec![47, 36, 25, 14], vec![42, 29, 16], vec![39, 30, 21]];
    let configurations = [12, 14, 16, 21].into_iter().zip(walks);
    let configurations = configurations.map(|(shift, walk)| Configuration {
        l1: first(shift),
        l2: second(shift),
        cached: [4, 16, 32][..walk.len() - 1].to_vec(),
        walk,
    });
    let asked = Ask { configurations: configurations.collect(), ..Ask::default() };
    let counts = simulated(&asked, &addresses, 4096).0.counts();
    let told = counts.iter().map(|each| (each.l1_misses, each.lru.misses, each.random.misses, each.lru.steps));
    let expected = [
        (6480, 3193, 3200, [4630, 4427, 4335]),
        (3888, 2114, 2153, [2966, 2834, 2726]),
        (2338, 1572, 1572, [1915, 1787, 1680]),
        (1117, 955, 955, [1142, 1039, 987]),
    ];
    assert_eq!(told.collect::<Vec<_>>(), expected);
}
