//! Sizes as people and the Python side write them: `64k`, `2m`, `1g`, or a plain number of bytes (powers of 1,024).

/// Bytes in `text`.
pub fn parse(text: &str) -> Result<u64, String> {
    let lower = text.trim().to_ascii_lowercase();
    let body = lower.strip_suffix("ib").or_else(|| lower.strip_suffix('b')).unwrap_or(&lower);
    let (digits, shift) = match body.char_indices().last() {
        Some((at, 'k')) => (&body[..at], 10),
        Some((at, 'm')) => (&body[..at], 20),
        Some((at, 'g')) => (&body[..at], 30),
        Some((at, 't')) => (&body[..at], 40),
        _ => (body, 0),
    };
    let number: u64 = digits.parse().map_err(|_| format!("'{text}' is not a size; write for example 64k, 2m, 1g"))?;
    number.checked_mul(1 << shift).filter(|size| *size < 1 << 62).ok_or_else(|| format!("'{text}' is too large"))
}

/// `size` for people: the largest unit that divides it.
pub fn format(size: u64) -> String {
    [(40, "t"), (30, "g"), (20, "m"), (10, "k")]
        .into_iter()
        .find(|(shift, _)| size >= 1 << shift && size.is_multiple_of(1 << shift))
        .map_or_else(|| size.to_string(), |(shift, unit)| format!("{}{unit}", size >> shift))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    use crate::common::fuzz;

    #[test]
    fn reads_what_people_write() {
        for (text, bytes) in [("4096", 4096), ("64k", 65536), ("2M", 2 << 20), ("1GiB", 1 << 30), ("3 b", 3)] {
            assert_eq!(parse(&text.replace(' ', "")), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_no_size() {
        for text in ["", "k", "-1", "1.5k", "64x", "99999999999g"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn writes_what_it_reads() {
        for size in [1, 4096, 65536, 2 << 20, 1 << 30, 3 << 20, 4097] {
            assert_eq!(parse(&format(size)), Ok(size));
        }
    }

    proptest! {
        #![proptest_config(fuzz::config())]

        #[test]
        fn whatever_is_written_is_a_size_or_none(text in fuzz::broken_text(&["64k", "2MiB", "1g", "16t", "4096"])) {
            if let Ok(size) = parse(&text) {
                prop_assert_eq!(parse(&format(size)), Ok(size));
            }
        }
    }
}
