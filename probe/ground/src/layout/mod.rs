//! Layouts: what pages the heap of a program has, as words. Strict, so that no program runs under another layout than
//! was asked for.
//!
//! ```text
//! LAYOUT = KIND[,heap=SIZE][,children=no]
//! KIND   = none | base | thp | hugetlb-2m | hugetlb-1g | mosaic:FROM-TO=PAGES[+FROM-TO=PAGES...]
//! PAGES  = base | thp | hugetlb-2m | hugetlb-1g
//! FROM-TO  both in percent of the heap (0-25%, 12.5-50%), or both sizes (0-64m, 64m-1g)
//! ```

mod range;

use crate::text;

use self::range::{Edge, Range, WHOLE, follows, range};

/// The huge page of the processors that this is for, with base pages of 4 KiB.
pub const HUGE: u64 = 2 << 20;
pub const GIANT: u64 = 1 << 30;
/// Ranges of a mosaic, at most: each is a mapping of the process.
pub const MOST_RANGES: usize = 64;
/// Longest layout: that of the most ranges.
pub const MOST_TEXT: usize = 4096;
const LARGEST_HEAP: u64 = 16 << 40;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    Base,
    Thp,
    Hugetlb2m,
    Hugetlb1g,
}

impl Pages {
    const WORDS: [(&'static [u8], Pages); 4] = [
        (b"base", Pages::Base),
        (b"thp", Pages::Thp),
        (b"hugetlb-2m", Pages::Hugetlb2m),
        (b"hugetlb-1g", Pages::Hugetlb1g),
    ];

    fn of(word: &[u8]) -> Option<Pages> {
        Self::WORDS.iter().find(|(known, _)| *known == word).map(|(_, pages)| *pages)
    }

    pub fn word(self) -> &'static [u8] {
        Self::WORDS[self as usize].0
    }

    /// What their ranges are multiples of: mappings of a pool are made of its pages, and THP of whole huge pages.
    pub fn size(self) -> u64 {
        if self == Pages::Hugetlb1g { GIANT } else { HUGE }
    }

    pub fn is_hugetlb(self) -> bool {
        matches!(self, Pages::Hugetlb2m | Pages::Hugetlb1g)
    }
}

/// A part of the heap in bytes from its begin, and what it is to be backed by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    pub from: u64,
    pub to: u64,
    pub pages: Pages,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Nothing is advised: the system's setting decides. The heap is laid out as in every other layout.
    pub is_unadvised: bool,
    ranges: [Range; MOST_RANGES],
    count: usize,
    /// Bytes of the heap that are laid out; None: what `default_heap` says.
    pub heap: Option<u64>,
    /// Programs that this one starts have the layout too.
    pub children: bool,
}

/// What is wrong with a layout: the word, and how to put it right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault<'a> {
    pub word: &'a [u8],
    pub what: &'static str,
    pub cure: &'static str,
}

const KINDS: &str =
    "write none, base, thp, hugetlb-2m, hugetlb-1g, or mosaic:0-25%=thp+50-75%=thp, then ,heap=SIZE where it is needed";
const HEAP: &str = "write for example heap=512m: a multiple of 2m (of 1g with pages of 1g), at most 16t";
const RANGES: &str = "write FROM-TO=PAGES as 0-25%=thp or 0-64m=thp, several with + between them, in their order";
const UNITS: &str = "sizes of ranges are multiples of 2m, and of 1g for hugetlb-1g";

