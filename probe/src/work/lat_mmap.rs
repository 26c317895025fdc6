//! lat_mmap of lmbench (McVoy and Staelin, USENIX 1996), restated from its definition: map a shared file, touch a part
//! of it, unmap.
//!
//! The touched places are lmbench's: by default one byte each 16 KiB over the first tenth of the file; with `--random`
//! one byte each 160 KiB over all of it. The file is a memfd, or a temporary file in `--dir`. With `--map hugetlb:SIZE`
//! the memfd lies in hugetlbfs (MFD_HUGETLB): its length is rounded up to whole pages of the pool, the touched places
//! are the same.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::{Path, PathBuf};
use std::{io, ptr};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::common::mistake::Mistake;
use crate::common::size;
use crate::machine::pages;
use crate::protocol::event::{Range, Value, named};
use crate::work::meter::Meter;
use crate::work::outcome::{Common, Outcome};
use crate::work::region::{Backing, explain, touch_pages};

// lmbench's own figures: they define the benchmark, and have nothing to do with the machine's page size.
const STEP: usize = 16 << 10;
const PART: usize = 10;
const STRIDE: usize = PART * STEP;
/// lmbench refuses anything smaller.
const LEAST: u64 = 2 * STRIDE as u64;

#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Size of the file, at least 320k
    #[arg(long, default_value = "64m", value_parser = size::parse)]
    bytes: u64,
    /// Maps in the timed region
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Touch all of the file at a long stride instead of its first tenth
    #[arg(long)]
    random: bool,
    /// Folder of the file [default: memory, by memfd_create]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Where the pages of the memory file come from: anon (shared memory), or hugetlb:SIZE for those of a pool
    #[arg(long, default_value = "anon", conflicts_with = "dir")]
    map: Backing,
    #[command(flatten)]
    pub common: Common,
}

/// How far and at which step a map of `bytes` is touched.
fn extent(bytes: usize, random: bool) -> (usize, usize) {
    if random { (bytes, STRIDE) } else { (bytes / PART, STEP) }
}

/// A live map of the whole file, of which the first `bytes` are touched.
struct Map {
    start: *mut u8,
    length: usize,
    bytes: usize,
}

impl Map {
    fn new(file: &File, length: usize, bytes: usize) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel picks a free place.
        let start = unsafe { libc::mmap(ptr::null_mut(), length, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            Err(io::Error::last_os_error())
        } else {
            Ok(Self { start: start.cast(), length, bytes })
        }
    }

    fn touch(&self, random: bool) {
        let (end, step) = extent(self.bytes, random);
        // SAFETY: end <= bytes, and the map is writable as long as self lives.
        unsafe { touch_pages(self.start, end, step) };
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the map is ours.
        unsafe { libc::munmap(self.start.cast(), self.length) };
    }
}

pub fn measure(options: &Options, meter: &mut Meter) -> Result<Outcome> {
    if options.bytes < LEAST {
        bail!(Mistake(format!("--bytes {} is too small: lat_mmap is defined from {LEAST} bytes on", options.bytes)));
    }
    let bytes = options.bytes as usize;
    let file = match &options.dir {
        Some(folder) => unnamed_file(folder)?,
        None => memory_file(options.map)?,
    };
    let length = options.bytes.next_multiple_of(options.map.unit(1));
    file.set_len(length).with_context(|| format!("cannot make the file {length} bytes long"))?;
    let map = || Map::new(&file, length as usize, bytes);
    // One map before the clock: the file's own pages are made once, the maps of them are what is timed.
    map().map_err(|error| explain(error, length, options.map))?.touch(options.random);
    meter
        .lap(|| {
            (0..options.rounds).try_for_each(|_| {
                map()?.touch(options.random);
                Ok::<(), io::Error>(())
            })
        })
        .context("cannot map the file")?;
    // The timed maps are gone; one more, touched in the same way, is held for the scan.
    let map = map().context("cannot map the file")?;
    map.touch(options.random);
    let start = map.start as u64;
    let (end, step) = extent(bytes, options.random);
    Ok(Outcome {
        metrics: named([
            ("us_per_map", meter.wall_ns as f64 * 1e-3 / options.rounds as f64),
            ("maps_per_s", options.rounds as f64 * 1e9 / meter.wall_ns as f64),
        ]),
        facts: named([
            ("rounds", Value::Integer(options.rounds)),
            ("bytes", Value::Integer(options.bytes)),
            ("touches", Value::Integer(end.div_ceil(step) as u64)),
            ("random", Value::Integer(u64::from(options.random))),
            ("file", Value::Text(options.dir.as_ref().map_or("memfd".into(), |dir| dir.display().to_string()))),
            ("map", Value::Text(options.map.to_string())),
        ]),
        ranges: vec![Range { start, end: start + length.next_multiple_of(pages::base()) }],
        held: Box::new((map, file)),
    })
}

fn memory_file(backing: Backing) -> Result<File> {
    let pool = match backing {
        Backing::Anon => 0,
        // The size is encoded as for MAP_HUGETLB.
        Backing::Hugetlb(page) => libc::MFD_HUGETLB | page.trailing_zeros() << libc::MFD_HUGE_SHIFT,
    };
    // SAFETY: the name is a C string; the descriptor that comes back is ours alone.
    let descriptor = unsafe { libc::memfd_create(c"lat-mmap".as_ptr(), libc::MFD_CLOEXEC | pool) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error()).context("memfd_create failed");
    }
    // SAFETY: as above.
    Ok(unsafe { File::from_raw_fd(descriptor) })
}

/// A file in `folder` without a name, so that nothing is left behind however we end.
fn unnamed_file(folder: &Path) -> Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = File::options();
    options.read(true).write(true).mode(0o600).custom_flags(libc::O_TMPFILE);
    options.open(folder).with_context(|| format!("cannot make a temporary file in {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touches_are_those_of_lmbench() {
        let touches = |bytes, random| {
            let (end, step) = extent(bytes, random);
            (0..end).step_by(step).count()
        };
        assert_eq!(touches(64 << 20, false), (64 << 20) / 10 / (16 << 10) + 1);
        assert_eq!(touches(64 << 20, true), (64usize << 20).div_ceil(160 << 10));
        assert_eq!(touches(320 << 10, true), 2);
    }
}
