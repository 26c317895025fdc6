//! One line of JSON on what became of a layout, at the end of a file that is there already.

use core::ffi::CStr;

use hugewise_ground::sys;
use hugewise_ground::text::Line;

use crate::heap::Outcome;

/// Append it to the file `path`, where that is the caller's or root's own, and no link. Where it cannot be written,
/// nothing is said: a child may be another account.
pub fn append(path: &[u8], layout: &[u8], outcome: &Outcome) {
    let mut name = [0u8; 4096];
    if !path.starts_with(b"/") || path.len() >= name.len() {
        return;
    }
    name[..path.len()].copy_from_slice(path);
    let flags = sys::O_WRONLY | sys::O_APPEND | sys::O_NOFOLLOW | sys::O_NONBLOCK | sys::O_NOCTTY;
    let Ok(name) = CStr::from_bytes_until_nul(&name) else { return };
    let Ok(file) = sys::open(name, flags, 0) else { return };
    let Ok(status) = file.status() else { return };
    let is_own = status.uid == 0 || status.uid == sys::accounts().acting_user;
    if !status.is_file() || status.links != 1 || !is_own {
        return;
    }
    let mut room = [0u8; 6144];
    let mut line = Line::over(&mut room);
    line.say(b"{\"pid\":").number(sys::pid()).say(b",\"layout\":\"").say(layout).say(b"\",\"heap_bytes\":");
    line.number(if outcome.from == 0 { 0 } else { outcome.size });
    line.say(b",\"heap_from\":")
        .number(outcome.from as u64)
        .say(b",\"short_bytes\":")
        .number(outcome.short)
        .say(b",\"ranges\":")
        .number(outcome.placed)
        .say(b",\"refused\":")
        .number(outcome.refused)
        .say(if outcome.foreign { b",\"foreign\":true,\"why\":" } else { b",\"why\":" });
    match outcome.why {
        Some(why) => line.say(b"\"").say(why.as_bytes()).say(b"\"}\n"),
        None => line.say(b"null}\n"),
    };
    let _ = file.write(line.bytes());
}
