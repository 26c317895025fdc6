//! Where a lane's operations come from: every key once, or the mix of the timed phase.

use crate::common::random::{Digest, SplitMix64};
use crate::load::keys::Keys;

/// Draws of a lane that its digest covers.
pub const DIGESTED: u64 = 1024;

/// What is asked of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Set,
    /// The key is there.
    Get,
    /// The key was never stored.
    Absent,
}

/// One operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Op {
    pub key: u64,
    pub kind: Kind,
}

/// Operations in order.
pub enum Source {
    /// `kind` on each key from `next` to before `end`.
    Each {
        kind: Kind,
        next: u64,
        end: u64,
    },
    Drawn(Box<Drawn>),
}

impl Source {
    pub fn nothing() -> Self {
        Self::Each { kind: Kind::Get, next: 0, end: 0 }
    }

    /// The next operation; None when there are no more.
    #[inline]
    pub fn draw(&mut self) -> Option<Op> {
        match self {
            Self::Each { next, end, .. } if next == end => None,
            Self::Each { kind, next, .. } => {
                *next += 1;
                Some(Op { key: *next - 1, kind: *kind })
            }
            Self::Drawn(drawn) => drawn.draw(),
        }
    }

    /// A hash of the first operations drawn; None where fewer were drawn than that.
    pub fn digest(&self) -> Option<Digest> {
        match self {
            Self::Drawn(drawn) if drawn.left == 0 || drawn.count >= DIGESTED => Some(drawn.digest),
            _ => None,
        }
    }
}

/// The shares of the mix.
#[derive(Debug, Clone)]
pub struct Shares {
    pub keys: Keys,
    /// Keys that are there; as many after them never are.
    pub count: u64,
    pub sets: f64,
    pub hits: f64,
}

/// Sets and gets in random order. A set goes to a key that is there, so that the fill does not grow.
pub struct Drawn {
    random: SplitMix64,
    shares: Shares,
    left: u64,
    count: u64,
    digest: Digest,
}

impl Drawn {
    /// At most `limit` operations.
    pub fn new(seed: u64, shares: Shares, limit: u64) -> Self {
        Self { random: SplitMix64::new(seed), shares, left: limit, count: 0, digest: Digest::default() }
    }

    #[inline]
    fn draw(&mut self) -> Option<Op> {
        self.left = self.left.checked_sub(1)?;
        let random = &mut self.random;
        let kind = if random.happens(self.shares.sets) {
            Kind::Set
        } else if random.happens(self.shares.hits) {
            Kind::Get
        } else {
            Kind::Absent
        };
        let key = match kind {
            Kind::Absent => self.shares.count + random.below(self.shares.count),
            _ => self.shares.keys.draw(random),
        };
        if self.count < DIGESTED {
            self.count += 1;
            self.digest.add(key << 2 | kind as u64);
        }
        Some(Op { key, kind })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::keys::Popularity;

    fn drawn(seed: u64, limit: u64) -> Source {
        let shares = Shares { keys: Keys::new(100, Popularity::Uniform), count: 100, sets: 0.1, hits: 0.9 };
        Source::Drawn(Box::new(Drawn::new(seed, shares, limit)))
    }

    fn all(mut source: Source) -> Vec<Op> {
        std::iter::from_fn(|| source.draw()).collect()
    }

    #[test]
    fn the_mix_has_its_shares_and_its_keys() {
        let ops = all(drawn(7, 100_000));
        let share = |kind| ops.iter().filter(|op| op.kind == kind).count() as f64 / ops.len() as f64;
        assert_eq!(ops.len(), 100_000);
        assert!((share(Kind::Set) - 0.1).abs() < 0.005);
        assert!((share(Kind::Absent) - 0.09).abs() < 0.005);
        assert!(ops.iter().all(|op| (op.key >= 100) == (op.kind == Kind::Absent) && op.key < 200));
    }

    #[test]
    fn a_seed_is_a_sequence_and_its_digest() {
        assert_eq!(all(drawn(7, 5000)), all(drawn(7, 5000)));
        let digest = |seed, limit, draws| {
            let mut source = drawn(seed, limit);
            (0..draws).for_each(|_| assert!(source.draw().is_some()));
            source.digest()
        };
        assert_eq!(digest(7, 5000, 1024), digest(7, 5000, 4000));
        assert_ne!(digest(7, 5000, 1024), digest(8, 5000, 1024));
        assert_eq!(digest(7, 5000, 1023), None);
        assert!(digest(7, 10, 10).is_some());
    }

    #[test]
    fn each_key_comes_once() {
        let keys: Vec<u64> = all(Source::Each { kind: Kind::Set, next: 3, end: 6 }).iter().map(|op| op.key).collect();
        assert_eq!(keys, [3, 4, 5]);
        assert!(all(Source::nothing()).is_empty());
    }
}
