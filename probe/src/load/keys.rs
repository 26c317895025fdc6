//! Which keys are asked for, and how they are called.

use std::str::FromStr;

use crate::common::random::SplitMix64;

/// The most digits that a number below 2^64 has.
pub const MOST_DIGITS: usize = 20;

/// A text with one number in it, as `memtier-%d` or `key:%012d`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyName {
    pub before: String,
    pub after: String,
    /// Digits at least, filled with zeros.
    width: usize,
}

impl FromStr for KeyName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "write a text with one %d or %012d in it, without blanks".to_string();
        let (before, rest) = text.split_once('%').ok_or_else(wrong)?;
        let (digits, after) = rest.split_once('d').ok_or_else(wrong)?;
        let is_width = digits.is_empty() || digits.strip_prefix('0').is_some_and(|rest| rest.parse::<usize>().is_ok());
        let width = digits.parse().unwrap_or(1);
        let is_plain = |part: &str| part.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'%');
        if !is_width || width > MOST_DIGITS || !is_plain(before) || !is_plain(after) {
            return Err(wrong());
        }
        Ok(Self { before: before.into(), after: after.into(), width })
    }
}

impl KeyName {
    /// Digits of the number of `key`, zeros in front included.
    pub fn digits(&self, key: u64) -> usize {
        self.width.max(key.checked_ilog10().map_or(1, |power| power as usize + 1))
    }

    /// Bytes of the whole name of `key`.
    pub fn length(&self, key: u64) -> usize {
        self.before.len() + self.digits(key) + self.after.len()
    }

    /// Bytes of the longest name asked for: absent keys have numbers from `keys` to twice as many.
    pub fn longest(&self, keys: u64) -> usize {
        self.length(2 * keys)
    }
}

const PAIRS: &[u8; 200] =
    b"0001020304050607080910111213141516171819202122232425262728293031323334353637383940414243444546474849\
5051525354555657585960616263646566676869707172737475767778798081828384858687888990919293949596979899";

/// Write `number` in decimal over all of `place`, zeros in front.
pub fn write_digits(place: &mut [u8], mut number: u64) {
    let mut at = place.len();
    while at >= 2 {
        let pair = 2 * (number % 100) as usize;
        number /= 100;
        at -= 2;
        place[at..at + 2].copy_from_slice(&PAIRS[pair..pair + 2]);
    }
    if at == 1 {
        place[0] = b'0' + (number % 10) as u8;
    }
}

/// The law by which keys are asked for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Popularity {
    Uniform,
    /// The r-th key is asked for in proportion to r^-s.
    Zipf(f64),
    /// Normal around the middle key, with this share of the key space as standard deviation; outside is drawn again.
    Gauss(f64),
}

impl FromStr for Popularity {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let positive = |text: &str| text.parse().ok().filter(|value: &f64| *value > 0.0 && *value <= 100.0);
        let found = match text.split_once(':') {
            None if text == "uniform" => Some(Self::Uniform),
            None if text == "gauss" => Some(Self::Gauss(1.0 / 6.0)),
            Some(("zipf", exponent)) => positive(exponent).map(Self::Zipf),
            Some(("gauss", share)) => positive(share).map(Self::Gauss),
            _ => None,
        };
        found.ok_or_else(|| "write uniform, zipf:0.99, gauss or gauss:0.1".into())
    }
}

/// Draws keys below a number by their popularity.
#[derive(Debug, Clone)]
pub struct Keys {
    count: u64,
    law: Law,
}

#[derive(Debug, Clone)]
enum Law {
    Uniform,
    Zipf(Zipf, u64),
    Gauss(f64),
}

impl Keys {
    pub fn new(count: u64, popularity: Popularity) -> Self {
        let law = match popularity {
            Popularity::Uniform => Law::Uniform,
            Popularity::Zipf(exponent) => Law::Zipf(Zipf::new(count, exponent), scatter(count)),
            Popularity::Gauss(share) => Law::Gauss(share * count as f64),
        };
        Self { count, law }
    }

    pub fn draw(&self, random: &mut SplitMix64) -> u64 {
        match &self.law {
            Law::Uniform => random.below(self.count),
            Law::Zipf(zipf, factor) => {
                let rank = zipf.draw(random) - 1;
                (u128::from(rank) * u128::from(*factor) % u128::from(self.count)) as u64
            }
            Law::Gauss(deviation) => loop {
                let key = (self.count as f64 / 2.0 + deviation * normal(random)).floor();
                if key >= 0.0 && key < self.count as f64 {
                    break key as u64;
                }
            },
        }
    }
}

