//! The values: size and content of a key's value are fixed functions of the seed and the key.
//!
//! So every attempt stores the same bytes, and a set writes what is there already: the fill never changes.

use std::str::FromStr;

use crate::common::random::{Digest, SplitMix64, mix, scale};

/// Where values begin in the pool of random bytes, which goes on for one largest value more. Small enough for a second
/// level cache: the generator is not to be what misses.
const POOL: u64 = 64 << 10;
const LARGEST: u64 = 64 << 20;

/// Sizes of values in bytes with their weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mix(Vec<(u32, u64)>);

impl FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let pair = |part: &str| {
            let (size, weight) = part.split_once(':').unwrap_or((part, "1"));
            let size = crate::common::size::parse(size)?;
            let weight: u64 = weight.parse().map_err(|_| format!("'{part}': write size:weight, as 64:30"))?;
            if size == 0 || size > LARGEST || weight == 0 || weight > 1 << 32 {
                return Err(format!("'{part}': sizes go from 1 to 64m, weights are whole and above 0"));
            }
            Ok((size as u32, weight))
        };
        text.split(',').map(pair).collect::<Result<_, String>>().map(Self)
    }
}

/// The value of one key: its class of size, its size, and where it begins in the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Payload {
    pub class: usize,
    pub size: u32,
    offset: u32,
}

/// All values, without holding them.
#[derive(Debug, Clone)]
pub struct Payloads {
    seed: u64,
    /// Upper ends of the classes in 32 bits of hash, and their sizes.
    classes: Vec<(u64, u32)>,
    pool: Vec<u8>,
}

impl Payloads {
    pub fn new(sizes: &Mix, seed: u64) -> Self {
        let total: u64 = sizes.0.iter().map(|(_, weight)| weight).sum();
        let mut sum = 0;
        let class = |(size, weight): &(u32, u64)| {
            sum += weight;
            (((u128::from(sum) << 32) / u128::from(total)) as u64, *size)
        };
        let classes: Vec<(u64, u32)> = sizes.0.iter().map(class).collect();
        let largest = classes.iter().map(|(_, size)| u64::from(*size)).max().unwrap_or(0);
        let mut random = SplitMix64::new(mix(seed));
        let pool = (0..(POOL + largest).div_ceil(8)).flat_map(|_| random.draw().to_le_bytes()).collect();
        Self { seed: mix(seed ^ 0x7061_796c_6f61_6473), classes, pool }
    }

    #[inline]
    pub fn of(&self, key: u64) -> Payload {
        let hash = mix(self.seed ^ key);
        let class = self.classes.iter().position(|(end, _)| hash >> 32 < *end).unwrap_or(self.classes.len() - 1);
        Payload { class, size: self.classes[class].1, offset: scale(hash << 32, POOL) as u32 }
    }

    #[inline]
    pub fn bytes(&self, payload: Payload) -> &[u8] {
        &self.pool[payload.offset as usize..payload.offset as usize + payload.size as usize]
    }

    /// The size of each class.
    pub fn sizes(&self) -> impl Iterator<Item = u32> {
        self.classes.iter().map(|(_, size)| *size)
    }

    /// A hash of the pool: with each key's place in it, a hash of all values.
    pub fn digest(&self) -> Digest {
        let mut digest = Digest::default();
        self.pool.chunks(8).for_each(|word| digest.add(word.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))));
        digest
    }

    /// Take the value of a key into a digest that began with the pool.
    pub fn add_to(&self, digest: &mut Digest, payload: Payload) {
        digest.add(u64::from(payload.offset) << 32 | u64::from(payload.size));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn default_mix() -> Mix {
        "16:56,64:30,128:12,1024:2".parse().unwrap()
    }

    #[test]
    fn mixes_are_read_or_refused() {
        assert_eq!("1k:1".parse(), Ok(Mix(vec![(1024, 1)])));
        assert_eq!("64".parse(), Ok(Mix(vec![(64, 1)])));
        for text in ["", "64:0", "0:1", "64:x", "1g:1"] {
            assert!(text.parse::<Mix>().is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_come_in_their_shares() {
        let payloads = Payloads::new(&default_mix(), 5);
        let mut counts = [0.0f64; 4];
        (0..100_000).for_each(|key| counts[payloads.of(key).class] += 1e-5);
        for (share, due) in counts.into_iter().zip([0.56, 0.30, 0.12, 0.02]) {
            assert!((share - due).abs() < 0.01, "{share} for {due}");
        }
    }

    #[test]
    fn a_key_has_the_same_value_for_the_same_seed_only() {
        let (a, b) = (Payloads::new(&default_mix(), 5), Payloads::new(&default_mix(), 5));
        let other = Payloads::new(&default_mix(), 6);
        assert!((0..1000).all(|key| a.bytes(a.of(key)) == b.bytes(b.of(key))));
        assert!((0..1000).any(|key| a.bytes(a.of(key)) != other.bytes(other.of(key))));
        assert_eq!(a.digest(), b.digest());
        assert_ne!(a.digest(), other.digest());
    }
}
