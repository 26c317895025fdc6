//! What kind of program a file is, from its first bytes: by what loader it is started, or that it is a script.
//!
//! Sources: elf(5); fs/binfmt_script.c of the Linux kernel; cmd/go's build note.

use crate::sys::{Answer, File};

#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = 62;
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = 183;

/// Names of glibc's loader for this architecture.
#[cfg(target_arch = "x86_64")]
const GLIBC: &[u8] = b"ld-linux-x86-64.so.2";
#[cfg(target_arch = "aarch64")]
const GLIBC: &[u8] = b"ld-linux-aarch64.so.1";

const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;
const MOST_SEGMENTS: usize = 256;
const ENTRY: usize = 56;
/// As much of a first line as the kernel looks at.
pub const MOST_LINE: usize = 255;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// Started by glibc's dynamic loader.
    Glibc,
    Musl,
    /// By a loader that is not known here.
    OtherLoader,
    /// By the kernel alone: static or static-pie.
    Static,
    /// Made by Go's linker: its memory comes from its own collector, however it is linked.
    Go,
    /// Of another architecture, or of 32 bits.
    Foreign,
    /// A shared object that nothing starts by itself, or another ELF file that is no program.
    NoProgram,
    /// It begins with `#!`.
    Script,
    /// An ELF file that is cut short, or anything else.
    Unknown,
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}

/// What a file is.
pub fn program(file: &File) -> Answer<Program> {
    let mut head = [0u8; 64];
    let read = file.read_at(&mut head, 0)?;
    if head.starts_with(b"#!") {
        return Ok(Program::Script);
    }
    if read < head.len() || !head.starts_with(b"\x7fELF") {
        return Ok(Program::Unknown);
    }
    let (is_64, is_little) = (head[4] == 2, head[5] == 1);
    if !is_64 || !is_little || half(&head, 18) != MACHINE {
        return Ok(Program::Foreign);
    }
    let (first, size, count) = (long(&head, 32), usize::from(half(&head, 54)), usize::from(half(&head, 56)));
    if !matches!(half(&head, 16), 2 | 3) || count == 0 {
        return Ok(Program::NoProgram);
    }
    if size != ENTRY || count > MOST_SEGMENTS {
        return Ok(Program::Unknown);
    }
    Ok(segments(file, first, count))
}

fn segments(file: &File, first: u64, count: usize) -> Program {
    let (mut loader, mut is_go) = (Program::Static, false);
    for index in 0..count {
        let mut entry = [0u8; ENTRY];
        let Some(at) = first.checked_add((index * ENTRY) as u64) else { return Program::Unknown };
        if file.read_at(&mut entry, at).unwrap_or(0) < ENTRY {
            return Program::Unknown;
        }
        let (offset, length) = (long(&entry, 8), long(&entry, 32));
        match word(&entry, 0) {
            PT_INTERP => {
                let mut path = [0u8; 256];
                let fits = path.len().min(length as usize);
                let read = file.read_at(&mut path[..fits], offset).unwrap_or(0);
                loader = by_loader(path[..read].split(|&byte| byte == 0).next().unwrap_or_default());
            }
            PT_NOTE => {
                let mut note = [0u8; 16];
                let read = file.read_at(&mut note, offset).unwrap_or(0);
                is_go |= read == note.len() && word(&note, 0) == 4 && &note[12..] == b"Go\0\0";
            }
            _ => {}
        }
    }
    if is_go { Program::Go } else { loader }
}

fn by_loader(path: &[u8]) -> Program {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    match name {
        _ if name == GLIBC => Program::Glibc,
        _ if name.starts_with(b"ld-musl") => Program::Musl,
        _ => Program::OtherLoader,
    }
}

/// The interpreter in the first line of a script, and its argument, as the kernel takes them.
pub fn interpreter(line: &[u8]) -> Option<(&[u8], Option<&[u8]>)> {
    let line = line.strip_prefix(b"#!")?.split(|&byte| byte == b'\n' || byte == 0).next()?;
    let line = line.trim_ascii();
    let end = line.iter().position(|byte| matches!(byte, b' ' | b'\t')).unwrap_or(line.len());
    let argument = line[end..].trim_ascii();
    (end > 0).then(|| (&line[..end], (!argument.is_empty()).then_some(argument)))
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::io::Write;

    use super::*;
    use crate::sys::{O_RDONLY, open};

    fn kind(bytes: &[u8]) -> Program {
        let path = std::env::temp_dir().join(format!("hugewise-elf-{}-{:p}", std::process::id(), bytes));
        std::fs::File::create(&path).unwrap().write_all(bytes).unwrap();
        let found = program(&open(&CString::new(path.to_str().unwrap()).unwrap(), O_RDONLY, 0).unwrap()).unwrap();
        std::fs::remove_file(path).unwrap();
        found
    }

    fn of(path: &str) -> Program {
        program(&open(&CString::new(path).unwrap(), O_RDONLY, 0).unwrap()).unwrap()
    }

    #[test]
    fn programs_are_told_apart() {
        assert_eq!(of("/proc/self/exe"), if cfg!(target_env = "musl") { Program::Static } else { Program::Glibc });
        assert_eq!(
            [kind(b""), kind(b"x"), kind(b"#!/bin/sh\n"), kind(b"\x7fELF")],
            [Program::Unknown, Program::Unknown, Program::Script, Program::Unknown]
        );
    }

    #[test]
    fn broken_files_end_in_an_answer() {
        let whole = std::fs::read("/proc/self/exe").unwrap();
        for length in [5, 63, 64, 65, 100, 119, 120, 500] {
            let cut = kind(&whole[..length]);
            assert!(
                matches!(cut, Program::Unknown | Program::Static | Program::OtherLoader | Program::Glibc),
                "{length}: {cut:?}"
            );
        }
        let mut changed = whole[..4096].to_vec();
        changed[4] = 1;
        assert_eq!(kind(&changed), Program::Foreign);
        changed[4] = 2;
        changed[18] = 8; // MIPS
        assert_eq!(kind(&changed), Program::Foreign);
        changed.copy_from_slice(&whole[..4096]);
        changed[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(matches!(kind(&changed), Program::Unknown), "segments at the end of all numbers");
        changed[32..40].copy_from_slice(&64u64.to_le_bytes());
        changed[16] = 1; // an object file
        assert_eq!(kind(&changed), Program::NoProgram);
    }

    #[test]
    fn first_lines_are_read_as_the_kernel_reads_them() {
        assert_eq!(interpreter(b"#!/bin/sh\necho"), Some((&b"/bin/sh"[..], None)));
        assert_eq!(
            interpreter(b"#! /usr/bin/env  python3 -u \nx"),
            Some((&b"/usr/bin/env"[..], Some(&b"python3 -u"[..])))
        );
        assert_eq!(interpreter(b"#!\n"), None);
        assert_eq!(interpreter(b"#!   "), None);
    }
}
