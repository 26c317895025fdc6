//! Times as they are written on the command line.

use std::time::Duration;

/// A number with its unit, as 250us.
pub fn nanoseconds(text: &str) -> Option<u64> {
    let units = [("us", 1e3), ("ms", 1e6), ("s", 1e9)];
    let (unit, factor) = units.into_iter().find(|(unit, _)| text.ends_with(unit))?;
    let number: f64 = text.strip_suffix(unit)?.parse().ok()?;
    (number.is_finite() && number >= 0.0).then_some((number * factor) as u64)
}

/// Seconds, as 0.5 or 0.5s.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let number: Option<f64> = text.strip_suffix('s').unwrap_or(text).parse().ok();
    number
        .filter(|number| (0.0..=86_400.0).contains(number))
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "give seconds, from 0 to 86400".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    use crate::common::fuzz;

    #[test]
    fn times_are_read() {
        assert_eq!((seconds("0.5"), seconds("2s")), (Ok(Duration::from_millis(500)), Ok(Duration::from_secs(2))));
        assert!(seconds("-1").is_err() && seconds("86401").is_err());
        assert_eq!(
            (nanoseconds("1ms"), nanoseconds("0.5s"), nanoseconds("1")),
            (Some(1_000_000), Some(500_000_000), None)
        );
    }

    proptest! {
        #![proptest_config(fuzz::config())]

        #[test]
        fn whatever_is_written_is_a_time_or_refused(text in fuzz::broken_text(&["250us", "0.5s", "1e3"])) {
            let _ = (seconds(&text), nanoseconds(&text));
        }
    }
}
