//! Lists of keys, the newest first.

pub const LANES: usize = 8;

/// Make the key the newest of the first `room` keys of a list: where it was, None where it was not there and another
/// fell out. The list has whole lanes; what is not used is 0, which is no key.
#[inline(always)]
pub fn renew(list: &mut [u32], room: usize, key: u32) -> Option<usize> {
    let mut falling = key;
    for (at, lanes) in list.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
        let old = *lanes;
        let equal = (0..LANES).fold(0u32, |mask, lane| mask | u32::from(old[lane] == key) << lane);
        let place = equal.trailing_zeros() as usize; // 32 where it is not here
        for lane in 0..LANES {
            let newer = if lane == 0 { falling } else { old[lane - 1] };
            lanes[lane] = if lane <= place { newer } else { old[lane] };
        }
        falling = old[LANES - 1];
        if equal != 0 {
            return Some(at * LANES + place);
        }
    }
    list[room..].fill(0);
    None
}

#[inline(always)]
pub fn contains(list: &[u32], key: u32) -> bool {
    list.as_chunks::<LANES>()
        .0
        .iter()
        .any(|lanes| (0..LANES).fold(0u32, |mask, lane| mask | u32::from(lanes[lane] == key) << lane) != 0)
}
