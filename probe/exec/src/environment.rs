//! The environment of the program: as it was, with what the pages need put in.

use core::ffi::{CStr, c_char, c_int};
use core::ptr;

use hugewise_ground::sys;

use crate::library;
use crate::options::Request;
use crate::say::{CANNOT, Failure, Say};

const TUNABLES: &[u8] = b"GLIBC_TUNABLES=";
const PRELOAD: &[u8] = b"LD_PRELOAD=";
const LAYOUT: &[u8] = b"HUGEWISE_LAYOUT=";
const REPORT: &[u8] = b"HUGEWISE_LAYOUT_REPORT=";

/// A list of variables for execve.
pub struct Environment {
    list: *mut *const c_char,
    length: usize,
}

impl Environment {
    pub fn list(&self) -> *const *const c_char {
        self.list
    }

    fn push(&mut self, variable: *const c_char) {
        // SAFETY: the list was made with room for all that is put in, and for the null pointer behind it.
        unsafe {
            *self.list.add(self.length) = variable;
            *self.list.add(self.length + 1) = ptr::null();
        }
        self.length += 1;
    }

    /// With the file that the library appends to: it is made where it is not there.
    pub fn with_report(mut self, say: &Say, name: &CStr) -> Result<Environment, Failure> {
        let flags = sys::O_WRONLY | sys::O_CREAT | sys::O_APPEND | sys::O_NOFOLLOW | sys::O_NONBLOCK | sys::O_NOCTTY;
        let refuse = |reason| Err(say.refuse(CANNOT, name.to_bytes(), reason, "name a file of your own with --report"));
        let Ok(file) = sys::open(name, flags, 0o600) else { return refuse("it cannot be opened for the report") };
        let user = sys::accounts().acting_user;
        let is_own = |owner: u32| owner == 0 || owner == user; // the library writes to no other
        if !file.status().is_ok_and(|status| status.is_file() && status.links == 1 && is_own(status.uid)) {
            return refuse("a report is a regular file of one's own, which has one name");
        }
        let mut room = [0u8; 4096];
        let path = match file.path(&mut room) {
            Ok(path) => path,
            Err(_) if name.to_bytes().starts_with(b"/") => name,
            Err(_) => return refuse("/proc is not there to say where that is: name the whole path"),
        };
        let mut text = Text::of(say, REPORT.len() + path.to_bytes().len())?;
        text.add(REPORT).add(path.to_bytes());
        self.push(text.start());
        Ok(self)
    }
}

/// A string that is never given back.
struct Text {
    start: *mut u8,
    length: usize,
}

impl Text {
    /// With room for so many bytes, and a NUL behind them.
    fn of(say: &Say, length: usize) -> Result<Text, Failure> {
        Ok(Text { start: memory(say, length + 1)?, length: 0 })
    }

    fn add(&mut self, bytes: &[u8]) -> &mut Text {
        // SAFETY: it was made with room for all that is added; new memory is zeroes.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(self.length), bytes.len()) };
        self.length += bytes.len();
        self
    }

    fn start(&self) -> *const c_char {
        self.start.cast()
    }
}

fn memory(say: &Say, bytes: usize) -> Result<*mut u8, Failure> {
    const FLAGS: c_int = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS;
    // SAFETY: new memory.
    let made = unsafe { sys::mmap(0, bytes, sys::PROT_READ_WRITE, FLAGS, -1, 0) };
    made.map(|address| address as *mut u8)
        .map_err(|_| say.refuse(CANNOT, b"", "no memory is left for the environment", ""))
}

/// A copy of the program's arguments.
///
/// # Safety
/// They are strings, which stay.
pub unsafe fn arguments<'a>(say: &Say, words: &[*const c_char]) -> Result<&'a mut [*const c_char], Failure> {
    let list = memory(say, (words.len() + 1) * size_of::<*const c_char>())?.cast::<*const c_char>();
    // SAFETY: it has room for them and a null pointer, which is there already.
    unsafe {
        ptr::copy_nonoverlapping(words.as_ptr(), list, words.len());
        Ok(core::slice::from_raw_parts_mut(list, words.len() + 1))
    }
}

