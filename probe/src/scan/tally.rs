//! Bytes by kind and page size: under the keys of the `coverage` event, and those of `folios`.

use std::collections::BTreeMap;

use crate::scan::folio::{KPF_ANON, KPF_HUGE, KPF_SWAPBACKED, KPF_ZERO, Piece};
use crate::scan::nodes::Nodes;
use crate::scan::page_set::PageSet;

/// Bytes by `kind:page size`, or by `kind:page size:state`.
pub type Bytes = BTreeMap<String, u64>;

/// The key of memory whose page size cannot be told.
pub const UNPROVEN: &str = "unproven";

/// What kind of memory a page is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Anon,
    Shmem,
    Hugetlb,
    File,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Anon => "anon",
            Self::Shmem => "shmem",
            Self::Hugetlb => "hugetlb",
            Self::File => "file",
        }
    }

    /// The kind of a page with the flags of its folio's head. What is neither anonymous, shmem nor of a pool is a file
    /// (or a device), and counts only where a workload names it.
    ///
    /// A private file mapping of a tmpfs file is a program or a library there: a file, unless it was written to.
    pub fn of(flags: u64, shared: bool) -> Self {
        if flags & KPF_HUGE != 0 {
            Self::Hugetlb
        } else if flags & KPF_ANON != 0 {
            Self::Anon
        } else if flags & KPF_SWAPBACKED != 0 && shared {
            Self::Shmem
        } else {
            Self::File
        }
    }
}

/// How a piece of a folio is mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mapping {
    /// By one entry of the page middle directory (or above).
    Pmd,
    /// By base-page entries.
    Pte,
}

/// How a part of a folio lies in a process: what tools/mm/thpmaps of the kernel tells apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// By one entry of the page middle directory (or above).
    Pmd,
    /// Whole and in one piece, at its natural alignment.
    Aligned,
    /// Whole and in one piece, off its alignment.
    Unaligned,
    /// In part; what is mapped is at the folio's alignment.
    Part,
    /// In part, and off it.
    PartUnaligned,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            Self::Pmd => "pmd",
            Self::Aligned => "aligned",
            Self::Unaligned => "unaligned",
            Self::Part | Self::PartUnaligned => "partial",
        }
    }
}

/// A sum: pages of `kind` in folios of so many pages, of which `again` were counted before.
#[derive(Debug)]
struct Cell {
    kind: Kind,
    folio: u64,
    state: State,
    pages: u64,
    again: u64,
}

/// Adds up pieces. Sizes are in bytes.
#[derive(Debug)]
pub struct Tally {
    base: u64,
    pmd: u64,
    /// Few, and the next piece mostly belongs to one of the last.
    cells: Vec<Cell>,
    nodes: BTreeMap<u32, u64>,
    /// Pages of the zero page.
    zero: u64,
    /// Pages that the PMD maps.
    huge: u64,
}

impl Tally {
    pub fn new(base: u64, pmd: u64) -> Self {
        Self { base, pmd, cells: Vec::new(), nodes: BTreeMap::new(), zero: 0, huge: 0 }
    }

    /// Add `pages` of `piece`'s folio, of which `again` were counted before. The zero page, and the huge zero page,
    /// count as nothing: no memory is behind them but the kernel's own page, however much was read of what nobody has
    /// written. They are in no resident set either, nor in smaps.
    pub fn add(&mut self, piece: &Piece, pages: u64, again: u64, kind: Kind, mapping: Mapping) {
        if mapping == Mapping::Pmd {
            self.huge += pages;
        }
        if piece.flags & KPF_ZERO != 0 {
            self.zero += pages;
            return;
        }
        let whole = pages == piece.folio;
        let state = match (mapping, piece.aligned) {
            (Mapping::Pmd, _) => State::Pmd,
            // Of a pool all is mapped by its own size; what a range cuts off is no part.
            _ if kind == Kind::Hugetlb => State::Pmd,
            _ if piece.folio == 1 => State::Aligned,
            (Mapping::Pte, true) if whole => State::Aligned,
            (Mapping::Pte, true) => State::Part,
            (Mapping::Pte, false) if whole => State::Unaligned,
            (Mapping::Pte, false) => State::PartUnaligned,
        };
        let is = |cell: &&mut Cell| cell.kind == kind && cell.folio == piece.folio && cell.state == state;
        if let Some(cell) = self.cells.iter_mut().find(is) {
            cell.pages += pages;
            cell.again += again;
        } else {
            self.cells.push(Cell { kind, folio: piece.folio, state, pages, again });
        }
    }

