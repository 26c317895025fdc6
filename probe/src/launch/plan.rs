//! What is to be launched, prepared before the clock starts, and what can go wrong with it.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use rustix::fs::{FileType, Mode, OFlags};

use crate::launch::spec::ThpDisable;

/// The descriptor of the first of the files that are opened for a workload.
pub const FIRST_OPENED: RawFd = 3;

/// What to execute.
pub enum Program {
    Path(CString),
    /// An open program, so that the user whom the child becomes need not reach its path.
    Descriptor(OwnedFd),
}

/// Everything that the child needs, prepared before the clock starts.
pub struct Plan {
    pub program: Program,
    pub argv: Vec<CString>,
    pub env: Vec<CString>,
    pub cwd: Option<CString>,
    /// What becomes stdin, stdout and stderr.
    pub stdio: [OwnedFd; 3],
    /// A file that takes the place of that stdin, opened by the account that the child becomes.
    pub input: Option<CString>,
    /// What becomes the descriptors from `FIRST_OPENED` on.
    pub opened: Vec<OwnedFd>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub groups: Vec<libc::gid_t>,
    pub thp_disable: ThpDisable,
    /// Open cgroup.procs files.
    pub cgroups: Vec<File>,
    pub cpus: Option<Vec<usize>>,
}

/// What the child was doing when it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Step {
    Launch,
    ProcessGroup,
    Cgroup,
    WorkingDirectory,
    Groups,
    Gid,
    Uid,
    ThpDisable,
    Affinity,
    Deathsig,
    Stdio,
    Input,
    Execute,
}

/// Why no workload came into being.
#[derive(Debug, thiserror::Error)]
#[error("{}: {errno}", .step.words())]
pub struct LaunchError {
    pub step: Step,
    pub errno: io::Error,
}

impl Step {
    /// In the order of the numbers, each with what it is for people.
    const ALL: [(Step, &str); 13] = [
        (Step::Launch, "cannot make a process"),
        (Step::ProcessGroup, "setpgid"),
        (Step::Cgroup, "cannot enter the control group (cgroup_procs)"),
        (Step::WorkingDirectory, "cannot enter the working directory (cwd)"),
        (Step::Groups, "setgroups (dropping privileges needs root)"),
        (Step::Gid, "setresgid (dropping privileges needs root)"),
        (Step::Uid, "setresuid (dropping privileges needs root)"),
        (
            Step::ThpDisable,
            "prctl(PR_SET_THP_DISABLE) (thp_disable; `except-advised` needs Linux 6.18, `all` 3.15 with THP)",
        ),
        (Step::Affinity, "sched_setaffinity (cpus: are they online and in this cpuset?)"),
        (Step::Deathsig, "prctl(PR_SET_PDEATHSIG)"),
        (Step::Stdio, "dup2"),
        (Step::Input, "cannot open its standard input (stdin: a file, no link, that its account may read)"),
        (Step::Execute, "cannot execute it"),
    ];

    /// The step that a child has written down as a number.
    pub fn numbered(number: u32) -> Step {
        Step::ALL.get(number as usize).map_or(Step::Launch, |(step, _)| *step)
    }

    fn words(self) -> &'static str {
        Step::ALL[self as usize].1
    }
}

/// Open cgroup.procs files for the child to enter.
pub fn open_cgroups(procs: &[PathBuf]) -> anyhow::Result<Vec<File>> {
    let open = |path: &PathBuf| {
        File::options().write(true).open(path).with_context(|| format!("cannot open {} (cgroup_procs)", path.display()))
    };
    procs.iter().map(open).collect()
}

/// Open files for the child to read. Their descriptors here lie above all those that they become there, so that none is
/// overwritten before it is handed over.
pub fn open_for_child(files: &[PathBuf]) -> anyhow::Result<Vec<OwnedFd>> {
    let above = FIRST_OPENED + RawFd::try_from(files.len())?;
    let open = |path: &PathBuf| {
        let opened = disk(path).with_context(|| format!("cannot open {} (opens)", path.display()))?;
        Ok(rustix::io::fcntl_dupfd_cloexec(opened, above)?)
    };
    files.iter().map(open).collect()
}

/// A disk's file. Of anything else to open it may do something: a pipe waits, a watchdog resets the host.
fn disk(path: &Path) -> io::Result<File> {
    let found = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode);
    if !matches!(kind, FileType::RegularFile | FileType::BlockDevice) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no file and no block device"));
    }
    File::open(format!("/proc/self/fd/{}", found.as_raw_fd()))
}

/// Where execvp(3) would find `name`: as it is when it holds a slash, else by the workload's own PATH.
pub fn find_program(name: &str, path: Option<&str>, cwd: Option<&Path>) -> Option<PathBuf> {
    let is_program = |candidate: &Path| {
        let seen = cwd.map_or_else(|| candidate.to_path_buf(), |cwd| cwd.join(candidate));
        std::fs::metadata(seen).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    if name.contains('/') {
        return Some(PathBuf::from(name));
    }
    let folders = path.unwrap_or("/usr/local/bin:/usr/bin:/bin").split(':');
    folders.map(|folder| Path::new(if folder.is_empty() { "." } else { folder }).join(name)).find(|it| is_program(it))
}

/// A C string of a path or word that was checked for NUL bytes.
pub fn c_string(text: impl AsRef<OsStr>) -> io::Result<CString> {
    CString::new(text.as_ref().as_bytes()).map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "a NUL byte"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_by_the_path_given() {
        assert_eq!(find_program("sh", Some("/nowhere:/bin"), None), Some(PathBuf::from("/bin/sh")));
        assert_eq!(find_program("sh", Some("/nowhere"), None), None);
        assert_eq!(find_program("./x", Some("/bin"), None), Some(PathBuf::from("./x")));
        assert_eq!(find_program("sh", Some("bin"), Some(Path::new("/"))), Some(PathBuf::from("bin/sh")));
    }
}
