//! A set of physical pages (or of groups of them), by number: dense where a process has much memory, empty elsewhere.

use std::collections::HashMap;

/// Numbers in one chunk: 4 KiB of bits.
const CHUNK: u64 = 1 << 15;

#[derive(Debug, Default, Clone)]
pub struct PageSet {
    chunks: Vec<Box<[u64; (CHUNK / 64) as usize]>>,
    places: HashMap<u64, usize>,
    /// Chunk and place of the last look: neighbours are asked for one after the other.
    last: Option<(u64, usize)>,
}

impl PageSet {
    pub fn contains(&mut self, number: u64) -> bool {
        let key = number / CHUNK;
        let place = match self.last {
            Some((known, place)) if known == key => place,
            _ => match self.places.get(&key) {
                Some(place) => *place,
                None => return false,
            },
        };
        self.last = Some((key, place));
        self.chunks[place][(number % CHUNK / 64) as usize] & 1 << (number % 64) != 0
    }

    /// Add a number; whether it is new.
    pub fn insert(&mut self, number: u64) -> bool {
        let key = number / CHUNK;
        let place = match self.last {
            Some((known, place)) if known == key => place,
            _ => *self.places.entry(key).or_insert_with(|| {
                self.chunks.push(Box::new([0; (CHUNK / 64) as usize]));
                self.chunks.len() - 1
            }),
        };
        self.last = Some((key, place));
        let word = &mut self.chunks[place][(number % CHUNK / 64) as usize];
        let new = *word & 1 << (number % 64) == 0;
        *word |= 1 << (number % 64);
        new
    }

    /// Add `count` numbers from `first` on; how many of them are new.
    pub fn insert_all(&mut self, first: u64, count: u64) -> u64 {
        (first..first + count).filter(|number| self.insert(*number)).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    use crate::common::random::SplitMix64;

    #[test]
    fn it_is_a_set() {
        let (mut set, mut model, mut random) = (PageSet::default(), BTreeSet::new(), SplitMix64::new(3));
        for _ in 0..4000 {
            let bits = 10 + random.below(40);
            let number = random.below(1 << bits);
            assert_eq!(set.contains(number), model.contains(&number));
            assert_eq!(set.insert(number), model.insert(number));
            assert!(set.contains(number));
        }
        assert_eq!(set.insert_all(CHUNK - 2, 4) + set.insert_all(CHUNK - 3, 6), {
            let before = model.len();
            model.extend(CHUNK - 3..CHUNK + 3);
            (model.len() - before) as u64
        });
    }
}
