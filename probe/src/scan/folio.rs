//! Folio arithmetic: from page-table entries and page flags to the sizes of the folios behind them. No I/O of its own.
//!
//! A folio is a naturally aligned power of two of pages: a head page and its tails. From a pagemap the pages of a
//! process come as runs, contiguous in virtual and in physical memory; within a run a whole folio is passed over at
//! once, after its size was found by looking at few flags.
//!
//! Source: Documentation/admin-guide/mm/pagemap.rst of the Linux kernel (bits of pagemap and kpageflags).

use std::io;

use crate::scan::page_set::PageSet;
use crate::scan::runs::Run;

pub const KPF_ANON: u64 = 1 << 12;
pub const KPF_SWAPBACKED: u64 = 1 << 14;
pub const KPF_HEAD: u64 = 1 << 15;
pub const KPF_TAIL: u64 = 1 << 16;
pub const KPF_HUGE: u64 = 1 << 17;
pub const KPF_ZERO: u64 = 1 << 24;

/// The flags that say what kind of memory a page is (KPF_HEAD besides: a single page has none).
const KINDS: u64 = KPF_ANON | KPF_SWAPBACKED | KPF_HEAD | KPF_HUGE | KPF_ZERO;

/// Folios are looked for up to this order; the largest that exist (16 GiB pages of powerpc) lie well below.
const MAX_ORDER: u32 = 26;

/// Where the flags of physical pages come from.
pub trait Flags {
    /// The flags of page `pfn`. `ahead` says how many pages from it on will likely be asked for.
    fn get(&mut self, pfn: u64, ahead: u64) -> io::Result<u64>;
}

/// The mapped part of one folio, or of a row of single pages: `pages` from `vpn` on, `folio` pages in the whole folio.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    pub vpn: u64,
    pub pfn: u64,
    pub pages: u64,
    pub folio: u64,
    /// Virtual and physical address agree modulo the folio's size: only then can a TLB use that size.
    pub aligned: bool,
    /// Flags of the head: only there do all kernels set them. Of single pages those that say their kind.
    pub flags: u64,
}

/// Takes runs to pieces. It remembers the last folio: the next often has the same size, or is the same.
///
/// A folio of 2^k pages covers the whole aligned group of 2^k pages that any of its pages lies in. Anonymous memory has
/// no folio of 2 pages (the kernel needs their room to queue them for a split). So one single page proves that its whole
/// group of four has no larger folio, and a group of more where the kernel says which sizes exist at all (`order`).
#[derive(Debug)]
pub struct Splitter {
    head: u64,
    pages: u64,
    flags: u64,
    /// The last page was single: then the next ones likely are, and are worth looking at together.
    single: bool,
    order: u32,
    /// Groups of 2^order pages of which one was seen to be single and anonymous.
    groups: PageSet,
}

/// Anonymous folios have four pages or more, or one.
pub const LEAST_ORDER: u32 = 2;
/// From folios of so few pages on, one after the other, their flags are read together.
const SMALL: u64 = 8;
const TOGETHER: u64 = 64;

impl Splitter {
    /// For memory in which no anonymous folio has less than 2^`order` pages, but for single ones.
    pub fn new(order: u32) -> Self {
        let order = order.max(LEAST_ORDER);
        Self { head: 0, pages: 0, flags: 0, single: false, order, groups: PageSet::default() }
    }

    /// Give the pieces of `run` to `take`, in order.
    pub fn split(&mut self, run: Run, flags: &mut impl Flags, mut take: impl FnMut(Piece)) -> io::Result<()> {
        let mut done = 0;
        while done < run.len {
            let (vpn, pfn, left) = (run.vpn + done, run.pfn + done, run.len - done);
            if run.anonymous {
                let pages = self.group_singles(pfn, left, flags)?;
                if pages > 0 {
                    take(Piece { vpn, pfn, pages, folio: 1, aligned: true, flags: KPF_ANON });
                    done += pages;
                    continue;
                }
            }
            let own = flags.get(pfn, if !run.anonymous && self.single { left } else { self.ahead(left) })?;
            self.single = own & (KPF_HEAD | KPF_TAIL) == 0;
            if self.single {
                let rest = Run { vpn, pfn, len: if run.anonymous { 1 } else { left }, anonymous: run.anonymous };
                let pages = singles(rest, own & KINDS, flags)?;
                take(Piece { vpn, pfn, pages, folio: 1, aligned: true, flags: own & KINDS });
                done += pages;
                continue;
            }
            self.find(pfn, own, flags)?;
            // A tail found beyond the end of its folio: this was split, or another one began, between two looks.
            let Some(rest) = (self.head + self.pages).checked_sub(pfn).filter(|rest| *rest > 0) else {
                return Err(io::Error::other(format!("page {pfn:#x} left its folio while it was read")));
            };
            let pages = left.min(rest);
            let aligned = vpn.wrapping_sub(pfn).is_multiple_of(self.pages);
            take(Piece { vpn, pfn, pages, folio: self.pages, aligned, flags: self.flags });
            done += pages;
        }
        Ok(())
    }

