//! Exact page sizes, from a process's pagemap and the physical pages' flags. Needs CAP_SYS_ADMIN.
//!
//! What the PMD maps is asked for first where the last look found such memory: a word for 2 MiB in place of 512. What
//! is mapped by base entries costs 40 ns a page in any way (measured), so that it is read once, and its flags only where
//! they can say something (`folio::Splitter`). No look takes longer than some milliseconds: the kernel has the lock of
//! the process's map that long.
//!
//! Source: Documentation/admin-guide/mm/pagemap.rst of the Linux kernel.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, bail};

use crate::machine::pages;
use crate::protocol::event::Range;
use crate::scan::area::Area;
use crate::scan::folio::{Flags, KPF_ANON, KPF_HUGE, KPF_TAIL, Piece, Splitter};
use crate::scan::nodes::Nodes;
use crate::scan::page_flags::{PageFlags, words};
use crate::scan::page_set::PageSet;
use crate::scan::regions::{self, PageRegion, regions, tells_huge_zero};
use crate::scan::runs::{PFN_MASK, PRESENT, Run, Runs, SWAPPED};
use crate::scan::smaps;
use crate::scan::tally::{Bytes, Kind, Mapping, Tally};
use crate::scan::task::Task;

/// Most entries read at once: 128 KiB of buffer.
const CHUNK: u64 = 16 * 1024;
/// Most blocks of the PMD size that are asked for together whether the PMD maps them.
const BLOCKS: u64 = 64;
/// From this size on a mapping is first asked where it has pages at all: a hole costs 1.3 ns a page to read over, and
/// reserved address space may be endless.
const SPARSE: u64 = 1 << 36;

/// Bytes by kind and page size of `areas`, whole or where they meet `ranges`: what `coverage` says.
pub fn scan(task: &Task, areas: &[Area], ranges: Option<&[Range]>) -> Result<Bytes> {
    exactly(|order| {
        let mut scanner = Scanner::open(task, order, ranges.is_some())?;
        let mut tally = scanner.tally();
        for area in areas {
            for part in area.wanted(ranges) {
                scanner.part(area, part, &mut tally)?;
            }
        }
        Ok(tally.coverage())
    })
}

/// What `look` finds, told the least order of anonymous folios that there are on this machine, by the kernel's own
/// counts. Once more with none, where a smaller one came up meanwhile.
pub fn exactly<T>(mut look: impl FnMut(u32) -> Result<T>) -> Result<T> {
    let before = least_order();
    let found = look(before)?;
    if least_order() < before { look(0) } else { Ok(found) }
}

/// The least order that the kernel counts an anonymous folio of; 0 where it does not count them (before Linux 6.12).
fn least_order() -> u32 {
    let base = pages::base();
    let mut least = pages::pmd() / base;
    for size in pages::folders(pages::THP.as_ref()) {
        let counted = pages::read_number(&format!("{}/hugepages-{}kB/stats/nr_anon", pages::THP, size >> 10));
        match counted {
            // Sizes that only files and shared memory have are counted too, as none.
            Some(0) => {}
            Some(_) => least = least.min(size / base),
            None => return 0,
        }
    }
    least.max(1).ilog2()
}

pub struct Scanner<'a> {
    task: &'a Task,
    pagemap: File,
    flags: PageFlags,
    splitter: Splitter,
    nodes: Nodes,
    /// Pages that were counted, where each is to count once.
    seen: Option<PageSet>,
    files_count: bool,
    base: u64,
    pmd: u64,
    /// Whether the kernel has PAGEMAP_SCAN.
    asks: bool,
    plain: bool,
    /// Whether it tells the huge zero page, as far as that was tried.
    tells_zero: Option<bool>,
    /// Without it: bytes that the PMD maps by mapping, as smaps says, as far as they are not given out.
    sums: Option<BTreeMap<u64, u64>>,
    /// The last folio that could be was mapped by the PMD.
    huge: bool,
    /// Bytes in aligned blocks of the PMD size that have a page, or one in swap, at every place.
    whole: u64,
    swapped: u64,
    buffer: Vec<u8>,
    entries: Vec<u64>,
}

impl<'a> Scanner<'a> {
    /// To look at a process; `order` as of [`exactly`], `files_count`: pages of files are wanted too.
    pub fn open(task: &'a Task, order: u32, files_count: bool) -> Result<Self> {
        let base = pages::base();
        Ok(Self {
            task,
            pagemap: File::open(task.path("pagemap")).context("cannot open the process's pagemap")?,
            flags: PageFlags::open()?,
            splitter: Splitter::new(order),
            nodes: Nodes::of_machine(base),
            seen: None,
            files_count,
            base,
            pmd: pages::pmd(),
            asks: true,
            plain: false,
            tells_zero: None,
            sums: None,
            huge: true,
            whole: 0,
            swapped: 0,
            buffer: vec![0; CHUNK as usize * 8],
            entries: Vec::with_capacity(CHUNK as usize),
        })
    }

    /// Read every entry and every flag, with what smaps says of the PMD, as if the kernel had neither PAGEMAP_SCAN nor
    /// counts: what everything else is held against.
    pub fn plainly(&mut self) {
        (self.asks, self.plain) = (false, true);
    }

