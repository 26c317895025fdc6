//! Files, by system calls alone.

use core::ffi::{CStr, c_int};

use super::{Answer, EINTR, EINVAL, Errno, O_CLOEXEC, call, number, write};

const AT_FDCWD: c_int = -100;
const LAST_STANDARD: c_int = 2;
const F_DUPFD_CLOEXEC: usize = 1030;
const AT_EMPTY_PATH: c_int = 0x1000;
const AT_SYMLINK_NOFOLLOW: c_int = 0x100;

/// An open file; it is closed at its end, and by execve.
#[derive(Debug)]
pub struct File(c_int);

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: the descriptor is this value's own.
        let _ = unsafe { call(number::CLOSE, [self.0 as usize, 0, 0, 0, 0, 0]) };
    }
}

/// What statx(2) says of a file.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Status {
    mask: u32,
    blksize: u32,
    attributes: u64,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    pub mode: u16,
    spare: u16,
    pub inode: u64,
    pub size: u64,
    rest: [u64; 26],
}

impl Status {
    pub fn is_file(&self) -> bool {
        self.mode & 0o170_000 == 0o100_000
    }

    pub fn is_folder(&self) -> bool {
        self.mode & 0o170_000 == 0o040_000
    }
}

/// Open `path` with `flags`; what is made has the `mode`. It does not outlive execve, and is never stdin, stdout or
/// stderr, also where these are closed.
pub fn open(path: &CStr, flags: c_int, mode: u32) -> Answer<File> {
    let arguments = [AT_FDCWD as usize, path.as_ptr() as usize, (flags | O_CLOEXEC) as usize, mode as usize, 0, 0];
    // SAFETY: the path ends with NUL.
    let file = unsafe { call(number::OPENAT, arguments) }.map(|descriptor| File(descriptor as c_int))?;
    if file.0 <= LAST_STANDARD {
        // What is complained about would have the complaint written into it, where stderr is closed.
        let above = [file.0 as usize, F_DUPFD_CLOEXEC, LAST_STANDARD as usize + 1, 0, 0, 0];
        // SAFETY: nothing but numbers; the first descriptor is closed at its end.
        return unsafe { call(number::FCNTL, above) }.map(|descriptor| File(descriptor as c_int));
    }
    Ok(file)
}

impl File {
    pub fn status(&self) -> Answer<Status> {
        statx(self.0, c"", AT_EMPTY_PATH)
    }

