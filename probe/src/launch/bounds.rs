//! How much a workload may leave on disk: so much in each of its two streams, and never the last of the room where it
//! writes. It is looked at every tenth of a second and once more when the tree is dead; nothing stands between the
//! workload and its files, so that a program that says little is not slower for it.
//!
//! RLIMIT_FSIZE is not used: it binds every file of a process alike, so a bound that suits a stream would break a
//! server's tables, a data set, and the memory of a guest that is a file of hugetlbfs.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, fstatvfs};

use crate::launch::spec::Limits;

/// Between two looks. What a disk takes meanwhile (some 300 MB) is well within what is kept free.
const EVERY: Duration = Duration::from_millis(100);
/// What is kept free where a workload writes: so many bytes, or a tenth of what was free when that is less.
const KEPT: u64 = 1 << 30;
const SHARE: u64 = 10;

/// The files and folders of one attempt that are watched.
pub struct Bounds {
    most: Option<u64>,
    streams: Vec<(&'static str, File)>,
    rooms: Vec<Room>,
    due: Instant,
}

/// A file system that the workload writes to.
struct Room {
    folder: PathBuf,
    open: OwnedFd,
    kept: u64,
}

impl Bounds {
    /// `stdout` and `stderr` are the workload's own; of what is no regular file (a pipe, /dev/null) there is no size.
    pub fn new(limits: &Limits, streams: [(&'static str, &OwnedFd); 2]) -> io::Result<Bounds> {
        let mut watched = Vec::new();
        for (name, stream) in streams {
            let file = File::from(stream.try_clone()?);
            if file.metadata()?.is_file() {
                watched.push((name, file));
            }
        }
        let rooms = limits.rooms.iter().filter_map(|folder| Room::new(folder)).collect();
        Ok(Bounds { most: limits.stream_bytes, streams: watched, rooms, due: Instant::now() + EVERY })
    }

    /// When to look next; None: there is nothing to look at.
    pub fn due(&self) -> Option<Instant> {
        let is_bound = !self.rooms.is_empty() || self.most.is_some() && !self.streams.is_empty();
        is_bound.then_some(self.due)
    }

    /// What is exceeded, where it is time to look.
    pub fn look(&mut self) -> Option<String> {
        let now = Instant::now();
        if self.due().is_none_or(|due| now < due) {
            return None;
        }
        self.due = now + EVERY;
        self.too_long().map(|(name, ..)| self.told(name)).or_else(|| self.rooms.iter().find_map(Room::exceeded))
    }

    /// When the tree is dead: cut its streams to their bound; what was exceeded, if anything was.
    pub fn cut(&self) -> io::Result<Option<String>> {
        let mut told = None;
        while let Some((name, file, most)) = self.too_long() {
            file.set_len(most)?;
            told = told.or(Some(self.told(name)));
        }
        Ok(told)
    }

    fn too_long(&self) -> Option<(&'static str, &File, u64)> {
        let most = self.most?;
        let is_long = |file: &File| file.metadata().is_ok_and(|found| found.size() > most);
        self.streams.iter().find(|(_, file)| is_long(file)).map(|(name, file)| (*name, file, most))
    }

    fn told(&self, name: &str) -> String {
        format!("its {name} has more than {} bytes, the most that is kept", self.most.unwrap_or_default())
    }
}

impl Room {
    /// None where there is no such folder, or it does not say (a pseudo file system).
    fn new(folder: &Path) -> Option<Room> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = rustix::fs::open(folder, flags, Mode::empty()).ok()?;
        let free = free(&open)?;
        Some(Room { folder: folder.to_owned(), open, kept: KEPT.min(free / SHARE) })
    }

    fn exceeded(&self) -> Option<String> {
        let free = free(&self.open)?;
        let folder = self.folder.display();
        (free < self.kept).then(|| {
            format!("{free} bytes are left free at {folder}, below the {} that are kept: it was ended", self.kept)
        })
    }
}

/// Bytes that a process without privileges may still write there.
fn free(folder: &OwnedFd) -> Option<u64> {
    let found = fstatvfs(folder).ok()?;
    (found.f_blocks > 0).then(|| found.f_bavail.saturating_mul(found.f_frsize))
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use super::*;

    #[test]
    fn a_stream_is_told_and_cut_also_a_sparse_one() {
        let folder = tempfile::tempdir().unwrap();
        let open = |name: &str| {
            OwnedFd::from(OpenOptions::new().write(true).create_new(true).open(folder.path().join(name)).unwrap())
        };
        let (stdout, stderr) = (open("stdout"), open("stderr"));
        let limits = Limits { stream_bytes: Some(1000), ..Limits::default() };
        let mut bounds = Bounds::new(&limits, [("stdout", &stdout), ("stderr", &stderr)]).unwrap();
        assert_eq!((bounds.look(), bounds.cut().unwrap()), (None, None));
        File::from(stderr.try_clone().unwrap()).set_len(1 << 43).unwrap();
        assert_eq!(bounds.look(), None, "it is not time yet");
        bounds.due = Instant::now();
        assert!(bounds.look().unwrap().starts_with("its stderr has more than 1000 bytes"));
        assert!(bounds.cut().unwrap().is_some());
        assert_eq!(folder.path().join("stderr").metadata().unwrap().len(), 1000);
        assert_eq!(bounds.cut().unwrap(), None);
    }

    #[test]
    fn what_has_no_size_is_not_watched() {
        let null = || OwnedFd::from(OpenOptions::new().write(true).open("/dev/null").unwrap());
        let limits = Limits { stream_bytes: Some(1), rooms: vec!["/nowhere".into()], ..Limits::default() };
        assert_eq!(Bounds::new(&limits, [("stdout", &null()), ("stderr", &null())]).unwrap().due(), None);
    }

    #[test]
    fn the_last_of_the_room_is_kept() {
        let mut room = Room::new(&std::env::temp_dir()).unwrap();
        assert_eq!(room.exceeded(), None);
        room.kept = u64::MAX;
        assert!(room.exceeded().unwrap().contains("left free"));
    }
}
