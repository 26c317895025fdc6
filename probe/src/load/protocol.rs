//! What a protocol must be able to do, and requests that are copied rather than put together.

use crate::load::keys::{KeyName, MOST_DIGITS, write_digits};
use crate::load::payload::{Payload, Payloads};

/// One reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply<'a> {
    Stored,
    Value(&'a [u8]),
    Miss,
}

/// What the bytes that have come so far begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parsed<'a> {
    /// A reply, and its length in bytes.
    Whole(Reply<'a>, usize),
    /// Not all of it is there yet.
    Partial,
    /// The server refuses, in its own words.
    Refused(&'a [u8]),
    /// Not of this protocol.
    Wrong,
}

/// A protocol, with all that can be prepared for the keys and sizes of a run.
pub trait Dialect {
    fn new(name: &KeyName, payloads: &Payloads) -> Self;
    fn requests(&self) -> &Requests;
    /// The first reply in `input`, which is not empty.
    fn parse<'a>(&self, input: &'a [u8]) -> Parsed<'a>;
}

/// What a protocol's requests are made of: GET, and SET with the size of the value and the value behind its key.
pub struct Requests {
    get: Template,
    set: Template,
    /// What stands between key and value, for each class of size.
    sizes: Vec<Vec<u8>>,
}

impl Requests {
    /// `size` gives what stands between the key and a value of so many bytes.
    pub fn new(get: Template, set: Template, payloads: &Payloads, size: impl Fn(u32) -> String) -> Self {
        Self { get, set, sizes: payloads.sizes().map(|bytes| size(bytes).into_bytes()).collect() }
    }

    /// Append the request for the value of `key`.
    #[inline]
    pub fn get(&self, out: &mut Vec<u8>, key: u64) {
        self.get.write(out, key);
    }

    /// Append the request that stores `value`, which is of the payload's class of size.
    #[inline]
    pub fn set(&self, out: &mut Vec<u8>, key: u64, payload: Payload, value: &[u8]) {
        self.set.write(out, key);
        out.extend_from_slice(&self.sizes[payload.class]);
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }
}

/// A request with its key's number left open: one for each number of digits.
pub struct Template {
    name: KeyName,
    forms: Vec<Form>,
}

struct Form {
    bytes: Vec<u8>,
    at: usize,
}

impl Template {
    /// `form` gives what comes before and after a key of the length given.
    pub fn new(name: &KeyName, form: impl Fn(usize) -> (String, String)) -> Self {
        let fill = |digits: usize| {
            let (before, after) = form(name.before.len() + digits + name.after.len());
            let head = before + &name.before;
            let bytes = format!("{head}{:0<digits$}{}{after}", "", name.after).into_bytes();
            Form { at: head.len(), bytes }
        };
        Self { name: name.clone(), forms: (0..=MOST_DIGITS).map(fill).collect() }
    }

    /// Append the request for `key`.
    #[inline]
    pub fn write(&self, out: &mut Vec<u8>, key: u64) {
        let digits = self.name.digits(key);
        let form = &self.forms[digits];
        let start = out.len() + form.at;
        out.extend_from_slice(&form.bytes);
        write_digits(&mut out[start..start + digits], key);
    }
}

/// A line without its end, and where the next one begins.
pub fn line(input: &[u8]) -> Option<(&[u8], usize)> {
    let end = input.iter().position(|byte| *byte == b'\n')?;
    Some((input[..end].strip_suffix(b"\r").unwrap_or(&input[..end]), end + 1))
}

/// A number at the start of a text of digits.
pub fn number(digits: &[u8]) -> Option<usize> {
    if digits.is_empty() || digits.len() > 9 {
        return None;
    }
    digits.iter().try_fold(0, |sum, byte| byte.is_ascii_digit().then(|| 10 * sum + usize::from(byte - b'0')))
}
