//! Programs that this one starts do not have the layout: it is taken out of the environment that they inherit.

use core::ffi::{CStr, c_char};

const NAME: &[u8] = b"libhugewise-layout.so";

/// Take the layout out, and this library out of LD_PRELOAD; other libraries stay.
///
/// # Safety
/// `envp` is the environment of the program, which has one thread.
pub unsafe fn withdraw(envp: *mut *mut c_char) {
    // SAFETY: the list ends with a null pointer, its strings with NUL; both only become shorter.
    unsafe {
        let (mut from, mut to) = (envp, envp);
        while !(*from).is_null() {
            let entry = CStr::from_ptr(*from).to_bytes();
            let goes = entry.starts_with(b"HUGEWISE_LAYOUT=")
                || entry.starts_with(b"HUGEWISE_LAYOUT_REPORT=")
                || (entry.starts_with(b"LD_PRELOAD=")
                    && without_library((*from).add("LD_PRELOAD=".len()), entry.len() - "LD_PRELOAD=".len()));
            if !goes {
                *to = *from;
                to = to.add(1);
            }
            from = from.add(1);
        }
        *to = core::ptr::null_mut();
    }
}

/// Take this library out of a list in its place; whether nothing is left.
///
/// # Safety
/// `list` is a string of `length` bytes and a NUL that may be written.
unsafe fn without_library(list: *mut c_char, length: usize) -> bool {
    // SAFETY: the caller's.
    let bytes = unsafe { core::slice::from_raw_parts_mut(list.cast::<u8>(), length + 1) };
    let (mut from, mut to) = (0, 0);
    while from < length {
        let end =
            bytes[from..length].iter().position(|byte| matches!(byte, b':' | b' ')).map_or(length, |at| from + at);
        let name = bytes[from..end].rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        if end > from && name != NAME {
            if to > 0 {
                bytes[to] = b':';
                to += 1;
            }
            bytes.copy_within(from..end, to);
            to += end - from;
        }
        from = end + 1;
    }
    bytes[to] = 0;
    to == 0
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;

    use super::*;

    /// What is left of an environment.
    fn left(entries: &[&str]) -> Vec<String> {
        let mut list: Vec<_> = entries.iter().map(|entry| CString::new(*entry).unwrap().into_raw()).collect();
        list.push(core::ptr::null_mut());
        // SAFETY: a list of strings of this test's own, which are not given back, for they have become shorter.
        unsafe {
            withdraw(list.as_mut_ptr());
            let there = list.iter().take_while(|entry| !entry.is_null());
            there.map(|entry| CStr::from_ptr(*entry).to_str().unwrap().to_owned()).collect()
        }
    }

    #[test]
    fn only_the_layout_goes() {
        assert_eq!(left(&["A=1", "HUGEWISE_LAYOUT=thp", "HUGEWISE_LAYOUT_REPORT=/x", "B=2"]), ["A=1", "B=2"]);
        assert_eq!(left(&["HUGEWISE_LAYOUTS=1", "LD_PRELOADED=1"]), ["HUGEWISE_LAYOUTS=1", "LD_PRELOADED=1"]);
        assert_eq!(left(&[]), [""; 0]);
    }

    #[test]
    fn other_libraries_stay() {
        let own = "/a/libhugewise-layout.so";
        for (list, rest) in [
            (own.to_owned(), None),
            (format!("{own}:/b.so c.so"), Some("/b.so:c.so")),
            (format!("/b.so:{own}:c.so"), Some("/b.so:c.so")),
            (format!("/b.so {own}"), Some("/b.so")),
            (format!(":{own}::"), None),
        ] {
            let expected: Vec<String> = rest.into_iter().map(|rest| format!("LD_PRELOAD={rest}")).collect();
            assert_eq!(left(&[&format!("LD_PRELOAD={list}")]), expected);
        }
    }
}
