//! Inputs that nobody wrote, for the parsers: what is read in earnest, broken, and bytes of nothing.
//!
//! Each fuzzer holds a parser to one property: it ends, without a panic and without an overflow (tests are built with
//! overflow checks). `cargo test` draws some hundred inputs for each, the same every time; HUGEWISE_FUZZ=N draws N new
//! ones (`long`: 10,000). What once broke a parser is kept by proptest in `proptest-regressions/`, and tried first.

use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, RngSeed};

/// What parsers have stumbled over.
const HOSTILE: [&str; 24] = [
    "",
    "0",
    "-1",
    "18446744073709551615",
    "18446744073709551616",
    "9223372036854775808",
    "99999999999999999999999999",
    "1e400",
    "nan",
    "\0",
    "\u{661}",
    "\u{2028}",
    "\x1b[2J",
    "ffffffffffffffff",
    "fffffffffffff000",
    " ",
    "\n",
    "\t",
    ":",
    "[[[[[[[[[[[[[[[[",
    "{\"a\":",
    "\\ud800",
    "kB",
    "(",
];

pub fn config() -> Config {
    match std::env::var("HUGEWISE_FUZZ").as_deref() {
        Err(_) | Ok("" | "0") => Config { cases: 256, rng_seed: RngSeed::Fixed(1), ..Config::default() },
        Ok("long") => Config::with_cases(10_000),
        Ok(cases) => Config::with_cases(cases.parse().expect("HUGEWISE_FUZZ is a number or `long`")),
    }
}

/// One of `whole` with up to six faults in it, or bytes of nothing.
pub fn broken(whole: &'static [&'static str]) -> impl Strategy<Value = Vec<u8>> {
    let fault = (any::<u8>(), any::<Index>(), any::<Index>(), select(&HOSTILE[..]));
    let faults = prop::collection::vec(fault, 0..6);
    let made = (select(whole), faults).prop_map(|(whole, faults)| {
        let mut words = words(whole.as_bytes());
        for (deed, here, there, hostile) in &faults {
            let (here, there) = (here.index(words.len()), there.index(words.len()));
            match deed % 6 {
                0 => words[here] = Vec::new(),
                1 => words.insert(here, words[there].clone()),
                2 => words.swap(here, there),
                3 => words[here] = hostile.as_bytes().to_vec(),
                4 => words.truncate(here + 1),
                _ => words[here].iter_mut().for_each(|byte| *byte ^= *deed),
            }
        }
        words.concat()
    });
    prop_oneof![6 => made, 1 => prop::collection::vec(any::<u8>(), 0..200)]
}

/// The same as text.
pub fn broken_text(whole: &'static [&'static str]) -> impl Strategy<Value = String> {
    broken(whole).prop_map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// Letters and digits together, everything else alone.
fn words(text: &[u8]) -> Vec<Vec<u8>> {
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric();
    text.chunk_by(|left, right| is_word(left) && is_word(right)).map(<[u8]>::to_vec).chain([Vec::new()]).collect()
}