    /// Note where pages lie: those of `piece`, of which `seen` has what was counted before. How many of them were.
    pub fn locate(&mut self, piece: &Piece, nodes: &Nodes, seen: Option<&mut PageSet>) -> u64 {
        if piece.flags & KPF_ZERO != 0 {
            return 0;
        }
        let mut at = piece.pfn;
        while at < piece.pfn + piece.pages {
            let (node, rest) = nodes.of(at);
            let here = rest.min(piece.pfn + piece.pages - at);
            if let Some(node) = node {
                *self.nodes.entry(node).or_default() += here * self.base;
            }
            at += here;
        }
        seen.map_or(0, |seen| piece.pages - seen.insert_all(piece.pfn, piece.pages))
    }

    /// Whether it matters for `piece` if the PMD maps it.
    pub fn needs_mapping(&self, piece: &Piece) -> bool {
        piece.folio * self.base >= self.pmd && piece.flags & (KPF_HUGE | KPF_ZERO) == 0
    }

    /// Under the keys of `coverage`. The rules of what counts as delivered:
    ///
    /// - a folio of the PMD size or more counts only where the PMD maps it: by base entries (after a split, or moved
    ///   off its alignment) its TLB reach is that of base pages, and it goes under `KIND-pte:SIZE`;
    /// - a smaller folio counts with its mapped bytes at its size, if it is mapped at its natural alignment; else
    ///   no TLB can join its entries, and it goes under `KIND-pte:SIZE` too.
    pub fn coverage(&self) -> Bytes {
        let mut bytes = Bytes::new();
        for cell in &self.cells {
            let (name, size) = (cell.kind.name(), cell.folio * self.base);
            let aligned = matches!(cell.state, State::Aligned | State::Part);
            let key = if cell.kind == Kind::Hugetlb {
                format!("{name}:{size}")
            } else if cell.state == State::Pmd {
                format!("{name}:{}", self.pmd)
            } else if cell.folio > 1 && (size >= self.pmd || !aligned) {
                format!("{name}-pte:{size}")
            } else {
                format!("{name}:{size}")
            };
            *bytes.entry(key).or_default() += cell.pages * self.base;
        }
        bytes
    }

    /// Under the keys of `folios`: all bytes, and those of them that were counted before.
    pub fn states(&self) -> (Bytes, Bytes) {
        let (mut bytes, mut again) = (Bytes::new(), Bytes::new());
        for cell in &self.cells {
            let key = format!("{}:{}:{}", cell.kind.name(), cell.folio * self.base, cell.state.name());
            if cell.again > 0 {
                *again.entry(key.clone()).or_default() += cell.again * self.base;
            }
            *bytes.entry(key).or_default() += cell.pages * self.base;
        }
        (bytes, again)
    }

    pub fn nodes(&self) -> BTreeMap<u32, u64> {
        self.nodes.clone()
    }

    /// Bytes that read as zero and have no memory.
    pub fn zero(&self) -> u64 {
        self.zero * self.base
    }

