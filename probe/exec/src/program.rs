//! The program that is to be started: where it is, and whether a layout or a tunable can reach it.

use core::ffi::CStr;

use hugewise_ground::elf::{self, Program};
use hugewise_ground::layout::Layout;
use hugewise_ground::sys::{self, Accounts, Errno, File};
use hugewise_ground::text;

use crate::Started;
use crate::options::{Request, has_own_pages};
use crate::say::{CANNOT, Failure, NOT_EXECUTABLE, NOT_FOUND, Say};

const MOST_PATH: usize = 4096;
/// As many interpreters of interpreters as the kernel follows.
const DEEPEST: usize = 5;
/// Where execvp(3) looks when there is no PATH.
const USUAL_PATH: &[u8] = b"/bin:/usr/bin";

/// A path that was found.
pub struct Found {
    room: [u8; MOST_PATH + 1],
}

impl Default for Found {
    fn default() -> Found {
        Found { room: [0; MOST_PATH + 1] }
    }
}

impl Found {
    pub fn path(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.room).unwrap_or_default()
    }

    /// `folder/name`; None where that is no path.
    fn set(&mut self, folder: &[u8], name: &[u8]) -> Option<()> {
        let slash: &[u8] = if folder.is_empty() { b"" } else { b"/" };
        if folder.len() + slash.len() + name.len() > MOST_PATH || name.contains(&0) {
            return None;
        }
        self.room.fill(0);
        let mut line = text::Line::over(&mut self.room[..MOST_PATH]);
        line.say(folder).say(slash).say(name);
        Some(())
    }
}

/// As execvp(3) finds it: the first file on PATH that may be executed, or the path itself where it has a slash.
pub fn find(say: &Say, command: &CStr, path: Option<&[u8]>, found: &mut Found) -> Result<(), Failure> {
    let name = command.to_bytes();
    if name.contains(&b'/') {
        if found.set(b"", name).is_none() {
            return Err(say.refuse(NOT_FOUND, name, "the path is too long", ""));
        }
        return executable(found.path()).map_err(|error| not_executed(say, name, error));
    }
    let mut refused = None;
    for folder in path.unwrap_or(USUAL_PATH).split(|&byte| byte == b':') {
        let folder = if folder.is_empty() { b"." } else { folder };
        if name.is_empty() || found.set(folder, name).is_none() {
            continue;
        }
        match executable(found.path()) {
            Ok(()) => return Ok(()),
            Err(sys::ENOENT | sys::ENOTDIR) => {}
            Err(error) => refused = Some(error),
        }
    }
    Err(match refused {
        Some(error) => not_executed(say, name, error),
        None => say.refuse(NOT_FOUND, name, "no such program on PATH", "name its path, or set PATH"),
    })
}

fn executable(path: &CStr) -> Result<(), Errno> {
    let status = sys::open(path, sys::O_PATH, 0)?.status()?;
    if !status.is_file() {
        return Err(sys::EACCES);
    }
    sys::is_executable(path)
}

/// Why a file was not executed, in words, and with the status that env(1) has for it.
pub fn not_executed(say: &Say, path: &[u8], error: Errno) -> Failure {
    let (status, reason, cure) = match error {
        sys::ENOENT => (NOT_FOUND, "no such program, or its interpreter or loader is missing", "see: file PATH"),
        sys::ENOTDIR => (NOT_FOUND, "a part of the path is no folder", ""),
        sys::EACCES => (
            NOT_EXECUTABLE,
            "it may not be executed",
            "chmod +x makes a file executable; its folders must be reachable",
        ),
        sys::ENOEXEC => (
            NOT_EXECUTABLE,
            "it is neither a program for this machine nor a script that begins with #!",
            "name its interpreter, such as: sh FILE",
        ),
        sys::E2BIG => (NOT_EXECUTABLE, "the arguments and the environment are too long", "see: getconf ARG_MAX"),
        sys::ELOOP => (NOT_EXECUTABLE, "too many links, or interpreters of interpreters", ""),
        sys::ENOMEM => (NOT_EXECUTABLE, "no memory is left for it", ""),
        _ => (NOT_EXECUTABLE, "the kernel does not execute it", "start it without hugewise-exec to see why"),
    };
    say.refuse(status, path, reason, cure)
}

/// What asks whether a program is reached.
struct Look<'a> {
    say: &'a Say,
    request: &'a Request<'a>,
    path: Option<&'a [u8]>,
    accounts: Accounts,
    has_no_new_privileges: bool,
}