/// The environment `envp` with tunables, and with the library and its layout. Of a name that is there twice the first
/// counts, as for getenv(3); others stay as they are.
///
/// # Safety
/// `envp` is an environment, which stays.
pub unsafe fn made(
    say: &Say,
    envp: *const *const c_char,
    request: &Request,
    library: &library::Path,
) -> Result<Environment, Failure> {
    let mut count = 0;
    // SAFETY: the list ends with a null pointer.
    while unsafe { !(*envp.add(count)).is_null() } {
        count += 1;
    }
    let list = memory(say, (count + 6) * size_of::<*const c_char>())?.cast();
    let mut made = Environment { list, length: 0 };
    let has_layout = request.layout.is_some();
    let has_tunables = !request.tunables().is_empty();
    let (mut tunables, mut preloads) = (None, None);
    for index in 0..count {
        // SAFETY: below the null pointer.
        let entry = unsafe { *envp.add(index) };
        // SAFETY: strings of the environment.
        let bytes = unsafe { CStr::from_ptr(entry) }.to_bytes();
        if has_tunables && let Some(value) = bytes.strip_prefix(TUNABLES) {
            tunables = tunables.or(Some(value));
        } else if has_layout && let Some(value) = bytes.strip_prefix(PRELOAD) {
            preloads = preloads.or(Some(value));
        } else if !(has_layout && (bytes.starts_with(LAYOUT) || bytes.starts_with(REPORT))) {
            made.push(entry);
        }
    }
    if has_tunables {
        made.push(joined(say, tunables.unwrap_or_default(), request.tunables())?.start());
    }
    if has_layout {
        made.push(preloaded(say, preloads.unwrap_or_default(), library.bytes())?.start());
        let mut text = Text::of(say, LAYOUT.len() + request.layout_text.len())?;
        text.add(LAYOUT).add(request.layout_text);
        made.push(text.start());
    }
    Ok(made)
}

/// The tunables that were there and are not named anew, then those that are.
fn joined(say: &Say, old: &[u8], new: &[&[u8]]) -> Result<Text, Failure> {
    let room = TUNABLES.len() + old.len() + new.iter().map(|each| each.len() + 1).sum::<usize>();
    let mut text = Text::of(say, room)?;
    text.add(TUNABLES);
    let name = |one: &[u8]| one.iter().position(|&byte| byte == b'=').unwrap_or(one.len());
    let stay = old
        .split(|&byte| byte == b':')
        .filter(|one| !one.is_empty() && !new.iter().any(|each| each[..name(each)] == one[..name(one)]));
    let mut separator: &[u8] = b"";
    for each in stay.chain(new.iter().copied()) {
        text.add(separator).add(each);
        separator = b":";
    }
    Ok(text)
}

/// The library first, then those that were there; it is named once.
fn preloaded(say: &Say, old: &[u8], library: &[u8]) -> Result<Text, Failure> {
    let mut text = Text::of(say, PRELOAD.len() + library.len() + 1 + old.len())?;
    text.add(PRELOAD).add(library);
    for each in old.split(|byte| matches!(byte, b':' | b' ')).filter(|each| !each.is_empty() && *each != library) {
        text.add(b":").add(each);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAY: Say = Say { name: "test" };

    fn text(made: Result<Text, Failure>) -> String {
        // SAFETY: a string with a NUL behind it.
        unsafe { CStr::from_ptr(made.unwrap().start()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn tunables_of_others_stay() {
        let new = [&b"glibc.malloc.hugetlb=1"[..], b"glibc.malloc.arena_max=1"];
        assert_eq!(text(joined(&SAY, b"", &new[..1])), "GLIBC_TUNABLES=glibc.malloc.hugetlb=1");
        assert_eq!(
            text(joined(&SAY, b"glibc.malloc.tcache_count=0:glibc.malloc.hugetlb=2:", &new)),
            "GLIBC_TUNABLES=glibc.malloc.tcache_count=0:glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1"
        );
        // Of a name that begins like another one.
        assert_eq!(
            text(joined(&SAY, b"glibc.malloc.hugetlb_x=2", &new[..1])),
            "GLIBC_TUNABLES=glibc.malloc.hugetlb_x=2:glibc.malloc.hugetlb=1"
        );
    }

    #[test]
    fn libraries_of_others_stay() {
        assert_eq!(text(preloaded(&SAY, b"", b"/l.so")), "LD_PRELOAD=/l.so");
        assert_eq!(text(preloaded(&SAY, b"a.so b.so:/l.so", b"/l.so")), "LD_PRELOAD=/l.so:a.so:b.so");
    }
}
