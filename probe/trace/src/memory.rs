//! Which memory was touched, and which of it was walked to: by regions of 64 KiB.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::ask::Size;
use crate::filter::BASE;

const REGION: u32 = 16;
/// The power of two of pages in a region.
const PAGES: u32 = REGION - BASE;

/// A page of 4 KiB, and its number when regions are numbered as they are met.
#[derive(Default, Clone, Copy)]
pub struct Page {
    pub number: u64,
    met: u32,
}

impl Page {
    /// The key, which is not 0, of the entry of 2^`shift` pages that has this one.
    #[inline(always)]
    pub fn key(self, shift: u32) -> u32 {
        1 + if shift <= PAGES { self.met >> shift } else { (self.number >> shift) as u32 }
    }
}

#[derive(Default, Clone, Copy)]
struct Region {
    touched: u16,
    walks: u64,
}

#[derive(Default)]
pub struct Memory {
    met: HashMap<u64, u32, BuildHasherDefault<Multiplied>>,
    regions: Vec<Region>,
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
    pub fn touch(&mut self, number: u64) -> Page {
        let at = self.region(number >> PAGES);
        let within = number as u32 % (1 << PAGES);
        self.regions[at as usize].touched |= 1 << within;
        Page { number, met: at << PAGES | within }
    }

    #[inline(always)]
    fn region(&mut self, number: u64) -> u32 {
        *self.met.entry(number).or_insert_with(|| {
            self.regions.push(Region::default());
            self.regions.len() as u32 - 1
        })
    }

    #[inline(always)]
    pub fn walked(&mut self, page: Page) {
        self.regions[(page.met >> PAGES) as usize].walks += 1;
    }

    pub fn forget_walks(&mut self) {
        self.regions.iter_mut().for_each(|region| region.walks = 0);
    }

    pub fn add(&mut self, other: &Memory) {
        for (&number, &at) in &other.met {
            let (mine, its) = (self.region(number) as usize, other.regions[at as usize]);
            self.regions[mine].touched |= its.touched;
            self.regions[mine].walks += its.walks;
        }
    }

    /// Pages of 4 KiB that were touched.
    pub fn touched(&self) -> u64 {
        self.regions.iter().map(|region| u64::from(region.touched.count_ones())).sum()
    }

    /// Pages of 2^`shift` bytes that were touched, and the fewest that have 90% of the walks.
    pub fn size(&self, shift: u32) -> Size {
        let mut pages: HashMap<u64, u64> = HashMap::new();
        for (&number, &at) in &self.met {
            *pages.entry(number >> (shift - REGION)).or_default() += self.regions[at as usize].walks;
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