/// Whether what the environment says will be heard: by the loader (a layout), by glibc (a tunable).
///
/// # Safety
/// The environment of `started` is one.
pub unsafe fn reached(
    say: &Say,
    started: &Started,
    request: &Request,
    path: Option<&[u8]>,
    found: &Found,
) -> Result<(), Failure> {
    let accounts = sys::accounts();
    if started.is_secure || accounts.user != accounts.acting_user || accounts.group != accounts.acting_group {
        let reason = "this process acts for another account than its own (setuid): no loader would hear of a layout or a tunable";
        return Err(say.refuse(
            CANNOT,
            b"",
            reason,
            "start it as that account itself: setpriv, runuser, User= of a unit",
        ));
    }
    // SAFETY: the caller's.
    if request.layout.is_some() && unsafe { has_own_pages(started.envp) } {
        let cure = "take glibc.malloc.hugetlb out of GLIBC_TUNABLES";
        return Err(say.refuse(
            CANNOT,
            b"",
            "GLIBC_TUNABLES has glibc.malloc.hugetlb, which chooses the pages of the same memory",
            cure,
        ));
    }
    let has_no_new_privileges = sys::prctl(sys::PR_GET_NO_NEW_PRIVS, 0, 0) == Ok(1);
    Look { say, request, path, accounts, has_no_new_privileges }.at(found, 0)
}

impl Look<'_> {
    fn refuse(&self, found: &Found, reason: &str, cure: &str) -> Result<(), Failure> {
        Err(self.say.refuse(CANNOT, found.path().to_bytes(), reason, cure))
    }

    fn at(&self, found: &Found, depth: usize) -> Result<(), Failure> {
        let failed = |error| not_executed(self.say, found.path().to_bytes(), error);
        if depth == DEEPEST {
            return Err(failed(sys::ELOOP));
        }
        let Ok(file) = sys::open(found.path(), sys::O_RDONLY, 0) else {
            return self.refuse(
                found,
                "it cannot be read, so that nobody can tell whether it is reached",
                "chmod a+r, or --pages off or advised, which reach every program",
            );
        };
        let other = "what reaches every program: --pages off or advised";
        match elf::program(&file).map_err(failed)? {
            Program::Script => self.script(found, &file, depth),
            Program::Unknown => Err(failed(sys::ENOEXEC)),
            Program::NoProgram => self.refuse(found, "it is an ELF file, but no program", "name a program"),
            Program::Foreign => self.refuse(
                found,
                "it is of another architecture (or of 32 bits) than this launcher",
                "use the launcher of its architecture",
            ),
            Program::Musl => self.refuse(found, "it uses musl, which has neither glibc's heap nor its tunables", other),
            Program::OtherLoader => {
                self.refuse(found, "its loader is not glibc's: it would not hear of a layout or a tunable", other)
            }
            Program::Go => self.refuse(found, "it is written in Go, whose memory does not come from malloc", other),
            Program::Static => self.unlinked(found, &file),
            Program::Glibc => self.privileged(found, &file),
        }
    }

    /// glibc itself, when it is linked in, still hears of tunables that it has.
    fn unlinked(&self, found: &Found, file: &File) -> Result<(), Failure> {
        if self.request.layout.is_some() {
            let cure = "link it dynamically, or use --tunable glibc.malloc.hugetlb=1, or --pages off or advised";
            return self.refuse(found, "it is statically linked: no library can be loaded into it", cure);
        }
        for tunable in self.request.tunables() {
            let name = tunable.split(|&byte| byte == b'=').next().unwrap_or_default();
            if !holds(file, name) {
                let reason = "it is statically linked, and its C library does not have that tunable";
                return self.refuse(
                    found,
                    reason,
                    "link it dynamically, or with a newer glibc; --pages off or advised reach every program",
                );
            }
        }
        self.privileged(found, file)
    }

    /// Of a program that gets rights by its file the loader keeps the environment away.
    fn privileged(&self, found: &Found, file: &File) -> Result<(), Failure> {
        let Ok(status) = file.status() else { return Ok(()) };
        if self.has_no_new_privileges || file.is_nosuid() {
            return Ok(()); // the kernel gives it none
        }
        let mode = u32::from(status.mode);
        let is_setuid = mode & 0o4000 != 0 && status.uid != self.accounts.user;
        let is_setgid = mode & 0o2010 == 0o2010 && status.gid != self.accounts.group;
        if is_setuid || is_setgid {
            let cure = "start it as the account that it becomes, or use --pages off or advised";
            return self.refuse(
                found,
                "it is setuid or setgid: its loader does not hear of a layout or a tunable",
                cure,
            );
        }
        if self.accounts.user != 0 && file.has_capabilities() {
            let cure =
                "give the capabilities by AmbientCapabilities= of the unit instead, or use --pages off or advised";
            return self.refuse(
                found,
                "its file has capabilities: its loader does not hear of a layout or a tunable",
                cure,
            );
        }
        Ok(())
    }

    fn script(&self, found: &Found, file: &File, depth: usize) -> Result<(), Failure> {
        let mut line = [0u8; elf::MOST_LINE];
        let read = file.read_at(&mut line, 0).unwrap_or(0);
        let mut next = Found::default();
        let Some((interpreter, argument)) = elf::interpreter(&line[..read]) else {
            return Err(not_executed(self.say, found.path().to_bytes(), sys::ENOEXEC));
        };
        if next.set(b"", interpreter).is_none() || executable(next.path()).is_err() {
            return Err(not_executed(self.say, interpreter, sys::ENOENT));
        }
        let is_env = interpreter.ends_with(b"/env");
        if is_env && self.request.layout.as_ref().is_some_and(|layout: &Layout| !layout.children) {
            let cure = "name the script's real interpreter: hugewise-exec --pages ... -- python3 SCRIPT";
            return self.refuse(found, "children=no would end with env, which the script begins with", cure);
        }
        self.at(&next, depth + 1)?;
        let named = argument.filter(|_| is_env).and_then(by_env);
        if is_env && named.is_none() {
            let cure = "name the script's real interpreter: hugewise-exec ... -- python3 SCRIPT";
            return self.refuse(found, "it begins with env and options, which may take the environment away", cure);
        }
        match named {
            Some(name) if !name.contains(&b'/') => {
                let mut program = Found::default();
                let mut room = [0u8; 256];
                text::Line::over(&mut room[..255]).say(name);
                let name = CStr::from_bytes_until_nul(&room).unwrap_or_default();
                find(self.say, name, self.path, &mut program)?;
                self.at(&program, depth + 1)
            }
            _ => Ok(()),
        }
    }
}