    /// How many flags are worth reading together.
    fn ahead(&self, left: u64) -> u64 {
        if (2..=SMALL).contains(&self.pages) { left.min(TOGETHER) } else { 1 }
    }

    /// How many of the next `left` pages from `pfn` on are single, by their groups.
    fn group_singles(&mut self, pfn: u64, left: u64, flags: &mut impl Flags) -> io::Result<u64> {
        let mut at = pfn;
        while at < pfn + left {
            let group = at >> self.order;
            if !self.groups.contains(group) {
                let own = flags.get(at, self.ahead(left))?;
                if own & (KPF_HEAD | KPF_TAIL) != 0 || own & (KPF_ANON | KPF_ZERO | KPF_HUGE) != KPF_ANON {
                    break;
                }
                self.groups.insert(group);
            }
            at = (group + 1) << self.order;
        }
        Ok(at.min(pfn + left) - pfn)
    }

    /// Make the folio of page `pfn`, whose flags are `own`, the remembered one.
    fn find(&mut self, pfn: u64, own: u64, flags: &mut impl Flags) -> io::Result<()> {
        if own & KPF_TAIL != 0 && (self.head..self.head + self.pages).contains(&pfn) {
            return Ok(());
        }
        let guess = self.pages;
        (self.head, self.flags) = if own & KPF_HEAD != 0 { (pfn, own) } else { head_of(pfn, flags)? };
        self.pages = size_of(self.head, guess, flags)?;
        Ok(())
    }
}

/// How many pages at the start of `run` are single and of `kind`, like its first.
fn singles(run: Run, kind: u64, flags: &mut impl Flags) -> io::Result<u64> {
    for index in 1..run.len {
        if flags.get(run.pfn + index, run.len - index)? & (KINDS | KPF_TAIL) != kind {
            return Ok(index);
        }
    }
    Ok(run.len)
}

/// The head of the folio with tail page `pfn`, and its flags. Below the folio's own order every aligned-down page is a
/// tail of it, so that the first head met is its head.
fn head_of(pfn: u64, flags: &mut impl Flags) -> io::Result<(u64, u64)> {
    let mut last = pfn;
    for order in 1..=MAX_ORDER {
        let candidate = pfn >> order << order;
        if candidate == last {
            continue;
        }
        last = candidate;
        let found = flags.get(candidate, 1)?;
        if found & KPF_HEAD != 0 {
            return Ok((candidate, found));
        }
        if found & KPF_TAIL == 0 {
            break;
        }
    }
    Err(io::Error::other(format!("page {pfn:#x} is a tail without a head: the memory changed while it was read")))
}

