//! The layout library: where it is, and that nobody else decides what it is.

use core::ffi::CStr;

use hugewise_ground::elf::{self, Program};
use hugewise_ground::sys::{self, Status};
use hugewise_ground::text::Line;

use crate::say::{CANNOT, Failure, Say};

const NAME: &[u8] = b"libhugewise-layout.so";
/// From the folder of this program.
const PLACES: [&[u8]; 3] = [b"", b"../share/hugewise/", b"../lib/hugewise/"];
const MOST: usize = 4096;
const CURE: &str = "make setup in a checkout of hugewise, or its wheel, has it; or name it with --library PATH";

/// The path of the library, without links.
pub struct Path {
    room: [u8; MOST],
    length: usize,
}

impl Default for Path {
    fn default() -> Path {
        Path { room: [0; MOST], length: 0 }
    }
}

impl Path {
    pub fn bytes(&self) -> &[u8] {
        &self.room[..self.length]
    }
}

/// Find it: the one that was `named`, or beside this program.
pub fn find(say: &Say, named: Option<&CStr>, path: &mut Path) -> Result<(), Failure> {
    let mut own_room = [0u8; MOST];
    let own = sys::read_link(c"/proc/self/exe", &mut own_room).ok();
    match (named, own) {
        (Some(name), _) => {
            if !take(name, path) {
                return Err(say.refuse(CANNOT, name.to_bytes(), "the layout library cannot be opened", CURE));
            }
        }
        (None, Some(own)) => {
            if !PLACES.iter().any(|place| {
                beside(own, place)
                    .is_some_and(|(room, _)| CStr::from_bytes_until_nul(&room).is_ok_and(|name| take(name, path)))
            }) {
                return Err(say.refuse(
                    CANNOT,
                    NAME,
                    "the layout library is not beside this program, nor in ../share/hugewise",
                    CURE,
                ));
            }
        }
        (None, None) => {
            return Err(say.refuse(
                CANNOT,
                NAME,
                "it is looked for beside this program, and /proc is not there to say where that is",
                "name it: --library PATH",
            ));
        }
    }
    check(say, path, own)
}

fn beside(own: &CStr, place: &[u8]) -> Option<([u8; MOST], usize)> {
    let own = own.to_bytes();
    let folder = &own[..=own.iter().rposition(|&byte| byte == b'/')?];
    let mut room = [0u8; MOST];
    let mut line = Line::over(&mut room[..MOST - 1]);
    line.say(folder).say(place).say(NAME);
    let length = line.len();
    (length < MOST - 1).then_some((room, length))
}

/// Keep the path that the file has without links.
fn take(name: &CStr, path: &mut Path) -> bool {
    let Ok(file) = sys::open(name, sys::O_RDONLY, 0) else { return false };
    let real = match file.path(&mut path.room) {
        Ok(real) => real.to_bytes().len(),
        Err(_) if name.to_bytes().starts_with(b"/") && name.to_bytes().len() < MOST => {
            path.room.fill(0);
            path.room[..name.to_bytes().len()].copy_from_slice(name.to_bytes());
            name.to_bytes().len()
        }
        Err(_) => return false,
    };
    path.length = real;
    true
}

fn check(say: &Say, path: &Path, own: Option<&CStr>) -> Result<(), Failure> {
    let refuse = |reason, cure| Err(say.refuse(CANNOT, path.bytes(), reason, cure));
    if path.bytes().iter().any(|byte| matches!(byte, b':' | b' ' | b'\n' | b'\t')) {
        return refuse(
            "LD_PRELOAD cannot name a path with a blank or a colon",
            "copy the library to another folder, and name it with --library",
        );
    }
    if !path.bytes().ends_with(NAME) {
        return refuse("the layout library is called libhugewise-layout.so", CURE);
    }
    let name = CStr::from_bytes_until_nul(&path.room).unwrap_or_default();
    let Ok(file) = sys::open(name, sys::O_RDONLY, 0) else {
        return refuse("the layout library cannot be opened", CURE);
    };
    let is_library = file.status().is_ok_and(|status| status.is_file()) && elf::program(&file) == Ok(Program::Static);
    if !is_library {
        return refuse("it is no shared library of this machine's architecture", CURE);
    }
    if sys::accounts().acting_user == 0 && is_changeable(path.bytes(), own) {
        let cure = "have it, and the folders above it, owned by root and writable by root alone";
        return refuse("another account could change it, and root is about to load it", cure);
    }
    Ok(())
}

/// Whether another account than root, and than the one that this program belongs to, can decide what is at the path.
fn is_changeable(path: &[u8], own: Option<&CStr>) -> bool {
    let owner = own.and_then(|own| sys::status(own).ok()).map_or(0, |status| status.uid);
    let mut room = [0u8; MOST];
    for end in 1..=path.len() {
        if end < path.len() && path[end] != b'/' && end > 1 {
            continue;
        }
        room[..end].copy_from_slice(&path[..end]);
        room[end] = 0;
        let name = CStr::from_bytes_until_nul(&room).unwrap_or_default();
        if !sys::status(name).is_ok_and(|status| is_trusted(&status, owner)) {
            return true;
        }
    }
    false
}

fn is_trusted(status: &Status, owner: u32) -> bool {
    const STICKY: u16 = 0o1000;
    let is_owned = status.uid == 0 || status.uid == owner;
    // A group of the same number as the account is its own.
    let is_private = status.gid == 0 || status.gid == status.uid;
    let is_shared = status.mode & 0o002 != 0 || (status.mode & 0o020 != 0 && !is_private);
    is_owned && (!is_shared || (status.is_folder() && status.mode & STICKY != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_could_change_it() {
        let status = |uid: u32, gid: u32, mode: u16| {
            let mut status = Status::default();
            (status.uid, status.gid, status.mode) = (uid, gid, mode);
            status
        };
        assert!(is_trusted(&status(0, 0, 0o100_755), 0));
        assert!(is_trusted(&status(1000, 1000, 0o100_775), 1000), "the account that the launcher belongs to");
        assert!(!is_trusted(&status(1000, 1000, 0o100_755), 0));
        assert!(!is_trusted(&status(0, 50, 0o100_775), 0), "a group");
        assert!(!is_trusted(&status(0, 0, 0o100_757), 0));
        assert!(is_trusted(&status(0, 0, 0o041_777), 0), "in /tmp nobody renames what is root's");
        assert!(!is_trusted(&status(0, 0, 0o040_777), 0));
    }

    #[test]
    fn it_is_looked_for_beside_the_program() {
        let (room, length) = beside(c"/opt/x/bin/hugewise-exec", PLACES[1]).unwrap();
        assert_eq!(&room[..length], b"/opt/x/bin/../share/hugewise/libhugewise-layout.so");
    }
}