    /// Count each page once, with those that were `seen` before.
    pub fn once(&mut self, seen: PageSet) {
        self.seen = Some(seen);
    }

    /// What was seen.
    pub fn into_seen(self) -> Option<PageSet> {
        self.seen
    }

    pub fn tally(&self) -> Tally {
        Tally::new(self.base, self.pmd)
    }

    /// Bytes in whole blocks that the PMD does not map, and bytes in swap, since the last call.
    pub fn take_rest(&mut self, tally: &Tally) -> (u64, u64) {
        let (whole, swapped) = (std::mem::take(&mut self.whole), std::mem::take(&mut self.swapped));
        (whole.saturating_sub(tally.huge()), swapped)
    }

    /// Where `part` has pages; all of it, unless it is so large that it cannot be full.
    fn filled(&self, part: Range) -> Result<Vec<Range>> {
        let sparse = part.end - part.start >= SPARSE;
        let found = if sparse { regions(&self.pagemap, part, regions::PRESENT, 0)? } else { None };
        let ranges =
            |found: Vec<PageRegion>| found.iter().map(|one| Range { start: one.start, end: one.end }).collect();
        Ok(found.map_or_else(|| vec![part], ranges))
    }

    /// Add what backs `part` of `area` to `tally`.
    pub fn part(&mut self, area: &Area, part: Range, tally: &mut Tally) -> Result<()> {
        for part in self.filled(part)? {
            self.walk(area, part, tally).with_context(|| format!("cannot read the pages at {:#x}", part.start))?;
        }
        Ok(())
    }

    fn walk(&mut self, area: &Area, part: Range, tally: &mut Tally) -> Result<()> {
        let (mut at, mut blocks, mut runs) = (part.start, 1, Runs::default());
        while at < part.end {
            let aligned = at / self.pmd * self.pmd;
            if !(self.huge && self.asks && part.end - part.start >= self.pmd) {
                let end = aligned.saturating_add(CHUNK * self.base).min(part.end);
                self.read(area, Range { start: at, end }, &mut runs, tally)?;
                at = end;
                continue;
            }
            let end = aligned.saturating_add(blocks * self.pmd).min(part.end);
            let (wanted, told) = (regions::PRESENT | regions::HUGE, regions::FILE | regions::ZERO);
            let Some(found) = regions(&self.pagemap, Range { start: at, end }, wanted, told)? else {
                self.asks = false;
                continue;
            };
            let mut huge = 0;
            for one in found {
                self.read(area, Range { start: at, end: one.start }, &mut runs, tally)?;
                self.finish(area, &mut runs, tally)?;
                self.mapped_huge(area, one, tally)?;
                huge += one.end - one.start;
                at = one.end;
            }
            self.read(area, Range { start: at, end }, &mut runs, tally)?;
            at = end;
            self.huge = huge * 2 >= blocks * self.pmd;
            blocks = if self.huge { (blocks * 2).min(BLOCKS) } else { 1 };
        }
        self.finish(area, &mut runs, tally)?;
        self.swapped += runs.swapped * self.base;
        Ok(())
    }

    /// Read the entries of `part`, which lies within so many blocks as the buffer has room for.
    fn read(&mut self, area: &Area, part: Range, runs: &mut Runs, tally: &mut Tally) -> Result<()> {
        let (mut vpn, end) = (part.start / self.base, part.end.div_ceil(self.base));
        while vpn < end {
            let count = CHUNK.min(end - vpn);
            let buffer = &mut self.buffer[..count as usize * 8];
            // Past the end of user space (vsyscall) there is nothing to read.
            let read = self.pagemap.read_at(buffer, vpn * 8)?;
            let mut entries = std::mem::take(&mut self.entries);
            entries.clear();
            entries.extend(words(&buffer[..read]));
            let hidden = |entry: &u64| entry & PRESENT != 0;
            if entries.iter().any(hidden) && entries.iter().all(|entry| !hidden(entry) || entry & PFN_MASK == 0) {
                bail!("page frame numbers are hidden: this needs CAP_SYS_ADMIN; run as root, or use --source smaps");
            }
            self.count_whole(vpn, &entries);
            let mut ended = Vec::new();
            runs.push(vpn, &entries, area.inode == 0 && !self.plain, |run| {
                ended.push(run);
                Ok(())
            })?;
            self.entries = entries;
            for run in ended {
                self.run(area, run, tally)?;
            }
            vpn += count;
        }
        Ok(())
    }

    /// Note the aligned blocks that have a page, or one in swap, at every place.
    fn count_whole(&mut self, vpn: u64, entries: &[u64]) {
        let pages = (self.pmd / self.base) as usize;
        let skipped = (vpn.next_multiple_of(pages as u64) - vpn) as usize;
        let blocks = entries.get(skipped..).unwrap_or_default().chunks_exact(pages);
        let full = |block: &&[u64]| block.iter().all(|entry| entry & (PRESENT | SWAPPED) != 0);
        self.whole += blocks.filter(full).count() as u64 * self.pmd;
    }

