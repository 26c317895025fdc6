//! Which memory was touched, and which of it was walked to: by regions of 64 KiB.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::ask::Size;
use crate::filter::BASE;

const REGION: u32 = 16;
const PAGES: u64 = 1 << (REGION - BASE);

#[derive(Default, Clone, Copy)]
struct Region {
    touched: u16,
    walks: u64,
}

#[derive(Default)]
pub struct Memory {
    regions: HashMap<u64, Region, BuildHasherDefault<Multiplied>>,
}

/// A hash of numbers: nobody chooses addresses to be slow.
#[derive(Default)]
pub struct Multiplied(u64);

impl Hasher for Multiplied {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    fn write_u64(&mut self, number: u64) {
        let spread = (self.0 ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = spread ^ (spread >> 32);
    }
}

impl Memory {
    #[inline(always)]
    pub fn touch(&mut self, page: u64) {
        self.regions.entry(page / PAGES).or_default().touched |= 1 << (page % PAGES);
    }

    #[inline(always)]
    pub fn walked(&mut self, page: u64) {
        self.regions.entry(page / PAGES).or_default().walks += 1;
    }

    pub fn forget_walks(&mut self) {
        self.regions.values_mut().for_each(|region| region.walks = 0);
    }

    pub fn add(&mut self, other: &Memory) {
        for (&at, region) in &other.regions {
            let mine = self.regions.entry(at).or_default();
            mine.touched |= region.touched;
            mine.walks += region.walks;
        }
    }

    /// Pages of 4 KiB that were touched.
    pub fn touched(&self) -> u64 {
        self.regions.values().map(|region| u64::from(region.touched.count_ones())).sum()
    }

    /// Pages of 2^`shift` bytes that were touched, and the fewest that have 90% of the walks.
    pub fn size(&self, shift: u32) -> Size {
        let mut pages: HashMap<u64, u64> = HashMap::new();
        for (&at, region) in &self.regions {
            *pages.entry(at >> (shift - REGION)).or_default() += region.walks;
        }
        let mut walks: Vec<u64> = pages.values().copied().collect();
        walks.sort_unstable_by_key(|&each| std::cmp::Reverse(each));
        let all: u128 = walks.iter().map(|&each| u128::from(each)).sum();
        let mut sum = 0u128;
        let enough = walks.iter().position(|&each| {
            sum += u128::from(each);
            10 * sum >= 9 * all
        });
        let needed = enough.filter(|_| all > 0).map(|at| at as u64 + 1);
        Size { shift, touched: pages.len() as u64, needed }
    }
}