    /// As many bytes from `offset` on as there are, at most what fits.
    pub fn read_at(&self, into: &mut [u8], offset: u64) -> Answer<usize> {
        let mut filled = 0;
        while filled < into.len() {
            let left = &mut into[filled..];
            let at = offset as usize + filled;
            // SAFETY: the buffer is live and so long.
            let some =
                unsafe { call(number::PREAD64, [self.0 as usize, left.as_mut_ptr() as usize, left.len(), at, 0, 0]) };
            match some {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(EINTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    /// From where it stands on: for files of proc and sysfs.
    pub fn read(&self, into: &mut [u8]) -> Answer<usize> {
        // SAFETY: the buffer is live and so long.
        unsafe { call(number::READ, [self.0 as usize, into.as_mut_ptr() as usize, into.len(), 0, 0, 0]) }
    }

    pub fn write(&self, bytes: &[u8]) -> Answer<usize> {
        write(self.0, bytes)
    }

    /// Whether the file has capabilities of its own (xattr security.capability).
    pub fn has_capabilities(&self) -> bool {
        let name = c"security.capability";
        // SAFETY: no value is asked for, only its length.
        unsafe { call(number::FGETXATTR, [self.0 as usize, name.as_ptr() as usize, 0, 0, 0, 0]) }.is_ok_and(|n| n > 0)
    }

    /// Whether its file system is mounted so that setuid, setgid and capabilities of files do not count (nosuid).
    pub fn is_nosuid(&self) -> bool {
        const ST_NOSUID: u64 = 2;
        let mut told = [0u64; 15]; // struct statfs of 64-bit kernels: f_flags is its tenth long
        // SAFETY: the buffer has the size of the structure.
        let said = unsafe { call(number::FSTATFS, [self.0 as usize, told.as_mut_ptr() as usize, 0, 0, 0, 0]) };
        said.is_ok() && told[10] & ST_NOSUID != 0
    }

    /// The path by which the kernel knows it; an error where /proc is not mounted.
    pub fn path<'a>(&self, into: &'a mut [u8]) -> Answer<&'a CStr> {
        let mut name = [0u8; 32];
        let mut line = crate::text::Line::over(&mut name);
        line.say(b"/proc/self/fd/").number(self.0 as u64);
        let length = line.len();
        debug_assert!(length < 32);
        let name = CStr::from_bytes_until_nul(&name).map_err(|_| EINVAL)?;
        read_link(name, into)
    }
}

/// Where a symbolic link leads.
pub fn read_link<'a>(name: &CStr, into: &'a mut [u8]) -> Answer<&'a CStr> {
    let room = into.len().saturating_sub(1);
    let arguments = [AT_FDCWD as usize, name.as_ptr() as usize, into.as_mut_ptr() as usize, room, 0, 0];
    // SAFETY: the name ends with NUL, the buffer is so long.
    let length = unsafe { call(number::READLINKAT, arguments) }?;
    if length >= room {
        return Err(Errno(36)); // ENAMETOOLONG
    }
    into[length] = 0;
    CStr::from_bytes_until_nul(into).map_err(|_| EINVAL)
}

fn statx(folder: c_int, path: &CStr, flags: c_int) -> Answer<Status> {
    const BASIC: usize = 0x7ff;
    let mut status = Status::default();
    let arguments = [folder as usize, path.as_ptr() as usize, flags as usize, BASIC, (&raw mut status) as usize, 0];
    // SAFETY: the structure is live and as large as the kernel's.
    unsafe { call(number::STATX, arguments) }?;
    Ok(status)
}

/// Of the file itself where `path` is a symbolic link.
pub fn status(path: &CStr) -> Answer<Status> {
    statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW)
}

pub fn is_executable(path: &CStr) -> Answer<()> {
    const X_OK: usize = 1;
    // SAFETY: the path ends with NUL. The real account is asked, which is the effective one or is refused later on.
    unsafe { call(number::FACCESSAT, [AT_FDCWD as usize, path.as_ptr() as usize, X_OK, 0, 0, 0]) }.map(drop)
}

#[cfg(test)]
mod tests {
    use super::super::*;

    #[test]
    fn what_the_kernel_says_is_what_std_says() {
        assert_eq!(pid(), u64::from(std::process::id()));
        assert!(memory() > 1 << 28);
        let own = std::env::current_exe().unwrap();
        let told = std::fs::metadata(&own).unwrap();
        let path = std::ffi::CString::new(own.to_str().unwrap()).unwrap();
        let file = open(&path, O_RDONLY, 0).unwrap();
        let status = file.status().unwrap();
        use std::os::unix::fs::MetadataExt;
        assert_eq!((status.size, status.uid, u32::from(status.mode)), (told.len(), told.uid(), told.mode()));
        assert_eq!(status.inode, told.ino());
        let mut room = [0u8; 4096];
        assert_eq!(file.path(&mut room).unwrap(), path.as_c_str());
        let mut head = [0u8; 4];
        assert_eq!((file.read_at(&mut head, 0), &head), (Ok(4), b"\x7fELF"));
    }

    #[test]
    fn errors_are_the_kernels() {
        assert_eq!(open(c"/nowhere/at/all", O_RDONLY, 0).unwrap_err(), ENOENT);
        assert_eq!(is_executable(c"/etc/passwd").unwrap_err(), EACCES);
        assert_eq!(is_executable(c"/bin/sh"), Ok(()));
        assert!(limit(RLIMIT_AS) > 0);
    }
}
