//! What this kernel, and its settings as they are now, can give.

use core::ffi::CStr;

use hugewise_ground::layout::{Layout, Pages};
use hugewise_ground::sys;
use hugewise_ground::text::{self, Line};

use crate::options::Thp;
use crate::say::{CANNOT, Failure, Say};

const FOLDER: &CStr = c"/sys/kernel/mm";
const THP: &CStr = c"/sys/kernel/mm/transparent_hugepage/enabled";
const THP_2M: &CStr = c"/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/enabled";

/// Whether the pages of a layout can be had now. What cannot be seen (no /sys in a container) is not refused.
pub fn can_have(say: &Say, layout: &Layout, thp: Option<Thp>) -> Result<(), Failure> {
    if sys::status(FOLDER).is_err() {
        return Ok(());
    }
    if layout.wants(Pages::Thp) {
        transparent(say, thp)?;
    }
    for (pages, folder, name) in
        [(Pages::Hugetlb2m, "hugepages-2048kB", "of 2 MiB"), (Pages::Hugetlb1g, "hugepages-1048576kB", "of 1 GiB")]
    {
        if layout.wants(pages) {
            pool(say, layout.pool(pages) / pages.size(), folder, name)?;
        }
    }
    Ok(())
}

fn transparent(say: &Say, thp: Option<Thp>) -> Result<(), Failure> {
    const DISABLED: usize = 1;
    let refuse = |reason, cure| Err(say.refuse(CANNOT, b"", reason, cure));
    let mut room = [0u8; 128];
    let Some(top) = setting(THP, &mut room) else {
        return refuse("the kernel has no transparent huge pages", "give a layout of base or hugetlb pages");
    };
    let mut own_room = [0u8; 128];
    let own = setting(THP_2M, &mut own_room).unwrap_or(b"inherit");
    let word = if own == b"inherit" { top } else { own };
    if word == b"never" {
        return refuse(
            "transparent huge pages of 2 MiB are switched off on this machine",
            "as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        );
    }
    if thp.is_none() && sys::prctl(sys::PR_GET_THP_DISABLE, 0, 0) == Ok(DISABLED) {
        return refuse(
            "transparent huge pages are switched off for this process, and so for all that it starts",
            "start it without that (MemoryTHP=disable, --pages off), or give --pages advised beside the layout",
        );
    }
    Ok(())
}

/// The word in brackets.
fn setting<'a>(path: &CStr, room: &'a mut [u8]) -> Option<&'a [u8]> {
    let read = sys::open(path, sys::O_RDONLY, 0).and_then(|file| file.read(room)).ok()?;
    let said = &room[..read];
    let begin = said.iter().position(|&byte| byte == b'[')? + 1;
    let length = said[begin..].iter().position(|&byte| byte == b']')?;
    Some(&said[begin..begin + length])
}

fn pool(say: &Say, wanted: u64, folder: &str, name: &str) -> Result<(), Failure> {
    let (Some(free), Some(reserved)) = (pages(folder, "free_hugepages"), pages(folder, "resv_hugepages")) else {
        let mut room = [0u8; 128];
        let mut line = Line::over(&mut room);
        line.say(b"the kernel has no pool of pages ").say(name.as_bytes());
        return Err(say.refuse(CANNOT, b"", utf8(line.bytes()), "see: ls /sys/kernel/mm/hugepages"));
    };
    let more = pages(folder, "nr_overcommit_hugepages").unwrap_or(0);
    let surplus = pages(folder, "surplus_hugepages").unwrap_or(0);
    let there = free.saturating_sub(reserved) + more.saturating_sub(surplus);
    if there >= wanted {
        return Ok(());
    }
    let (mut room, mut cure_room) = ([0u8; 256], [0u8; 256]);
    let mut line = Line::over(&mut room);
    line.say(b"the layout takes ").number(wanted).say(b" pages ").say(name.as_bytes());
    line.say(b" from the pool, which has ").number(there);
    let mut cure = Line::over(&mut cure_room);
    let all = pages(folder, "nr_hugepages").unwrap_or(0) + wanted - there;
    cure.say(b"as root: echo ").number(all).say(b" > /sys/kernel/mm/hugepages/").say(folder.as_bytes());
    cure.say(b"/nr_hugepages, and see what was granted; or a smaller heap=SIZE");
    Err(say.refuse(CANNOT, b"", utf8(line.bytes()), utf8(cure.bytes())))
}

fn utf8(bytes: &[u8]) -> &str {
    core::str::from_utf8(bytes).unwrap_or_default()
}

/// A number of pages of the pool in `folder`; None where the kernel has no such file.
fn pages(folder: &str, name: &str) -> Option<u64> {
    let mut room = [0u8; 128];
    let mut line = Line::over(&mut room);
    line.say(b"/sys/kernel/mm/hugepages/").say(folder.as_bytes()).say(b"/").say(name.as_bytes());
    let path = CStr::from_bytes_until_nul(&room).ok()?;
    let mut said = [0u8; 32];
    let read = sys::open(path, sys::O_RDONLY, 0).and_then(|file| file.read(&mut said)).ok()?;
    text::number(said[..read].trim_ascii())
}

/// The prctl, which outlives execve. A kernel that does not know it has changed nothing.
pub fn switch(say: &Say, thp: Option<Thp>) -> Result<(), Failure> {
    let Some(thp) = thp else { return Ok(()) };
    let refuse = |reason, cure| Err(say.refuse(CANNOT, b"", reason, cure));
    match (sys::prctl(sys::PR_SET_THP_DISABLE, 1, thp.flags()), thp) {
        (Ok(_), _) => Ok(()),
        (Err(_), Thp::Advised) => refuse(
            "this kernel cannot switch transparent huge pages off but for advised memory (it needs Linux 6.18)",
            "as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled does it for all programs",
        ),
        (Err(_), Thp::Off) => refuse(
            "the kernel does not switch transparent huge pages off for a process",
            "see: man 2 prctl, PR_SET_THP_DISABLE",
        ),
    }
}