impl Layout {
    /// Raises a fault for whatever is not exactly a layout.
    pub fn parse(text: &[u8]) -> Result<Layout, Fault<'_>> {
        if text.len() > MOST_TEXT {
            return Err(Fault {
                word: &text[..32],
                what: "begins a layout of more than 4096 characters",
                cure: RANGES,
            });
        }
        let mut words = text.split(|&byte| byte == b',');
        let kind = words.next().unwrap_or_default();
        let nothing = Range { from: Edge::Share(0), to: Edge::Share(WHOLE), pages: Pages::Base };
        let mut layout =
            Layout { is_unadvised: false, ranges: [nothing; MOST_RANGES], count: 1, heap: None, children: true };
        if let Some(ranges) = kind.strip_prefix(b"mosaic:") {
            layout.mosaic(ranges)?;
        } else if kind == b"none" {
            (layout.is_unadvised, layout.count) = (true, 0);
        } else if let Some(pages) = Pages::of(kind) {
            layout.ranges[0].pages = pages;
        } else {
            return Err(Fault { word: kind, what: "is no layout", cure: KINDS });
        }
        let mut children = None;
        for word in words {
            if let Some(size) = word.strip_prefix(b"heap=") {
                let again = layout.heap.is_some();
                layout.heap =
                    text::size(size).filter(|&bytes| bytes % HUGE == 0 && (HUGE..=LARGEST_HEAP).contains(&bytes));
                if again || layout.heap.is_none() {
                    return Err(Fault { word, what: "is no size of a heap, or a second one", cure: HEAP });
                }
            } else if let (b"children=no" | b"children=yes", None) = (word, children) {
                children = Some(word == b"children=yes");
            } else {
                let cure = "write heap=SIZE or children=no, each once";
                return Err(Fault { word, what: "is no option of a layout, or a second one", cure });
            }
        }
        layout.children = children.unwrap_or(true);
        layout.check(kind)?;
        Ok(layout)
    }

    fn mosaic<'a>(&mut self, text: &'a [u8]) -> Result<(), Fault<'a>> {
        self.count = 0;
        for word in text.split(|&byte| byte == b'+') {
            let wrong = |what, cure| Err(Fault { word, what, cure });
            let Some(range) = range(word) else { return wrong("is no range of a mosaic", RANGES) };
            if self.count == MOST_RANGES {
                return wrong("is one range too many", "a mosaic has at most 64 ranges");
            }
            if let (Edge::Bytes(from), Edge::Bytes(to)) = (range.from, range.to)
                && (from % range.pages.size() != 0 || to % range.pages.size() != 0)
            {
                return wrong("does not begin or end on a border of its pages", UNITS);
            }
            if !follows(&range.from, &range.to, false) {
                return wrong("is empty, or ends before it begins", RANGES);
            }
            if self.count > 0 && !follows(&self.ranges[self.count - 1].to, &range.from, true) {
                return wrong("begins before the one before it ends, or is written in another way", RANGES);
            }
            self.ranges[self.count] = range;
            self.count += 1;
        }
        Ok(())
    }

    fn check<'a>(&self, kind: &'a [u8]) -> Result<(), Fault<'a>> {
        let wrong = |what, cure| Err(Fault { word: kind, what, cure });
        let ranges = &self.ranges[..self.count];
        let Some(heap) = self.heap else {
            if kind.starts_with(b"mosaic:") {
                return wrong(
                    "needs to know of how much memory it is",
                    "add ,heap=SIZE: what the program's heap grows to",
                );
            }
            if ranges.iter().any(|range| range.pages.is_hugetlb()) {
                return wrong("takes its pages from the pool at the start", "add ,heap=SIZE: so much is taken");
            }
            return Ok(());
        };
        if kind == b"hugetlb-1g" && heap % GIANT != 0 {
            return wrong("has pages of 1g, and its heap is no multiple of it", HEAP);
        }
        if ranges.iter().any(|range| matches!(range.to, Edge::Bytes(to) if to > heap)) {
            return wrong("has a range that ends beyond its heap", "make heap=SIZE as large as the last range's end");
        }
        Ok(())
    }

    /// The largest pages that it is made of: what its heap begins on a border of.
    pub fn alignment(&self) -> u64 {
        self.ranges[..self.count].iter().map(|range| range.pages.size()).max().unwrap_or(HUGE)
    }

    pub fn wants(&self, pages: Pages) -> bool {
        self.ranges[..self.count].iter().any(|range| range.pages == pages)
    }

    /// Bytes that it takes from the pool of such pages.
    pub fn pool(&self, pages: Pages) -> u64 {
        let heap = self.heap.unwrap_or(0);
        self.windows(heap).filter(|window| window.pages == pages).map(|window| window.to - window.from).sum()
    }

    /// The parts of a heap of so many bytes, in their order; what no range names is of base pages.
    pub fn windows(&self, heap: u64) -> Windows<'_> {
        Windows { ranges: &self.ranges[..self.count], heap, at: if self.is_unadvised { heap } else { 0 } }
    }
}

