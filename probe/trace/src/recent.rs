//! Lists of keys, the newest first. A list with room for fewer keys is the first part of a longer one.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

pub const LANES: usize = 16;

/// Keys that are compared and moved at once. 0 is no key.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
pub struct Lanes(pub [u32; LANES]);

/// All bits of the lanes that move where the key stood in one of them, or in none.
const MOVING: [[u32; LANES]; LANES + 1] = {
    let mut moving = [[0; LANES]; LANES + 1];
    let mut at = 0;
    while at < LANES * (LANES + 1) {
        moving[at / LANES][at % LANES] = if at % LANES <= at / LANES { u32::MAX } else { 0 };
        at += 1;
    }
    moving
};

/// Lanes for a list of so many keys.
pub fn lanes(keys: usize) -> Vec<Lanes> {
    vec![Lanes::default(); keys.div_ceil(LANES)]
}

/// Add a key before all others, which move up to where `until` stands; that key falls out, or the last one. Returns where
/// it stood; beyond the list where it was not there.
#[inline(always)]
pub fn push(list: &mut [Lanes], key: u32, until: u32) -> usize {
    let mut falling = key;
    for (at, lanes) in list.iter_mut().enumerate() {
        let last = lanes.0[LANES - 1];
        let place = (equal(lanes, until) | 1 << LANES).trailing_zeros() as usize;
        shift(lanes, falling, &MOVING[place]);
        if place < LANES {
            return at * LANES + place;
        }
        falling = last;
    }
    list.len() * LANES
}

/// Move the lanes that `moving` has to the next one, and the key to the first.
#[inline(always)]
fn shift(lanes: &mut Lanes, key: u32, moving: &[u32; LANES]) {
    let old = lanes.0;
    for lane in 0..LANES {
        let newer = if lane == 0 { key } else { old[lane - 1] };
        lanes.0[lane] = (newer & moving[lane]) | (old[lane] & !moving[lane]);
    }
}

/// How many stand before a key, empty places not counted; None where it is not there.
#[inline(always)]
pub fn before(list: &[Lanes], key: u32) -> Option<usize> {
    let at = list.iter().position(|lanes| equal(lanes, key) != 0)?;
    let taken = |lanes: &Lanes| !equal(lanes, 0) & ((1 << LANES) - 1);
    let within = taken(&list[at]) & ((1 << equal(&list[at], key).trailing_zeros()) - 1);
    Some(list[..at].iter().map(|lanes| taken(lanes).count_ones()).sum::<u32>() as usize + within.count_ones() as usize)
}

/// Where the key stands, a bit for each lane.
#[cfg(not(target_arch = "x86_64"))]
pub fn equal(lanes: &Lanes, key: u32) -> u32 {
    lanes.0.iter().enumerate().fold(0, |mask, (at, &each)| mask | u32::from(each == key) << at)
}

/// The same by instructions that every x86-64 has: the compiler does not make them of that.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub fn equal(lanes: &Lanes, key: u32) -> u32 {
    // SAFETY: each reads four lanes.
    unsafe {
        let key = _mm_set1_epi32(key as i32);
        let same = |at: usize| _mm_cmpeq_epi32(key, _mm_load_si128(lanes.0[at..at + 4].as_ptr().cast()));
        let all = _mm_packs_epi16(_mm_packs_epi32(same(0), same(4)), _mm_packs_epi32(same(8), same(12)));
        _mm_movemask_epi8(all) as u32
    }
}
