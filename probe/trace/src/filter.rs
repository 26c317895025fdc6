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
    /// The places, four bits each, that of the newest page lowest.
    order: u64,
    /// By some bits of a page: where one was seen last, and how many are here.
    hints: [u8; HINTS],
    counts: [u8; HINTS],
    pub records: Vec<u64>,
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
        let mut counts = [0; HINTS];
        counts[hint(NONE)] = SLOTS as u8;
        Filter {
            last: NONE,
            accesses: 0,
            pages: [NONE; SLOTS],
            order: 0x0123_4567_89ab_cdef,
            hints: [0; HINTS],
            counts,
            records: Vec::with_capacity(ROOM),
        }
    }

    /// An access to a page. True where it is the last one's.
    #[inline(always)]
    pub fn again(&mut self, page: u64) -> bool {
        self.accesses += 1;
        page == self.last
    }

    /// The access is to another page. True where the records have to be taken away before the next one.
    #[inline(always)]
    pub fn change(&mut self, page: u64) -> bool {
        self.last = page;
        let slot = self.hints[hint(page)] as usize % SLOTS;
        if self.pages[slot] == page {
            self.renew(slot);
            return false;
        }
        self.find(page)
    }

    /// Make the place the newest.
    #[inline(always)]
    fn renew(&mut self, slot: usize) {
        const ONES: u64 = 0x1111_1111_1111_1111;
        let zero_there = self.order ^ (slot as u64 * ONES);
        let at = (zero_there.wrapping_sub(ONES) & !zero_there & (ONES << 3)).trailing_zeros() - 3;
        let newer = (1 << at) - 1;
        self.order = (self.order & !(newer << SLOT_BITS | 15)) | (self.order & newer) << SLOT_BITS | slot as u64;
    }

    #[inline(never)]
    fn find(&mut self, page: u64) -> bool {
        let at = hint(page);
        let found = if self.counts[at] == 0 { None } else { self.pages.iter().position(|&each| each == page) };
        let slot = found.unwrap_or_else(|| {
            let oldest = (self.order >> 60) as usize;
            self.counts[hint(self.pages[oldest])] -= 1;
            self.counts[at] += 1;
            self.pages[oldest] = page;
            self.records.push(page << SLOT_BITS | oldest as u64);
            oldest
        });
        self.renew(slot);
        self.hints[at] = slot as u8;
        self.records.len() == ROOM
    }
}