pub struct Windows<'a> {
    ranges: &'a [Range],
    heap: u64,
    at: u64,
}

impl Iterator for Windows<'_> {
    type Item = Window;

    fn next(&mut self) -> Option<Window> {
        while self.at < self.heap {
            let Some((range, rest)) = self.ranges.split_first() else {
                let from = core::mem::replace(&mut self.at, self.heap);
                return Some(Window { from, to: self.heap, pages: Pages::Base });
            };
            let unit = range.pages.size();
            let (from, to) = (range.from.at(self.heap, unit).max(self.at), range.to.at(self.heap, unit));
            if from > self.at && from < to {
                let begun = core::mem::replace(&mut self.at, from);
                return Some(Window { from: begun, to: from, pages: Pages::Base });
            }
            self.ranges = rest;
            if from < to {
                self.at = to;
                return Some(Window { from, to, pages: range.pages });
            }
        }
        None
    }
}

/// How much of the heap is laid out where the layout does not say it: half of the machine's memory, for what is not
/// touched costs nothing; under limits of the process a quarter of them, so that there is room for all else.
pub fn default_heap(memory: u64, limits: [u64; 2]) -> u64 {
    let least = limits.into_iter().filter(|&limit| limit != u64::MAX).map(|limit| limit / 4).min();
    (memory / 2).min(least.unwrap_or(u64::MAX)).min(LARGEST_HEAP) / HUGE * HUGE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(text: &str, heap: u64) -> Vec<(u64, u64, Pages)> {
        let layout = Layout::parse(text.as_bytes()).unwrap();
        layout.windows(heap).map(|one| (one.from >> 20, one.to >> 20, one.pages)).collect()
    }

    #[test]
    fn words_are_layouts() {
        assert_eq!(windows("thp", 1 << 30), [(0, 1024, Pages::Thp)]);
        assert_eq!(windows("base", 1 << 30), [(0, 1024, Pages::Base)]);
        assert_eq!(windows("none", 1 << 30), []);
        let layout = Layout::parse(b"hugetlb-2m,heap=64m,children=no").unwrap();
        assert_eq!(
            (layout.pool(Pages::Hugetlb2m), layout.pool(Pages::Hugetlb1g), layout.children),
            (64 << 20, 0, false)
        );
        assert_eq!((layout.alignment(), Layout::parse(b"hugetlb-1g,heap=2g").unwrap().alignment()), (HUGE, GIANT));
    }

    #[test]
    fn a_mosaic_is_base_pages_where_no_range_is() {
        assert_eq!(windows("mosaic:0-25%=thp,heap=1g", 1 << 30), [(0, 256, Pages::Thp), (256, 1024, Pages::Base)]);
        assert_eq!(
            windows("mosaic:8m-16m=thp+16m-24m=hugetlb-2m,heap=32m", 32 << 20),
            [(0, 8, Pages::Base), (8, 16, Pages::Thp), (16, 24, Pages::Hugetlb2m), (24, 32, Pages::Base)]
        );
        assert_eq!(windows("mosaic:0-12.5%=thp,heap=32m", 32 << 20), [(0, 4, Pages::Thp), (4, 32, Pages::Base)]);
        // A share of less than half a page is none.
        assert_eq!(windows("mosaic:0-0.1%=thp,heap=64m", 64 << 20), [(0, 64, Pages::Base)]);
        assert_eq!(windows("mosaic:0-100%=thp,heap=64m", 64 << 20), [(0, 64, Pages::Thp)]);
    }

    #[test]
    fn windows_cover_the_heap_without_a_gap() {
        for text in [
            "mosaic:1-2%=thp+3-99.999%=hugetlb-2m",
            "mosaic:0-33.333%=base+33.333-66.667%=thp",
            "mosaic:5-60%=hugetlb-1g",
        ] {
            for heap in [2u64, 6, 1000, 1024, 4096, 10240].map(|m| m << 20) {
                let text = format!("{text},heap={}m", heap >> 20);
                let layout = Layout::parse(text.as_bytes()).unwrap();
                let mut at = 0;
                for window in layout.windows(heap) {
                    assert!(window.from == at && window.to > at, "{text} {window:?}");
                    assert!(window.from % window.pages.size() == 0 || !window.pages.is_hugetlb(), "{text} {window:?}");
                    at = window.to;
                }
                assert_eq!(at, heap, "{text}");
            }
        }
    }

    #[test]
    fn whatever_else_is_refused_with_its_word_and_a_cure() {
        for (text, word) in [
            ("", ""),
            ("THP", "THP"),
            ("thp ", "thp "),
            ("thp,", ""),
            ("thp,heap=3m", "heap=3m"),
            ("thp,heap=2m,heap=2m", "heap=2m"),
            ("thp,heap=0", "heap=0"),
            ("thp,heap=99t", "heap=99t"),
            ("thp,children=maybe", "children=maybe"),
            ("thp,children=no,children=no", "children=no"),
            ("hugetlb-2m", "hugetlb-2m"),
            ("hugetlb-1g,heap=512m", "hugetlb-1g"),
            ("mosaic:", ""),
            ("mosaic:0-25%=thp", "mosaic:0-25%=thp"),
            ("mosaic:0-25=thp,heap=1g", "0-25=thp"),
            ("mosaic:25-25%=thp,heap=1g", "25-25%=thp"),
            ("mosaic:50-25%=thp,heap=1g", "50-25%=thp"),
            ("mosaic:0-101%=thp,heap=1g", "0-101%=thp"),
            ("mosaic:0-25%=huge,heap=1g", "0-25%=huge"),
            ("mosaic:0-50%=thp+25-75%=thp,heap=1g", "25-75%=thp"),
            ("mosaic:0-50%=thp+2m-4m=thp,heap=1g", "2m-4m=thp"),
            ("mosaic:0-3m=thp,heap=1g", "0-3m=thp"),
            ("mosaic:0-2g=thp,heap=1g", "mosaic:0-2g=thp"),
            ("mosaic:0-2m=hugetlb-1g,heap=1g", "0-2m=hugetlb-1g"),
        ] {
            let fault = Layout::parse(text.as_bytes()).expect_err(text);
            assert_eq!((fault.word, fault.cure.is_empty()), (word.as_bytes(), false), "{text}");
        }
        let many =
            format!("mosaic:{},heap=1g", (0..65).map(|n| format!("{n}-{}%=thp", n + 1)).collect::<Vec<_>>().join("+"));
        assert_eq!(Layout::parse(many.as_bytes()).unwrap_err().what, "is one range too many");
        assert!(Layout::parse(&[b'x'; 5000]).is_err());
    }

    #[test]
    fn the_default_is_half_of_the_memory_or_a_quarter_of_a_limit() {
        assert_eq!(default_heap(8 << 30, [u64::MAX; 2]), 4 << 30);
        assert_eq!(default_heap(8 << 30, [1 << 30, u64::MAX]), 256 << 20);
        assert_eq!(default_heap((8 << 30) + 12345, [u64::MAX; 2]) % HUGE, 0);
    }
}
