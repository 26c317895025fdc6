//! The words of the command line.

use core::ffi::{CStr, c_char};

use hugewise_ground::layout::Layout;
use hugewise_ground::text;

use crate::say::{Failure, Say, USAGE};

pub const MOST_TUNABLES: usize = 16;

const HELP: &str = include_str!("help.txt");
const VERSION: &str = concat!("hugewise-exec ", env!("CARGO_PKG_VERSION"), "\n");

/// prctl(PR_SET_THP_DISABLE) for the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thp {
    Off,
    Advised,
}

impl Thp {
    pub fn flags(self) -> usize {
        match self {
            Thp::Off => 0,
            Thp::Advised => hugewise_ground::sys::EXCEPT_ADVISED,
        }
    }
}

/// What is to be done to which program.
pub struct Request<'a> {
    pub thp: Option<Thp>,
    pub layout: Option<Layout>,
    pub layout_text: &'a [u8],
    tunables: [&'a [u8]; MOST_TUNABLES],
    count: usize,
    pub library: Option<&'a CStr>,
    pub report: Option<&'a CStr>,
    pub argv0: Option<&'a CStr>,
    /// Only say whether it can be done.
    pub is_check: bool,
    /// Which of the arguments is the program.
    pub command: usize,
}

impl<'a> Request<'a> {
    /// Each as NAME=VALUE.
    pub fn tunables(&self) -> &[&'a [u8]] {
        &self.tunables[..self.count]
    }
}

