//! What the tests of the launcher share.
#![allow(dead_code)] // Each test program uses a part.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const LAUNCHER: &str = env!("CARGO_BIN_EXE_hugewise-exec");

/// Whether a test can go on; if not, say what the machine lacks. With HUGEWISE_REQUIRE_ALL=1 that is a failure.
pub fn need(is_there: bool, requirement: &str) -> bool {
    if !is_there {
        assert!(!std::env::var("HUGEWISE_REQUIRE_ALL").is_ok_and(|value| value == "1"), "requires: {requirement}");
        eprintln!("not run, requires: {requirement}");
    }
    is_there
}

pub fn is_root() -> bool {
    // SAFETY: no arguments.
    unsafe { libc::geteuid() == 0 }
}

/// The launcher with a library beside it, in a folder that everybody may enter.
pub struct Place {
    pub folder: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Place {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let place = Place { folder };
        copy(LAUNCHER.as_ref(), &place.path("hugewise-exec"));
        place
    }

    /// Whether there is a library: an empty one that is made here, for what the real one does is tested by real programs.
    pub fn with_library() -> Option<Place> {
        let place = Place::new();
        place.compile("libhugewise-layout.so", "", &["-shared", "-fPIC", "-nostdlib"]).then_some(place)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn compile(&self, name: &str, source: &str, options: &[&str]) -> bool {
        let file = self.path(&format!("{name}.c"));
        fs::write(&file, source).unwrap();
        let made =
            Command::new("cc").args(options).arg("-o").arg(self.path(name)).arg(&file).stderr(Stdio::null()).status();
        need(made.is_ok_and(|status| status.success()), "a C compiler (apt install gcc libc6-dev)")
    }

    pub fn script(&self, name: &str, text: &str) -> PathBuf {
        let (written, path) = (self.path(&format!("{name}.text")), self.path(name));
        fs::write(&written, text).unwrap();
        fs::set_permissions(&written, fs::Permissions::from_mode(0o755)).unwrap();
        copy(&written, &path);
        fs::remove_file(&written).unwrap();
        path
    }

    pub fn command<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Command {
        let mut command = Command::new(self.path("hugewise-exec"));
        command.args(arguments).env_clear().env("PATH", "/usr/bin:/bin").stdin(Stdio::null());
        command
    }

    /// What it printed, where the program ended well.
    pub fn out<S: AsRef<OsStr>>(&self, arguments: &[S]) -> String {
        printed(&self.command(arguments).output().unwrap())
    }

    /// Its exit status, and what it complained of.
    pub fn refused<S: AsRef<OsStr>>(&self, arguments: &[S]) -> (Option<i32>, String) {
        let done = self.command(arguments).output().unwrap();
        assert!(done.stdout.is_empty(), "{done:?}");
        (done.status.code(), String::from_utf8(done.stderr).unwrap())
    }
}

/// Copy a program, in a process of its own: a child that another test has forked meanwhile would hold the file open for
/// writing, and nobody could execute the file until the child has executed another program (ETXTBSY).
pub fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("--preserve=mode").args([from, to]).status().unwrap().success());
}

pub fn printed(done: &Output) -> String {
    assert!(done.status.success(), "{done:?}");
    String::from_utf8(done.stdout.clone()).unwrap()
}

pub fn base(program: &Path) -> [&OsStr; 4] {
    ["--pages".as_ref(), "base".as_ref(), "--".as_ref(), program.as_ref()]
}
