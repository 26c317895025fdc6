//! Bytes by kind and page size, under the keys of the `coverage` event.

use std::collections::BTreeMap;

use crate::scan::folio::{KPF_ANON, KPF_HUGE, KPF_SWAPBACKED, KPF_ZERO, Piece};

/// Bytes by `kind:page size`.
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

/// Adds up pieces. Sizes are in bytes.
#[derive(Debug)]
pub struct Tally {
    base: u64,
    pmd: u64,
    bytes: Bytes,
}

impl Tally {
    pub fn new(base: u64, pmd: u64) -> Self {
        Self { base, pmd, bytes: Bytes::new() }
    }

    /// Add `pages` of `piece`'s folio. The rules of what counts as delivered:
    ///
    /// - the zero page, and the huge zero page, count as nothing: no memory is behind them but the kernel's own page,
    ///   however much was read of what nobody has written. They are in no resident set either, nor in smaps;
    /// - a folio of the PMD size or more counts only where the PMD maps it: by base entries (after a split, or moved
    ///   off its alignment) its TLB reach is that of base pages, and it goes under `KIND-pte:SIZE`;
    /// - a smaller folio counts with its mapped bytes at its size, if it is mapped at its natural alignment; else
    ///   no TLB can join its entries, and it goes under `KIND-pte:SIZE` too.
    pub fn add(&mut self, piece: &Piece, pages: u64, kind: Kind, mapping: Mapping) {
        if piece.flags & KPF_ZERO != 0 {
            return;
        }
        let size = piece.folio * self.base;
        let name = kind.name();
        let key = if kind == Kind::Hugetlb {
            format!("{name}:{size}")
        } else if piece.folio == 1 {
            format!("{name}:{}", self.base)
        } else if mapping == Mapping::Pmd {
            format!("{name}:{}", self.pmd)
        } else if size >= self.pmd || !piece.aligned {
            format!("{name}-pte:{size}")
        } else {
            format!("{name}:{size}")
        };
        *self.bytes.entry(key).or_default() += pages * self.base;
    }

    /// Whether it matters for `piece` if the PMD maps it.
    pub fn needs_mapping(&self, piece: &Piece) -> bool {
        piece.folio * self.base >= self.pmd && piece.flags & (KPF_HUGE | KPF_ZERO) == 0
    }

    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan::folio::KPF_HEAD;

    fn key(folio: u64, aligned: bool, flags: u64, kind: Kind, mapping: Mapping) -> String {
        let mut tally = Tally::new(4096, 2 << 20);
        tally.add(&Piece { vpn: 0, pages: 3, folio, aligned, flags }, 3, kind, mapping);
        let (key, bytes) = tally.into_bytes().pop_first().unwrap();
        assert_eq!(bytes, 3 * 4096);
        key
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
            let piece = Piece { vpn: 0, pages: folio, folio, aligned: true, flags };
            assert!(!tally.needs_mapping(&piece));
            tally.add(&piece, folio, Kind::of(flags, false), Mapping::Pte);
        }
        assert_eq!(tally.into_bytes(), Bytes::new());
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