#[allow(clippy::large_enum_variant)] // there is one, and no allocator
pub enum Asked<'a> {
    Text(&'static str),
    Start(Request<'a>),
}

/// # Safety
/// `argv` are strings, which stay.
pub unsafe fn read<'a>(say: &Say, argv: &[*const c_char]) -> Result<Asked<'a>, Failure> {
    // SAFETY: the caller's.
    let word = |at: usize| argv.get(at).map(|&word| unsafe { CStr::from_ptr(word) });
    let mut request = Request {
        thp: None,
        layout: None,
        layout_text: b"",
        tunables: [b""; MOST_TUNABLES],
        count: 0,
        library: None,
        report: None,
        argv0: None,
        is_check: false,
        command: argv.len(),
    };
    let mut at = 1;
    while let Some(given) = word(at) {
        at += 1;
        let bytes = given.to_bytes();
        if bytes == b"--" {
            request.command = at;
            break;
        }
        if !bytes.starts_with(b"-") {
            request.command = at - 1;
            break;
        }
        match bytes {
            b"--help" | b"-h" => return Ok(Asked::Text(HELP)),
            b"--version" | b"-V" => return Ok(Asked::Text(VERSION)),
            b"--check" => {
                request.is_check = true;
                continue;
            }
            _ => {}
        }
        let (name, attached) = split(given);
        if !matches!(name, b"--pages" | b"--tunable" | b"--library" | b"--report" | b"--argv0") {
            return Err(say.refuse(
                USAGE,
                bytes,
                "is no option",
                "see: hugewise-exec --help; a program whose name begins so stands behind --",
            ));
        }
        let value = match attached {
            Some(value) => value,
            None => {
                at += 1;
                word(at - 1)
                    .ok_or_else(|| say.refuse(USAGE, name, "has no value behind it", "see: hugewise-exec --help"))?
            }
        };
        request.take(say, name, value)?;
    }
    request.check(say, argv.len())?;
    Ok(Asked::Start(request))
}

/// `--name=value` as its parts.
fn split(word: &CStr) -> (&[u8], Option<&CStr>) {
    let whole = word.to_bytes_with_nul();
    match whole.iter().position(|&byte| byte == b'=') {
        Some(at) => (&whole[..at], CStr::from_bytes_with_nul(&whole[at + 1..]).ok()),
        None => (word.to_bytes(), None),
    }
}

impl<'a> Request<'a> {
    fn take(&mut self, say: &Say, name: &[u8], value: &'a CStr) -> Result<(), Failure> {
        let bytes = value.to_bytes();
        let once = |is_there: bool| match (is_there, bytes.is_empty()) {
            (true, _) => Err(say.refuse(USAGE, name, "is there twice", "give it once")),
            (_, true) => Err(say.refuse(USAGE, name, "has an empty value", "see: hugewise-exec --help")),
            _ => Ok(()),
        };
        match name {
            b"--pages" => self.pages(say, bytes),
            b"--tunable" => self.tunable(say, bytes),
            b"--library" => once(self.library.is_some()).map(|()| self.library = Some(value)),
            b"--report" => once(self.report.is_some()).map(|()| self.report = Some(value)),
            _ => once(self.argv0.is_some()).map(|()| self.argv0 = Some(value)),
        }
    }

    fn pages(&mut self, say: &Say, bytes: &'a [u8]) -> Result<(), Failure> {
        let thp = match bytes {
            b"off" => Some(Thp::Off),
            b"advised" => Some(Thp::Advised),
            _ => None,
        };
        let is_again = if thp.is_some() { self.thp.is_some() } else { self.layout.is_some() };
        if is_again {
            let cure = "give off or advised once, and a layout once";
            return Err(say.refuse(USAGE, bytes, "is a second --pages of its kind", cure));
        }
        if thp.is_some() {
            self.thp = thp;
            return Ok(());
        }
        match Layout::parse(bytes) {
            Ok(layout) => (self.layout, self.layout_text) = (Some(layout), bytes),
            Err(fault) if fault.word == bytes => {
                let cure = "--pages off, advised, none, base, thp, hugetlb-2m,heap=SIZE, hugetlb-1g,heap=SIZE or mosaic:0-25%=thp,heap=SIZE";
                let is_kind = fault.what != "is no layout";
                return Err(say.refuse(USAGE, bytes, fault.what, if is_kind { fault.cure } else { cure }));
            }
            Err(fault) => return Err(say.refuse(USAGE, fault.word, fault.what, fault.cure)),
        }
        Ok(())
    }

    fn tunable(&mut self, say: &Say, bytes: &'a [u8]) -> Result<(), Failure> {
        let wrong = |what| Err(say.refuse(USAGE, bytes, what, "write for example --tunable glibc.malloc.hugetlb=1"));
        let Some(equals) = bytes.iter().position(|&byte| byte == b'=') else { return wrong("is no NAME=VALUE") };
        let (name, value) = (&bytes[..equals], &bytes[equals + 1..]);
        let is_name = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'_');
        let is_value = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b':' | b'=');
        if !name.starts_with(b"glibc.") || !name.iter().all(is_name) {
            return wrong("does not begin with the name of a tunable");
        }
        if value.is_empty() || !value.iter().all(is_value) {
            return wrong("has no value, or one with a blank, ':' or '='");
        }
        if self.tunables().iter().any(|known| known.starts_with(&bytes[..=equals])) {
            return wrong("names a tunable twice");
        }
        if self.count == MOST_TUNABLES {
            return wrong("is one tunable too many: 16 are known here");
        }
        self.tunables[self.count] = bytes;
        self.count += 1;
        Ok(())
    }

    fn check(&self, say: &Say, count: usize) -> Result<(), Failure> {
        let wrong = |what, cure| Err(say.refuse(USAGE, b"", what, cure));
        if self.command >= count {
            return wrong(
                "no program is named",
                "write for example: hugewise-exec --pages thp -- ./program --its-option",
            );
        }
        if self.thp.is_none() && self.layout.is_none() && self.count == 0 {
            return wrong(
                "nothing is to be done",
                "give --pages off, advised or a layout, or --tunable NAME=VALUE: see --help",
            );
        }
        if self.layout.is_none() && (self.library.is_some() || self.report.is_some()) {
            return wrong("--library and --report are for layouts", "give a layout, or leave them out");
        }
        if let Some(layout) = &self.layout {
            use hugewise_ground::layout::Pages;
            if self.thp == Some(Thp::Off) && layout.wants(Pages::Thp) {
                return wrong(
                    "--pages off switches off what the layout asks for",
                    "give --pages advised beside it, or neither",
                );
            }
            if self.tunables().iter().any(|known| known.starts_with(b"glibc.malloc.hugetlb=")) {
                return wrong(
                    "a layout and glibc.malloc.hugetlb choose the pages of the same memory",
                    "give one of them",
                );
            }
        }
        Ok(())
    }
}

/// The value of one tunable in a list of them; None where it is not there.
pub fn of_list<'a>(list: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let each = list.split(|&byte| byte == b':');
    each.filter_map(|one| one.strip_prefix(name).and_then(|rest| rest.strip_prefix(b"="))).next_back()
}

/// Whether the environment asks glibc for huge pages of its own.
///
/// # Safety
/// `envp` is an environment.
pub unsafe fn has_own_pages(envp: *const *const c_char) -> bool {
    // SAFETY: the caller's.
    let list = unsafe { text::variable(envp, b"GLIBC_TUNABLES") }.unwrap_or_default();
    of_list(list, b"glibc.malloc.hugetlb").is_some_and(|value| value != b"0")
}