/// Pages in the folio with head page `head`: the smallest power of two after which no tail follows.
///
/// Natural alignment makes a tail at head + 2^k (head aligned to 2^k, as in any folio that large) a tail of this very
/// folio. The same holds at half of `guess` if the head is aligned to `guess`: two looks confirm it.
fn size_of(head: u64, guess: u64, flags: &mut impl Flags) -> io::Result<u64> {
    let mut tail = |pfn| Ok::<bool, io::Error>(flags.get(pfn, 1)? & KPF_TAIL != 0);
    if guess > 1 && head.is_multiple_of(guess) && tail(head + guess / 2)? && !tail(head + guess)? {
        return Ok(guess);
    }
    for order in 0..=MAX_ORDER {
        if !tail(head + (1 << order))? {
            return Ok(1 << order);
        }
    }
    Err(io::Error::other(format!("the folio at page {head:#x} has no end: the memory changed while it was read")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    use crate::common::fuzz;
    use crate::common::random::SplitMix64;
    use crate::scan::runs::{PRESENT, runs};

    /// Physical memory as a list of flags; counts the looks.
    struct Memory {
        flags: Vec<u64>,
        looks: u64,
    }

    impl Flags for Memory {
        fn get(&mut self, pfn: u64, _ahead: u64) -> io::Result<u64> {
            self.looks += 1;
            Ok(self.flags.get(pfn as usize).copied().unwrap_or(0))
        }
    }

    /// Lay out folios of `orders`, one after the other, each naturally aligned (the gaps hold single pages).
    fn memory(orders: &[u32]) -> (Memory, Vec<(u64, u64)>) {
        let (mut flags, mut folios) = (Vec::new(), Vec::new());
        for order in orders {
            let pages = 1usize << order;
            while flags.len() % pages != 0 {
                folios.push((flags.len() as u64, 1));
                flags.push(KPF_ANON);
            }
            folios.push((flags.len() as u64, pages as u64));
            if *order == 0 {
                flags.push(KPF_ANON);
            } else {
                flags.push(KPF_HEAD | KPF_ANON);
                flags.extend(std::iter::repeat_n(KPF_TAIL, pages - 1));
            }
        }
        (Memory { flags, looks: 0 }, folios)
    }

    fn pieces(run: Run, memory: &mut Memory) -> Vec<Piece> {
        let mut found = Vec::new();
        Splitter::new(0).split(run, memory, |piece| found.push(piece)).unwrap();
        found
    }

    const fn run(vpn: u64, pfn: u64, len: u64) -> Run {
        Run { vpn, pfn, len, anonymous: false }
    }

    #[test]
    fn whole_folios_are_found_with_few_looks() {
        let (mut memory, _) = memory(&[9, 9, 9, 9]);
        let found = pieces(run(1 << 20, 0, 2048), &mut memory);
        assert_eq!(found.len(), 4);
        assert!(found.iter().all(|piece| piece.folio == 512 && piece.pages == 512 && piece.aligned));
        assert!(memory.looks <= 1 + 10 + 3 * 3, "{}", memory.looks);
    }

    #[test]
    fn a_part_of_a_folio_counts_its_mapped_pages() {
        let (mut memory, _) = memory(&[4, 4]);
        let found = pieces(run(105, 5, 6), &mut memory);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].pages, found[0].folio, found[0].aligned), (6, 16, false));
        assert_eq!(found[0].flags & KPF_ANON, KPF_ANON);
    }

    #[test]
    fn alignment_is_that_of_the_folio() {
        let (mut memory, _) = memory(&[4, 4]);
        assert!(pieces(run(160 + 3, 3, 20), &mut memory).iter().all(|piece| piece.aligned));
        assert!(pieces(run(160 + 4, 3, 20), &mut memory).iter().all(|piece| !piece.aligned));
    }

    #[test]
    fn smaller_folios_after_larger_ones_are_not_taken_for_them() {
        let (mut memory, _) = memory(&[4, 3, 3, 2, 2, 2, 2, 0, 4]);
        let found = pieces(run(0, 0, 64), &mut memory);
        let sizes: Vec<u64> = found.iter().map(|piece| piece.folio).collect();
        assert_eq!(sizes, [16, 8, 8, 4, 4, 4, 4, 1]);
        assert_eq!(found[7].pages, 16);
    }

    /// Property: for random layouts and random runs the pieces tile the run, and each agrees with the layout.
    #[test]
    fn pieces_tile_every_run_and_agree_with_the_layout() {
        let mut random = SplitMix64::new(7);
        for _ in 0..500 {
            let orders: Vec<u32> = (0..1 + random.below(40)).map(|_| random.below(8) as u32).collect();
            let (mut memory, folios) = memory(&orders);
            let total = memory.flags.len() as u64;
            let pfn = random.below(total);
            let run = run(1000 + random.below(1000), pfn, 1 + random.below(total - pfn));
            let mut at = run.vpn;
            for piece in pieces(run, &mut memory) {
                assert_eq!(piece.vpn, at);
                at += piece.pages;
                let first = piece.vpn - run.vpn + run.pfn;
                let (head, pages) =
                    *folios.iter().find(|(head, pages)| (*head..head + pages).contains(&first)).unwrap();
                assert_eq!(piece.folio, pages);
                if pages > 1 {
                    assert!(first + piece.pages <= head + pages);
                } else {
                    let singles = &memory.flags[first as usize..(first + piece.pages) as usize];
                    assert!(singles.iter().all(|flags| *flags == KPF_ANON), "{piece:?}");
                }
                assert_eq!(piece.aligned, piece.vpn % pages == first % pages);
                assert_eq!(piece.flags, memory.flags[head as usize]);
            }
            assert_eq!(at, run.vpn + run.len);
        }
    }

    /// Property: what groups tell of anonymous memory is what all flags say, with far fewer looks.
    #[test]
    fn groups_tell_the_same_as_every_flag() {
        let mut random = SplitMix64::new(11);
        for round in 0..500 {
            let least = LEAST_ORDER + (round % 3);
            let orders: Vec<u32> = (0..1 + random.below(40))
                .map(|_| if random.happens(0.5) { 0 } else { least + random.below(4) as u32 })
                .collect();
            let (mut memory, _) = memory(&orders);
            let total = memory.flags.len() as u64;
            let (mut by_groups, mut by_flags) = (Splitter::new(least), Splitter::new(0));
            for _ in 0..8 {
                let pfn = random.below(total);
                let one = run(random.below(1000), pfn, 1 + random.below(total - pfn));
                let pages = |splitter: &mut Splitter, memory: &mut Memory, one| {
                    let mut found = Vec::new();
                    splitter
                        .split(one, memory, |piece| {
                            found.extend((0..piece.pages).map(|page| {
                                let whole = piece.folio > 1 && piece.pages == piece.folio;
                                (piece.vpn + page, piece.pfn + page, piece.folio, piece.aligned, whole, piece.flags)
                            }));
                        })
                        .unwrap();
                    found
                };
                let anonymous = Run { anonymous: true, ..one };
                assert_eq!(pages(&mut by_groups, &mut memory, anonymous), pages(&mut by_flags, &mut memory, one));
            }
        }
    }

    #[test]
    fn single_anonymous_pages_need_one_look_a_group() {
        let (mut memory, _) = memory(&[0; 4096]);
        let one = Run { anonymous: true, ..run(0, 0, 4096) };
        for (order, looks) in [(0, 1024), (4, 256), (9, 8)] {
            memory.looks = 0;
            let mut splitter = Splitter::new(order);
            splitter.split(one, &mut memory, |piece| assert_eq!((piece.pages, piece.folio), (4096, 1))).unwrap();
            splitter.split(one, &mut memory, |_| ()).unwrap();
            assert_eq!(memory.looks, looks);
        }
    }

    #[test]
    fn the_zero_page_and_devices_are_in_no_group() {
        let mut memory = Memory { flags: vec![KPF_ANON, KPF_ZERO, 0, KPF_ANON], looks: 0 };
        let found = pieces(Run { anonymous: true, ..run(0, 1, 2) }, &mut memory);
        assert_eq!(found.iter().map(|piece| (piece.pages, piece.flags)).collect::<Vec<_>>(), [(1, KPF_ZERO), (1, 0)]);
    }

    #[test]
    fn a_tail_without_a_head_is_an_error() {
        let mut memory = Memory { flags: vec![KPF_ANON, KPF_TAIL], looks: 0 };
        let error = Splitter::new(0).split(run(0, 1, 1), &mut memory, |_| ()).unwrap_err();
        assert!(error.to_string().contains("tail without a head"));
    }

    /// Flags that no kernel would give, by the page.
    struct Hostile(u64);

    impl Flags for Hostile {
        fn get(&mut self, pfn: u64, _: u64) -> io::Result<u64> {
            let drawn = crate::common::random::mix(pfn.rotate_left(7) ^ self.0);
            Ok([KPF_HEAD, KPF_TAIL, KPF_TAIL, 0, KPF_HEAD | KPF_TAIL, drawn][(drawn % 6) as usize]
                | drawn & (KPF_ANON | KPF_HUGE))
        }
    }

    proptest! {
        #![proptest_config(fuzz::config())]

        #[test]
        fn whatever_the_flags_are_a_run_is_taken_to_pieces_once(
            entries in prop::collection::vec(prop_oneof![any::<u64>(), Just(0), (1..50u64).prop_map(|pfn| PRESENT | pfn)], 0..50),
            vpn in 0..1u64 << 52,
            seed in any::<u64>(),
        ) {
            let present = entries.iter().filter(|entry| **entry & PRESENT != 0).count() as u64;
            let runs = runs(vpn, &entries);
            prop_assert_eq!(runs.iter().map(|run| run.len).sum::<u64>(), present);
            let (mut splitter, mut flags, mut taken) = (Splitter::new(0), Hostile(seed), 0);
            let split = runs.iter().try_for_each(|run| splitter.split(*run, &mut flags, |piece| taken += piece.pages));
            prop_assert!(split.is_err() || taken == present);
        }
    }
}
