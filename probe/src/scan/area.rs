//! One mapping of a process, from a line of /proc/PID/maps or smaps.

use crate::protocol::event::Range;

/// A mapping: its addresses, whether it is shared, and what it maps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Area {
    pub range: Range,
    pub shared: bool,
    /// `rwxp` as in the line.
    pub permissions: String,
    pub offset: u64,
    pub inode: u64,
    /// `major:minor` of the file's device as in the line, e.g. `00:01`.
    pub device: String,
    pub name: String,
}

impl Area {
    /// Read `start-end perms offset dev inode  name`; None when `line` is not of that form (a field of smaps).
    pub fn parse(line: &str) -> Option<Self> {
        let (addresses, rest) = line.split_once(' ')?;
        let (start, end) = addresses.split_once('-')?;
        let range = Range { start: u64::from_str_radix(start, 16).ok()?, end: u64::from_str_radix(end, 16).ok()? };
        if range.end < range.start {
            return None;
        }
        let (permissions, rest) = rest.split_once(' ')?;
        let (offset, rest) = rest.split_once(' ')?;
        let (device, rest) = rest.split_once(' ')?;
        let name = rest.trim_start_matches(|letter: char| letter.is_ascii_digit());
        Some(Self {
            range,
            shared: permissions.ends_with('s'),
            permissions: permissions.into(),
            offset: u64::from_str_radix(offset, 16).ok()?,
            inode: rest[..rest.len() - name.len()].parse().ok()?,
            device: device.into(),
            name: name.trim_start().into(),
        })
    }

    /// The parts of this mapping that are wanted: all of it, or where it meets `ranges`.
    pub fn wanted(&self, ranges: Option<&[Range]>) -> Vec<Range> {
        let Some(ranges) = ranges else {
            return vec![self.range];
        };
        let meet =
            |range: &Range| Range { start: range.start.max(self.range.start), end: range.end.min(self.range.end) };
        ranges.iter().map(meet).filter(|part| part.start < part.end).collect()
    }
}

/// `ranges` sorted, with those that touch or overlap made one: so nothing is counted twice.
pub fn merged(ranges: &[Range]) -> Vec<Range> {
    let mut sorted: Vec<Range> = ranges.iter().copied().filter(|range| range.start < range.end).collect();
    sorted.sort_unstable_by_key(|range| range.start);
    let mut whole: Vec<Range> = Vec::with_capacity(sorted.len());
    for range in sorted {
        match whole.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => whole.push(range),
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    use crate::common::fuzz;

    #[test]
    fn lines_are_read() {
        let area = Area::parse("7f0000000000-7f0000200000 rw-s 00000000 00:01 2054    /memfd:a b (deleted)").unwrap();
        assert_eq!(area.range, Range { start: 0x7f00_0000_0000, end: 0x7f00_0020_0000 });
        assert!(area.shared);
        assert_eq!((area.permissions.as_str(), area.offset, area.inode), ("rw-s", 0, 2054));
        assert_eq!((area.device.as_str(), area.name.as_str()), ("00:01", "/memfd:a b (deleted)"));
        let area = Area::parse("7f0000000000-7f0000200000 rw-p 00000000 00:00 0 ").unwrap();
        assert!(!area.shared && area.name.is_empty());
    }

    #[test]
    fn fields_are_not_lines() {
        for line in ["Rss:                 100 kB", "VmFlags: rd wr mr mw me ac", "", "THPeligible:           0"] {
            assert_eq!(Area::parse(line), None, "{line}");
        }
    }

    #[test]
    fn ranges_are_cut_to_the_area() {
        let area = Area::parse("1000-5000 rw-p 00000000 00:00 0").unwrap();
        let range = |start, end| Range { start, end };
        assert_eq!(area.wanted(None), [range(0x1000, 0x5000)]);
        let wanted = [range(0, 0x2000), range(0x3000, 0x4000), range(0x5000, 0x6000)];
        assert_eq!(area.wanted(Some(&wanted)), [range(0x1000, 0x2000), range(0x3000, 0x4000)]);
    }

    #[test]
    fn overlapping_ranges_become_one() {
        let range = |start, end| Range { start, end };
        let mixed = [range(8, 9), range(1, 4), range(2, 3), range(4, 5), range(7, 7)];
        assert_eq!(merged(&mixed), [range(1, 5), range(8, 9)]);
    }

    proptest! {
        #![proptest_config(fuzz::config())]

        #[test]
        fn merged_ranges_are_apart_and_in_order(ranges in prop::collection::vec(any::<(u64, u64)>(), 0..9), shift in 0..64u32) {
            let ranges: Vec<Range> =
                ranges.iter().map(|(start, end)| Range { start: start >> shift, end: end >> shift }).collect();
            let whole = merged(&ranges);
            prop_assert!(whole.iter().all(|range| range.start < range.end));
            prop_assert!(whole.windows(2).all(|pair| pair[0].end < pair[1].start));
        }
    }
}