    fn finish(&mut self, area: &Area, runs: &mut Runs, tally: &mut Tally) -> Result<()> {
        runs.finish().map_or(Ok(()), |run| self.run(area, run, tally))
    }

    fn run(&mut self, area: &Area, run: Run, tally: &mut Tally) -> Result<()> {
        let mut pieces: Vec<Piece> = Vec::new();
        self.splitter.split(run, &mut self.flags, |piece| match pieces.last_mut() {
            Some(last) if last.folio == 1 && piece.folio == 1 && last.flags == piece.flags => {
                last.pages += piece.pages;
            }
            _ => pieces.push(piece),
        })?;
        for piece in pieces {
            let mapped = if tally.needs_mapping(&piece) { self.pages_mapped_huge(area, &piece)? } else { 0 };
            self.add(area, &piece, mapped, tally);
        }
        Ok(())
    }

    /// Count a piece, of which the PMD maps so many pages.
    fn add(&mut self, area: &Area, piece: &Piece, mapped: u64, tally: &mut Tally) {
        let kind = Kind::of(piece.flags, area.shared);
        if kind == Kind::File && !self.files_count {
            return;
        }
        let again = tally.locate(piece, &self.nodes, self.seen.as_mut());
        let whole = mapped == piece.pages;
        if mapped > 0 {
            tally.add(piece, mapped, if whole { again } else { again.min(mapped) }, kind, Mapping::Pmd);
        }
        if !whole {
            tally.add(piece, piece.pages - mapped, again.saturating_sub(mapped), kind, Mapping::Pte);
        }
    }

    /// Count a range that the PMD maps (or an entry above it): its first page tells of each block.
    ///
    /// Of anonymous memory that is no zero page there is nothing left to ask, unless it matters which pages these are.
    fn mapped_huge(&mut self, area: &Area, range: PageRegion, tally: &mut Tally) -> Result<()> {
        self.huge = true;
        self.whole += range.end - range.start;
        let (anonymous, folio) = (range.categories & (regions::FILE | regions::ZERO) == 0, self.pmd / self.base);
        if anonymous && area.inode == 0 && self.seen.is_none() && self.nodes.is_one() && self.tells_zero() {
            let (vpn, pages) = (range.start / self.base, (range.end - range.start) / self.base);
            let piece = Piece { vpn, pfn: 0, pages, folio, aligned: true, flags: KPF_ANON };
            self.add(area, &piece, pages, tally);
            return Ok(());
        }
        let mut at = range.start;
        while at < range.end {
            let mut word = [0; 8];
            self.pagemap.read_exact_at(&mut word, at / self.base * 8)?;
            let entry = u64::from_ne_bytes(word);
            let end = range.end.min((at / self.pmd).saturating_add(1).saturating_mul(self.pmd));
            let (vpn, pfn, pages) = (at / self.base, entry & PFN_MASK, (end - at) / self.base);
            at = end;
            if entry & PRESENT == 0 {
                continue; // it has left meanwhile
            }
            let flags = self.flags.get(pfn, 1)?;
            if flags & KPF_HUGE != 0 || flags & KPF_TAIL != 0 {
                // Of a pool, whose pages may be larger, and which the whole range is of.
                let run = Run { vpn, pfn, len: pages, anonymous: false };
                let mut pieces = Vec::new();
                self.splitter.split(run, &mut self.flags, |piece| pieces.push(piece))?;
                for piece in pieces {
                    self.add(area, &piece, piece.pages, tally);
                }
                continue;
            }
            let piece = Piece { vpn, pfn, pages, folio, aligned: true, flags };
            self.add(area, &piece, pages, tally);
        }
        Ok(())
    }

    fn tells_zero(&mut self) -> bool {
        *self.tells_zero.get_or_insert_with(|| tells_huge_zero(self.pmd))
    }

    /// Pages of `piece` that the PMD maps: exactly by PAGEMAP_SCAN, before Linux 6.7 by the sums that smaps gives, which
    /// are taken to be its folios of that size in order.
    fn pages_mapped_huge(&mut self, area: &Area, piece: &Piece) -> Result<u64> {
        let part = Range { start: piece.vpn * self.base, end: (piece.vpn + piece.pages) * self.base };
        self.huge = false;
        if !piece.vpn.wrapping_sub(piece.pfn).is_multiple_of(self.pmd / self.base) {
            return Ok(0);
        }
        if self.asks {
            if let Some(found) = regions(&self.pagemap, part, regions::HUGE, 0)? {
                let pages = found.iter().map(|range| range.end - range.start).sum::<u64>() / self.base;
                self.huge = pages > 0;
                return Ok(pages);
            }
            self.asks = false;
        }
        if self.sums.is_none() {
            self.sums = Some(smaps::pmd_mapped(&self.task.read("smaps")?));
        }
        let left = self.sums.as_mut().and_then(|sums| sums.get_mut(&area.range.start));
        Ok(left.map_or(0, |left| {
            let pages = piece.pages.min(*left / self.base);
            *left -= pages * self.base;
            pages
        }))
    }
}