    /// Bytes that the PMD maps.
    pub fn huge(&self) -> u64 {
        self.huge * self.base
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan::folio::KPF_HEAD;

    fn added(folio: u64, pages: u64, aligned: bool, flags: u64, kind: Kind, mapping: Mapping) -> Tally {
        let mut tally = Tally::new(4096, 2 << 20);
        tally.add(&Piece { vpn: 0, pfn: 0, pages, folio, aligned, flags }, pages, 1, kind, mapping);
        tally
    }

    fn key(folio: u64, aligned: bool, flags: u64, kind: Kind, mapping: Mapping) -> String {
        let (key, bytes) = added(folio, 3, aligned, flags, kind, mapping).coverage().pop_first().unwrap();
        assert_eq!(bytes, 3 * 4096);
        key
    }

    #[test]
    fn states_are_those_of_thpmaps() {
        let anon = |folio, pages, aligned, mapping| {
            let (bytes, again) = added(folio, pages, aligned, KPF_ANON, Kind::Anon, mapping).states();
            assert_eq!(again.values().sum::<u64>(), 4096);
            let (key, size) = bytes.into_iter().next().unwrap();
            assert_eq!(size, pages * 4096);
            key
        };
        assert_eq!(anon(1, 7, true, Mapping::Pte), "anon:4096:aligned");
        assert_eq!(anon(16, 16, true, Mapping::Pte), "anon:65536:aligned");
        assert_eq!(anon(16, 16, false, Mapping::Pte), "anon:65536:unaligned");
        assert_eq!(anon(16, 15, true, Mapping::Pte), "anon:65536:partial");
        assert_eq!(anon(16, 15, false, Mapping::Pte), "anon:65536:partial");
        assert_eq!(anon(512, 512, true, Mapping::Pmd), "anon:2097152:pmd");
        assert_eq!(anon(512, 512, true, Mapping::Pte), "anon:2097152:aligned");
    }

    #[test]
    fn keys_say_what_the_tlb_can_use() {
        let anon = |folio, aligned, mapping| key(folio, aligned, KPF_ANON | KPF_HEAD, Kind::Anon, mapping);
        assert_eq!(anon(1, true, Mapping::Pte), "anon:4096");
        assert_eq!(anon(16, true, Mapping::Pte), "anon:65536");
        assert_eq!(anon(16, false, Mapping::Pte), "anon-pte:65536");
        assert_eq!(anon(512, true, Mapping::Pmd), "anon:2097152");
        assert_eq!(anon(512, true, Mapping::Pte), "anon-pte:2097152");
        assert_eq!(key(512, true, 0, Kind::Shmem, Mapping::Pmd), "shmem:2097152");
        assert_eq!(key(1024, true, 0, Kind::File, Mapping::Pmd), "file:2097152");
        assert_eq!(key(1 << 18, true, KPF_HUGE, Kind::Hugetlb, Mapping::Pte), "hugetlb:1073741824");
    }

    #[test]
    fn zero_pages_are_no_memory() {
        let mut tally = Tally::new(4096, 2 << 20);
        for (folio, flags) in [(1, KPF_ZERO), (512, KPF_ZERO | KPF_HEAD)] {
            let piece = Piece { vpn: 0, pfn: 9, pages: folio, folio, aligned: true, flags };
            assert!(!tally.needs_mapping(&piece));
            assert_eq!(tally.locate(&piece, &Nodes::One(0), None), 0);
            tally.add(&piece, folio, 0, Kind::of(flags, false), Mapping::Pte);
        }
        assert_eq!((tally.coverage(), tally.zero(), tally.nodes()), (Bytes::new(), 513 * 4096, BTreeMap::new()));
    }

    #[test]
    fn pages_are_counted_by_node_and_once() {
        let mut tally = Tally::new(4096, 2 << 20);
        let nodes = Nodes::Blocks { pages: 64, nodes: [(0, 0), (1, 1)].into() };
        let mut seen = PageSet::default();
        let piece = |pfn, pages| Piece { vpn: 0, pfn, pages, folio: 1, aligned: true, flags: KPF_ANON };
        assert_eq!(tally.locate(&piece(60, 10), &nodes, Some(&mut seen)), 0);
        assert_eq!(tally.locate(&piece(65, 10), &nodes, Some(&mut seen)), 5);
        assert_eq!(tally.locate(&piece(128, 3), &nodes, Some(&mut seen)), 0);
        assert_eq!(tally.nodes(), [(0, 4 * 4096), (1, 16 * 4096)].into());
    }

    #[test]
    fn kinds_come_from_the_flags() {
        assert_eq!(Kind::of(KPF_ANON | KPF_SWAPBACKED, true), Kind::Anon);
        assert_eq!(Kind::of(KPF_SWAPBACKED, true), Kind::Shmem);
        assert_eq!(Kind::of(KPF_SWAPBACKED, false), Kind::File);
        assert_eq!(Kind::of(KPF_HUGE | KPF_ANON, false), Kind::Hugetlb);
        assert_eq!(Kind::of(0, true), Kind::File);
    }
}
