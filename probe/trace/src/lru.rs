//! The lower part of a fully associative LRU TLB: what is in it but not in the filter.

/// The most entries: places are numbers of 8 bits.
pub const MOST: usize = 250;
const NIL: u8 = u8::MAX;
const BUCKETS: usize = 256;

#[derive(Clone, Copy)]
struct Node {
    key: u64,
    newer: u8,
    older: u8,
    /// The next in its bucket, or among the free.
    chain: u8,
}

pub struct Lru {
    nodes: Vec<Node>,
    buckets: [u8; BUCKETS],
    newest: u8,
    oldest: u8,
    free: u8,
    pub length: usize,
}

#[inline(always)]
fn bucket(key: u64) -> usize {
    (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as usize
}

impl Lru {
    pub fn new(entries: usize) -> Lru {
        let next = |at: usize| if at + 1 < entries { (at + 1) as u8 } else { NIL };
        let nodes = (0..entries).map(|at| Node { key: 0, newer: NIL, older: NIL, chain: next(at) }).collect();
        Lru { nodes, buckets: [NIL; BUCKETS], newest: NIL, oldest: NIL, free: 0, length: 0 }
    }

    /// Take the key out; false where it is not there.
    #[inline(always)]
    pub fn take(&mut self, key: u64) -> bool {
        let place = bucket(key);
        let (mut before, mut at) = (NIL, self.buckets[place]);
        while at != NIL {
            let node = self.nodes[at as usize];
            if node.key == key {
                self.unlink(place, before, at);
                return true;
            }
            (before, at) = (at, node.chain);
        }
        false
    }

    #[inline(always)]
    fn unlink(&mut self, place: usize, before: u8, at: u8) {
        let node = self.nodes[at as usize];
        match before {
            NIL => self.buckets[place] = node.chain,
            before => self.nodes[before as usize].chain = node.chain,
        }
        match node.newer {
            NIL => self.newest = node.older,
            newer => self.nodes[newer as usize].older = node.older,
        }
        match node.older {
            NIL => self.oldest = node.newer,
            older => self.nodes[older as usize].newer = node.newer,
        }
        self.nodes[at as usize].chain = self.free;
        self.free = at;
        self.length -= 1;
    }

    /// Add a key that is not there, as the newest. There must be room.
    #[inline(always)]
    pub fn push(&mut self, key: u64) {
        let (at, place) = (self.free, bucket(key));
        self.free = self.nodes[at as usize].chain;
        self.nodes[at as usize] = Node { key, newer: NIL, older: self.newest, chain: self.buckets[place] };
        self.buckets[place] = at;
        match self.newest {
            NIL => self.oldest = at,
            newest => self.nodes[newest as usize].newer = at,
        }
        self.newest = at;
        self.length += 1;
    }

    /// Take the oldest out.
    #[inline(always)]
    pub fn drop_oldest(&mut self) {
        let key = self.nodes[self.oldest as usize].key;
        self.take(key);
    }
}
