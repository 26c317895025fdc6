//! Text without an allocator: what is said is gathered in a buffer, and what does not fit is left out.

/// Text that grows in a buffer of the caller's.
pub struct Line<'a> {
    buffer: &'a mut [u8],
    length: usize,
}

impl<'a> Line<'a> {
    pub fn over(buffer: &'a mut [u8]) -> Line<'a> {
        Line { buffer, length: 0 }
    }

    pub fn say(&mut self, bytes: &[u8]) -> &mut Self {
        let room = self.buffer.len() - self.length;
        let fits = bytes.len().min(room);
        self.buffer[self.length..self.length + fits].copy_from_slice(&bytes[..fits]);
        self.length += fits;
        self
    }

    /// What somebody else wrote: control characters, and bytes above ASCII that are no letters, as `\xNN`.
    pub fn quote(&mut self, bytes: &[u8]) -> &mut Self {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let letters = core::str::from_utf8(bytes).is_ok_and(|text| !text.chars().any(is_hidden));
        for &byte in bytes {
            if (b' '..0x7f).contains(&byte) || (letters && byte >= 0x80) {
                self.say(&[byte]);
            } else {
                self.say(b"\\x").say(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
            }
        }
        self
    }

    pub fn number(&mut self, value: u64) -> &mut Self {
        self.digits(value, 10)
    }

    pub fn hex(&mut self, value: u64) -> &mut Self {
        self.digits(value, 16)
    }

    fn digits(&mut self, mut value: u64, base: u64) -> &mut Self {
        let mut digits = [0u8; 20];
        let mut first = digits.len();
        loop {
            first -= 1;
            let digit = (value % base) as u8;
            digits[first] = if digit < 10 { b'0' + digit } else { b'a' + digit - 10 };
            value /= base;
            if value == 0 {
                break;
            }
        }
        self.say(&digits[first..])
    }

    pub fn len(&self) -> usize {
        self.length
    }

    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    pub fn bytes(&self) -> &[u8] {
        &self.buffer[..self.length]
    }
}

/// Characters above ASCII that a terminal does not show, or by which it shows others in another place.
fn is_hidden(character: char) -> bool {
    matches!(character, '\u{80}'..='\u{9f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// A number with nothing else around it; None where it is none, or too large.
pub fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() || (text.len() > 1 && text[0] == b'0') {
        return None;
    }
    text.iter().try_fold(0u64, |sum, &byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        sum.checked_mul(10)?.checked_add(digit)
    })
}

/// Bytes: a number with k, m, g or t behind it (of 1024), or with nothing.
pub fn size(text: &[u8]) -> Option<u64> {
    let (last, rest) = text.split_last()?;
    let shift = match last {
        b'k' => 10,
        b'm' => 20,
        b'g' => 30,
        b't' => 40,
        _ => return number(text),
    };
    number(rest)?.checked_mul(1 << shift)
}

/// The value of a variable of an environment; of two with one name the first.
///
/// # Safety
/// `envp` is a list of strings that end with NUL, and ends with a null pointer.
pub unsafe fn variable<'a>(envp: *const *const core::ffi::c_char, name: &[u8]) -> Option<&'a [u8]> {
    let mut at = envp;
    // SAFETY: the caller's; the walk ends at the null pointer.
    unsafe {
        while !at.is_null() && !(*at).is_null() {
            let entry = core::ffi::CStr::from_ptr(*at).to_bytes();
            if let Some(value) = entry.strip_prefix(name).and_then(|rest| rest.strip_prefix(b"=")) {
                return Some(value);
            }
            at = at.add(1);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(make: impl Fn(&mut Line)) -> String {
        let mut buffer = [0u8; 40];
        let mut line = Line::over(&mut buffer);
        make(&mut line);
        String::from_utf8(line.bytes().to_vec()).unwrap()
    }

    #[test]
    fn lines_hold_what_fits() {
        assert_eq!(
            line(|l| {
                l.say(b"pid=").number(0).say(b" ").number(u64::MAX);
            }),
            "pid=0 18446744073709551615"
        );
        assert_eq!(
            line(|l| {
                l.hex(0xdead_beef);
            }),
            "deadbeef"
        );
        assert_eq!(
            line(|l| {
                l.say(&[b'x'; 60]);
            })
            .len(),
            40
        );
    }

    #[test]
    fn what_others_wrote_cannot_turn_a_terminal() {
        assert_eq!(
            line(|l| {
                l.quote(b"a\x1b[31m\n");
            }),
            "a\\x1b[31m\\x0a"
        );
        assert_eq!(
            line(|l| {
                l.quote("größe".as_bytes());
            }),
            "größe"
        );
        assert_eq!(
            line(|l| {
                l.quote("a\u{202e}b".as_bytes());
            }),
            "a\\xe2\\x80\\xaeb"
        );
        assert_eq!(
            line(|l| {
                l.quote(b"\xff");
            }),
            "\\xff"
        );
    }

    #[test]
    fn sizes_are_strict() {
        assert_eq!(
            [size(b"512m"), size(b"1g"), size(b"4096"), size(b"0")],
            [Some(512 << 20), Some(1 << 30), Some(4096), Some(0)]
        );
        for wrong in
            [&b""[..], b"m", b"01", b"1.5g", b"-1", b"1G", b"1gb", b"99999999999999999999", b"99999999t", b" 1"]
        {
            assert_eq!(size(wrong), None, "{}", String::from_utf8_lossy(wrong));
        }
    }

    #[test]
    fn the_first_variable_of_a_name_counts() {
        let entries = [c"AB=no".as_ptr(), c"A=1".as_ptr(), c"A=2".as_ptr(), core::ptr::null()];
        // SAFETY: a list of C strings that ends with a null pointer.
        let (found, none) = unsafe { (variable(entries.as_ptr(), b"A"), variable(entries.as_ptr(), b"B")) };
        assert_eq!((found, none), (Some(&b"1"[..]), None));
    }
}
