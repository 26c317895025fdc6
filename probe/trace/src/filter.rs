//! The filter: of all accesses those that a fully associative LRU TLB of 16 entries of 4 KiB misses.
//!
//! Every fully associative LRU TLB of at least 16 entries, of any page size, hits in all other accesses, and can be
//! simulated exactly from what is passed on: a page, and the place of the page that it displaces. A page of the filter
//! keeps its place; its age is the access that left it last.

/// The power of two of the pages that are filtered.
pub const BASE: u32 = 12;
pub const SLOTS: usize = 16;
/// A record: a page, and in the low bits the place that it takes.
pub const SLOT_BITS: u32 = 4;
const ADDRESS_BITS: u32 = 48;
const HINTS: usize = 256;
const NONE: u64 = u64::MAX;
const ROOM: usize = 4096;

pub struct Filter {
    last: u64,
    pub accesses: u64,
    pages: [u64; SLOTS],
    ages: [u64; SLOTS],
    /// Where a page was seen last, by some of its bits; it may be wrong.
    hints: [u8; HINTS],
    pub records: Vec<u64>,
    look: fn(&mut Filter, u64) -> bool,
}

/// The page of an address; tags of pointers above 48 bits do not count.
#[inline(always)]
pub fn page(address: u64) -> u64 {
    (address << (64 - ADDRESS_BITS)) >> (64 - ADDRESS_BITS + BASE)
}

#[inline(always)]
fn hint(page: u64) -> usize {
    ((page ^ (page >> 8)) as usize) % HINTS
}

impl Filter {
    pub fn new() -> Filter {
        Filter {
            last: NONE,
            accesses: 0,
            pages: [NONE; SLOTS],
            ages: [0; SLOTS],
            hints: [0; HINTS],
            records: Vec::with_capacity(ROOM),
            look: look(),
        }
    }

    /// An access to a page. True where the records have to be taken away before the next one.
    #[inline(always)]
    pub fn access(&mut self, page: u64) -> bool {
        self.accesses += 1;
        if page == self.last {
            return false;
        }
        self.last = page;
        let slot = self.hints[hint(page)] as usize % SLOTS;
        if self.pages[slot] == page {
            self.ages[slot] = self.accesses;
            return false;
        }
        (self.look)(self, page)
    }

    #[inline(always)]
    fn find(&mut self, page: u64) -> bool {
        let found = equal(&self.pages, page);
        let slot = if found != 0 {
            found.trailing_zeros() as usize
        } else {
            let least = self.ages.iter().fold(u64::MAX, |least, &age| least.min(age));
            let oldest = equal(&self.ages, least).trailing_zeros() as usize % SLOTS;
            self.pages[oldest] = page;
            self.records.push(page << SLOT_BITS | oldest as u64);
            oldest
        };
        self.ages[slot] = self.accesses;
        self.hints[hint(page)] = slot as u8;
        self.records.len() == ROOM
    }
}

/// Where the value stands, a bit each.
#[inline(always)]
fn equal(values: &[u64; SLOTS], value: u64) -> u32 {
    values.iter().enumerate().fold(0, |mask, (at, &each)| mask | u32::from(each == value) << at)
}

/// The same code, compiled for what this processor has.
fn look() -> fn(&mut Filter, u64) -> bool {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi1") && is_x86_feature_detected!("bmi2") {
        // SAFETY: the features are there.
        return |filter, page| unsafe { find_avx2(filter, page) };
    }
    Filter::find
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2")]
fn find_avx2(filter: &mut Filter, page: u64) -> bool {
    filter.find(page)
}
