//! A range of a mosaic, as it is written.

use super::Pages;
use crate::text;

/// Where a range begins or ends: thousandths of a percent of the heap, or bytes from its begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edge {
    Share(u64),
    Bytes(u64),
}

pub const WHOLE: u64 = 100_000;

impl Edge {
    /// In bytes, on a border of `unit` bytes.
    pub fn at(self, heap: u64, unit: u64) -> u64 {
        match self {
            Edge::Bytes(bytes) => bytes,
            Edge::Share(share) => {
                let exact = u128::from(heap) * u128::from(share) / u128::from(WHOLE);
                ((exact as u64 + unit / 2) / unit * unit).min(heap / unit * unit)
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    pub from: Edge,
    pub to: Edge,
    pub pages: Pages,
}

/// `FROM-TO=PAGES`; None for anything else.
pub fn range(word: &[u8]) -> Option<Range> {
    let equals = word.iter().position(|&byte| byte == b'=')?;
    let (edges, pages) = (&word[..equals], Pages::of(&word[equals + 1..])?);
    let dash = edges.iter().position(|&byte| byte == b'-')?;
    let (from, to) = (&edges[..dash], &edges[dash + 1..]);
    let (from, to) = match to.strip_suffix(b"%") {
        Some(to) => (Edge::Share(share(from)?), Edge::Share(share(to)?)),
        None => (Edge::Bytes(text::size(from)?), Edge::Bytes(text::size(to)?)),
    };
    Some(Range { from, to, pages })
}

/// Thousandths of a percent.
fn share(word: &[u8]) -> Option<u64> {
    let (whole, part) = match word.iter().position(|&byte| byte == b'.') {
        Some(dot) => (&word[..dot], &word[dot + 1..]),
        None => (word, &b"0"[..]),
    };
    if part.is_empty() || part.len() > 3 || !part.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let thousandths = part.iter().chain(b"000").take(3).fold(0u64, |sum, &byte| 10 * sum + u64::from(byte - b'0'));
    let found = text::number(whole).filter(|&percent| percent <= 100)? * 1000 + thousandths;
    (found <= WHOLE).then_some(found)
}

/// Whether one lies before the other, or at it where that will do; not of two kinds.
pub fn follows(before: &Edge, after: &Edge, or_meets: bool) -> bool {
    match (before, after) {
        (Edge::Share(one), Edge::Share(other)) | (Edge::Bytes(one), Edge::Bytes(other)) => {
            one < other || (or_meets && one == other)
        }
        _ => false,
    }
}