/// A factor that maps 0..count onto itself, so that popular keys do not lie beside each other: near count divided by
/// the golden ratio, and coprime to it.
fn scatter(count: u64) -> u64 {
    let start = (count as f64 * 0.618_033_988_749_895) as u64;
    (start.max(1)..).find(|factor| gcd(*factor, count) == 1).unwrap_or(1)
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// A number in [0, 1) of 53 bits.
fn unit(random: &mut SplitMix64) -> f64 {
    (random.draw() >> 11) as f64 / (1u64 << 53) as f64
}

/// Marsaglia's polar method (SIAM Review 6, 1964); the second number of each pair is not kept.
fn normal(random: &mut SplitMix64) -> f64 {
    loop {
        let (x, y) = (2.0 * unit(random) - 1.0, 2.0 * unit(random) - 1.0);
        let s = x * x + y * y;
        if s > 0.0 && s < 1.0 {
            return x * (-2.0 * s.ln() / s).sqrt();
        }
    }
}

/// Zipf's law over 1..=count by rejection-inversion (Hörmann and Derflinger, ACM TOMACS 6(3), 1996): no table, and a
/// cost that does not depend on the count.
#[derive(Debug, Clone)]
struct Zipf {
    count: f64,
    exponent: f64,
    lowest: f64,
    highest: f64,
    shortcut: f64,
}

impl Zipf {
    fn new(count: u64, exponent: f64) -> Self {
        let mut zipf = Self { count: count as f64, exponent, lowest: 0.0, highest: 0.0, shortcut: 0.0 };
        zipf.lowest = zipf.integral(1.5) - 1.0;
        zipf.highest = zipf.integral(zipf.count + 0.5);
        zipf.shortcut = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.density(2.0));
        zipf
    }

    fn draw(&self, random: &mut SplitMix64) -> u64 {
        loop {
            let u = self.highest + unit(random) * (self.lowest - self.highest);
            let x = self.inverse(u);
            let k = x.round().clamp(1.0, self.count);
            if k - x <= self.shortcut || u >= self.integral(k + 0.5) - self.density(k) {
                return k as u64;
            }
        }
    }

    fn density(&self, x: f64) -> f64 {
        (-self.exponent * x.ln()).exp()
    }

    /// The integral of the density; continuous in the exponent at 1, where it is the logarithm.
    fn integral(&self, x: f64) -> f64 {
        let log = x.ln();
        let t = (1.0 - self.exponent) * log;
        log * if t.abs() > 1e-8 { t.exp_m1() / t } else { 1.0 + t / 2.0 }
    }

    fn inverse(&self, x: f64) -> f64 {
        let t = (x * (1.0 - self.exponent)).max(-1.0);
        (x * if t.abs() > 1e-8 { t.ln_1p() / t } else { 1.0 - t / 2.0 }).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(popularity: Popularity, keys: u64, draws: u64) -> Vec<f64> {
        let law = Keys::new(keys, popularity);
        let mut random = SplitMix64::new(3);
        let mut counts = vec![0.0; keys as usize];
        (0..draws).for_each(|_| counts[law.draw(&mut random) as usize] += 1.0 / draws as f64);
        counts
    }

    #[test]
    fn names_have_a_number_of_a_fixed_or_free_width() {
        let name: KeyName = "memtier-%d".parse().unwrap();
        assert_eq!([0, 9, 10, 12345].map(|key| name.length(key)), [9, 9, 10, 13]);
        let name: KeyName = "key:%012d".parse().unwrap();
        assert_eq!((name.length(7), name.digits(1 << 40)), (16, 13));
        for text in ["key", "%s", "a %d", "%d%d", "%12d", "%099d"] {
            assert!(text.parse::<KeyName>().is_err(), "{text}");
        }
    }

    #[test]
    fn digits_fill_their_place() {
        for (width, number, text) in [(1, 7, "7"), (5, 123, "00123"), (4, 9876, "9876"), (3, 0, "000")] {
            let mut place = vec![0; width];
            write_digits(&mut place, number);
            assert_eq!(place, text.as_bytes());
        }
    }

    #[test]
    fn uniform_keys_are_alike() {
        assert!(counts(Popularity::Uniform, 10, 100_000).iter().all(|share| (share - 0.1).abs() < 0.01));
    }

    #[test]
    fn zipf_follows_its_law_also_at_exponent_1() {
        for exponent in [0.6, 0.99, 1.0, 1.5] {
            let mut found = counts(Popularity::Zipf(exponent), 100, 400_000);
            found.sort_by(|a, b| b.total_cmp(a));
            let total: f64 = (1..=100).map(|rank| f64::from(rank).powf(-exponent)).sum();
            for rank in [1, 2, 5, 20] {
                let due = f64::from(rank).powf(-exponent) / total;
                let share = found[rank as usize - 1];
                assert!((share / due - 1.0).abs() < 0.1, "exponent {exponent}, rank {rank}: {share} for {due}");
            }
        }
    }

    #[test]
    fn popular_keys_are_scattered_and_all_can_come() {
        for count in [1, 2, 10, 1000, 1 << 20] {
            assert_eq!(gcd(scatter(count), count), 1);
        }
        assert!(counts(Popularity::Zipf(0.5), 50, 100_000).iter().all(|share| *share > 0.0));
    }

    #[test]
    fn gauss_lies_around_the_middle() {
        let found = counts(Popularity::Gauss(0.1), 1000, 200_000);
        let mean: f64 = found.iter().enumerate().map(|(key, share)| key as f64 * share).sum();
        let variance: f64 = found.iter().enumerate().map(|(key, share)| (key as f64 - mean).powi(2) * share).sum();
        assert!((mean - 499.5).abs() < 2.0 && (variance.sqrt() - 100.0).abs() < 2.0, "{mean} {variance}");
    }
}
