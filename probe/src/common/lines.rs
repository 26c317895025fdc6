//! Lines out of chunks, with a limit.

/// A line without its newline, or what became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    Whole(Vec<u8>),
    /// It was longer than the limit, and is lost.
    TooLong,
}

/// Puts lines together.
pub struct Lines {
    limit: usize,
    rest: Vec<u8>,
    is_lost: bool,
}

impl Lines {
    /// `limit`: the longest line in bytes, without its newline.
    pub fn new(limit: usize) -> Lines {
        Lines { limit, rest: Vec::new(), is_lost: false }
    }

    /// The lines that `chunk` completes.
    pub fn push(&mut self, chunk: &[u8]) -> Vec<Line> {
        let mut found = Vec::new();
        let mut parts = chunk.split(|byte| *byte == b'\n');
        let mut part = parts.next().unwrap_or_default();
        for following in parts {
            self.extend(part);
            found.push(self.take());
            part = following;
        }
        self.extend(part);
        found
    }

    /// What came after the last newline, when the end is there.
    pub fn finish(&mut self) -> Option<Line> {
        (self.is_lost || !self.rest.is_empty()).then(|| self.take())
    }

    fn extend(&mut self, part: &[u8]) {
        self.is_lost |= self.rest.len() + part.len() > self.limit;
        if self.is_lost {
            self.rest = Vec::new();
        } else {
            self.rest.extend_from_slice(part);
        }
    }

    fn take(&mut self) -> Line {
        let rest = std::mem::take(&mut self.rest);
        if std::mem::take(&mut self.is_lost) { Line::TooLong } else { Line::Whole(rest) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    use crate::common::fuzz;

    fn whole(text: &str) -> Line {
        Line::Whole(text.as_bytes().to_vec())
    }

    #[test]
    fn lines_are_put_together() {
        let mut lines = Lines::new(8);
        assert_eq!(lines.push(b"ab"), []);
        assert_eq!(lines.push(b"c\n\nd"), [whole("abc"), whole("")]);
        assert_eq!(lines.finish(), Some(whole("d")));
        assert_eq!(lines.finish(), None);
    }

    #[test]
    fn a_line_beyond_the_limit_is_lost_and_the_next_is_not() {
        let mut lines = Lines::new(4);
        assert_eq!(lines.push(b"12345"), []);
        assert_eq!(lines.push(b"678\n1234\n"), [Line::TooLong, whole("1234")]);
        assert_eq!(lines.push(b"12345"), []);
        assert_eq!(lines.finish(), Some(Line::TooLong));
    }

    proptest! {
        #![proptest_config(fuzz::config())]

        #[test]
        fn lines_are_the_same_however_they_come(text in fuzz::broken(&["a\nbc\n\ndefgh\n"]), cut in 1..9usize, limit in 0..9usize) {
            let mut whole = Lines::new(limit);
            let mut found = whole.push(&text);
            found.extend(whole.finish());
            let mut pieces = Lines::new(limit);
            let mut seen: Vec<Line> = text.chunks(cut).flat_map(|chunk| pieces.push(chunk)).collect();
            seen.extend(pieces.finish());
            prop_assert_eq!(&seen, &found);
            prop_assert!(found.iter().all(|line| !matches!(line, Line::Whole(line) if line.len() > limit)));
        }
    }
}