/// The program that `#!/usr/bin/env NAME` starts; None where its options are not plain.
fn by_env(argument: &[u8]) -> Option<&[u8]> {
    let mut words = argument.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
    let first = words.next()?;
    let name = if matches!(first, b"-S" | b"--") { words.next()? } else { first };
    (!name.starts_with(b"-") && !name.contains(&b'=')).then_some(name)
}

/// Whether the bytes of `name` are somewhere in the file.
fn holds(file: &File, name: &[u8]) -> bool {
    let mut room = [0u8; 16 << 10];
    let (mut offset, mut kept) = (0u64, 0);
    while let Ok(read @ 1..) = file.read_at(&mut room[kept..], offset) {
        let filled = kept + read;
        if room[..filled].windows(name.len()).any(|some| some == name) {
            return true;
        }
        offset += read as u64;
        kept = filled.min(name.len() - 1);
        room.copy_within(filled - kept..filled, 0);
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn env_names_the_program_behind_it() {
        assert_eq!(by_env(b"python3"), Some(&b"python3"[..]));
        assert_eq!(by_env(b"-S python3 -u"), Some(&b"python3"[..]));
        assert_eq!(by_env(b"-i python3"), None);
        assert_eq!(by_env(b"A=1 python3"), None);
    }

    #[test]
    fn a_name_is_seen_across_the_border_of_two_reads() {
        let path = std::env::temp_dir().join(format!("hugewise-holds-{}", std::process::id()));
        for at in [0usize, 100, (16 << 10) - 3, (16 << 10) - 1, 16 << 10, 40_000] {
            let mut bytes = vec![0u8; 50_000];
            bytes[at..at + 20].copy_from_slice(b"glibc.malloc.hugetlb");
            std::fs::write(&path, &bytes).unwrap();
            let file = sys::open(&std::ffi::CString::new(path.to_str().unwrap()).unwrap(), 0, 0).unwrap();
            assert!(holds(&file, b"glibc.malloc.hugetlb"), "{at}");
            assert!(!holds(&file, b"glibc.malloc.hugetlc"), "{at}");
        }
        std::fs::remove_file(path).unwrap();
    }
}
