//! Files, by absolute path.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, lchown};
use std::path::Path;

use serde_json::{Value, json};

use super::protocol::{Failure, LONGEST_PART, encoded};

/// Magic numbers of cgroup v1 and v2 (linux/magic.h): their folders hold files that cannot be removed.
const CGROUPS: [u64; 2] = [0x0027_e0eb, 0x6367_7270];

/// Whose a new file is, and who may do what with it.
#[derive(Debug, Clone, Copy)]
pub struct Owner {
    pub mode: u32,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
}

type Done = Result<Value, Failure>;

pub fn read(path: &str) -> Done {
    let mut bytes = Vec::new();
    // Not blocking: what has no end, or no writer, is not waited for.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(absolute(path)?)?;
    file.take(LONGEST_PART as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > LONGEST_PART {
        return Err(Failure::new(libc::EFBIG, format!("longer than {LONGEST_PART} bytes: get it in parts")));
    }
    Ok(json!({"text": String::from_utf8_lossy(&bytes)}))
}

/// One write(2), as the kernel's own files want it. The file must exist, and keeps what lies behind the text.
pub fn write(path: &str, text: &str) -> Done {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let mut file = OpenOptions::new().write(true).custom_flags(flags).open(absolute(path)?)?;
    let length = file.write(text.as_bytes())?;
    if length < text.len() {
        return Err(Failure::new(libc::EIO, format!("took {length} of {} bytes", text.len())));
    }
    Ok(json!({}))
}

/// The names in a folder, sorted by bytes; none where there is no such folder.
pub fn names(path: &str) -> Done {
    let entries = match fs::read_dir(absolute(path)?) {
        Ok(entries) => entries,
        Err(error) if is_absent(&error) => return Ok(json!({"names": []})),
        Err(error) => return Err(error.into()),
    };
    let mut names = entries.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>()?;
    names.sort_unstable();
    let names: Vec<_> = names.iter().map(|name| name.to_string_lossy()).collect();
    Ok(json!({"names": names}))
}

/// What a path is; links are not followed.
pub fn status(path: &str) -> Done {
    let found = match fs::symlink_metadata(absolute(path)?) {
        Ok(found) => found,
        Err(error) if is_absent(&error) => return Ok(json!({"kind": "none", "mode": 0, "size": 0})),
        Err(error) => return Err(error.into()),
    };
    let kind = match found.file_type() {
        kind if kind.is_file() => "file",
        kind if kind.is_dir() => "folder",
        kind if kind.is_symlink() => "link",
        _ => "other",
    };
    Ok(json!({"kind": kind, "mode": found.mode() & 0o7777, "size": found.size()}))
}

/// A new folder (EEXIST where there is one); its parents are made with mode 0755.
pub fn make(path: &str, owner: Owner) -> Done {
    let path = absolute(path)?;
    parents(path)?;
    fs::create_dir(path)?;
    give(path, owner)
}

/// A file, or a folder with everything in it; nothing happens when it is gone. Links are not followed.
pub fn remove(path: &str) -> Done {
    let path = removable(path)?;
    let removed = match fs::symlink_metadata(path) {
        Ok(found) if !found.is_dir() => fs::remove_file(path),
        Ok(_) if is_cgroup(path)? => remove_groups(path),
        Ok(_) => fs::remove_dir_all(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if !is_absent(&error) => Err(error.into()),
        _ => Ok(json!({})),
    }
}

/// Write a part of a file; offset 0 makes it anew, with the folders that it lies in.
pub fn put(path: &str, owner: Owner, offset: u64, data: &[u8]) -> Done {
    let path = absolute(path)?;
    if offset > 0 {
        let file = OpenOptions::new().write(true).custom_flags(libc::O_NOFOLLOW).open(path)?;
        file.write_all_at(data, offset)?;
        return Ok(json!({}));
    }
    parents(path)?;
    match fs::remove_file(path) {
        Err(error) if !is_absent(&error) => return Err(error.into()),
        _ => {}
    }
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all_at(data, 0)?;
    give(path, owner)
}

/// Part of a regular file (at most LONGEST_PART bytes at once, fewer at its end), and its whole size.
pub fn get(path: &str, offset: u64, length: u64) -> Done {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(absolute(path)?)?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(Failure::invalid("not a regular file"));
    }
    let mut data = vec![0; length.min(LONGEST_PART as u64).min(found.len().saturating_sub(offset)) as usize];
    let filled = fill(&file, &mut data, offset)?;
    Ok(json!({"data": encoded(&data[..filled]), "size": found.len()}))
}

/// mount(2), with options as mount(8) writes them: flags by their names, the rest for the file system.
pub fn mount(source: &str, target: &str, kind: &str, options: &str) -> Done {
    let path = absolute(target)?;
    fs::create_dir_all(path)?;
    let (flags, data) = mount_options(options);
    mount_at(source, path, kind, flags, &data)?;
    Ok(json!({}))
}

/// mount(2).
pub fn mount_at(source: &str, target: &Path, kind: &str, flags: libc::c_ulong, data: &str) -> io::Result<()> {
    use std::os::unix::ffi::OsStrExt;
    let words = [source.as_bytes(), target.as_os_str().as_bytes(), kind.as_bytes(), data.as_bytes()];
    let [source, target, kind, data] = words.map(CString::new);
    let (source, target, kind, data) = (source?, target?, kind?, data?);
    // SAFETY: four live C strings and flags.
    match unsafe { libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, data.as_ptr().cast()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn mount_options(options: &str) -> (libc::c_ulong, String) {
    let mut flags = 0;
    let mut data = Vec::new();
    for option in options.split(',').filter(|option| !option.is_empty()) {
        match option {
            "rw" | "defaults" => {}
            "ro" => flags |= libc::MS_RDONLY,
            "nosuid" => flags |= libc::MS_NOSUID,
            "nodev" => flags |= libc::MS_NODEV,
            "noexec" => flags |= libc::MS_NOEXEC,
            "noatime" => flags |= libc::MS_NOATIME,
            "nodiratime" => flags |= libc::MS_NODIRATIME,
            "relatime" => flags |= libc::MS_RELATIME,
            "sync" => flags |= libc::MS_SYNCHRONOUS,
            "bind" => flags |= libc::MS_BIND,
            "remount" => flags |= libc::MS_REMOUNT,
            _ => data.push(option),
        }
    }
    (flags, data.join(","))
}

/// The folders above `path`, mode 0755 where they are new.
pub fn parents(path: &Path) -> io::Result<()> {
    let Some(parent) = path.parent().filter(|parent| !parent.is_dir()) else { return Ok(()) };
    parents(parent)?;
    fs::create_dir(parent)?;
    fs::set_permissions(parent, Permissions::from_mode(0o755))
}

fn give(path: &Path, owner: Owner) -> Done {
    if owner.uid.is_some() || owner.gid.is_some() {
        lchown(path, owner.uid, owner.gid)?;
    }
    // After the owner, whose change clears the bits that set an id.
    fs::set_permissions(path, Permissions::from_mode(owner.mode & 0o7777))?;
    Ok(json!({}))
}

fn fill(file: &File, data: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < data.len() {
        match file.read_at(&mut data[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(length) => filled += length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// The path, when it is absolute.
pub fn absolute(path: &str) -> Result<&Path, Failure> {
    let is_whole = path.starts_with('/') && !path.contains('\0');
    if is_whole { Ok(Path::new(path)) } else { Err(Failure::invalid(format!("{path:?} is not an absolute path"))) }
}

/// A path that names what is to go, and so not the root, in whatever spelling.
fn removable(path: &str) -> Result<&Path, Failure> {
    let path = absolute(path)?;
    path.file_name().map(|_| path).ok_or_else(|| Failure::invalid("a path to remove ends in a name"))
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn is_cgroup(path: &Path) -> io::Result<bool> {
    Ok(CGROUPS.contains(&(rustix::fs::statfs(path)?.f_type as u64)))
}

/// Control groups, the deepest first.
fn remove_groups(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_groups(&entry.path())?;
        }
    }
    fs::remove_dir(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    use crate::common::fuzz;

    #[test]
    fn options_are_told_apart() {
        assert_eq!(mount_options(""), (0, String::new()));
        let (flags, data) = mount_options("ro,vers=4.2,noatime,addr=10.0.2.2");
        assert_eq!(flags, libc::MS_RDONLY | libc::MS_NOATIME);
        assert_eq!(data, "vers=4.2,addr=10.0.2.2");
    }

    #[test]
    fn only_absolute_paths_are_taken_and_the_root_stays() {
        for path in ["", "x", "./x", "/a\0b"] {
            assert_eq!(read(path).unwrap_err().errno, libc::EINVAL);
        }
        for path in ["/", "//", "/.", "/..", "/a/..", "/a/../.."] {
            assert_eq!(removable(path).unwrap_err().errno, libc::EINVAL, "{path}");
        }
        assert!(removable("/a/b").is_ok());
    }

    #[test]
    fn a_part_beyond_the_end_is_empty() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b");
        let path = path.to_str().unwrap();
        put(path, Owner { mode: 0o640, uid: None, gid: None }, 0, b"12345").unwrap();
        assert_eq!(get(path, 3, 100).unwrap(), json!({"data": "NDU=", "size": 5}));
        assert_eq!(get(path, 9, 100).unwrap(), json!({"data": "", "size": 5}));
        assert_eq!(status(path).unwrap(), json!({"kind": "file", "mode": 0o640, "size": 5}));
    }

    proptest! {
        #![proptest_config(fuzz::config())]

        #[test]
        fn whatever_a_path_or_an_option_is_the_root_stays(text in fuzz::broken_text(&["/a/b/../c", "ro,vers=4.2,,rw"])) {
            mount_options(&text);
            prop_assert!(!removable(&text).is_ok_and(|path| path == Path::new("/")));
        }
    }
}
