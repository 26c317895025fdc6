//! The memory of a micro-workload: one mapping with the same layout in every arm.
//!
//! Its start is aligned to the PMD size (or the hugetlb page) and its length is rounded up to it, so that a small
//! footprint can be backed by a huge page. Inaccessible memory on both sides keeps the kernel from merging it with
//! its neighbours, so that smaps speaks of this mapping alone. Only the first `bytes` are touched and named.

use std::fmt;
use std::ptr;
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};

use crate::common::mistake::Mistake;
use crate::common::size;
use crate::machine::pages;
use crate::protocol::event::Range;

/// Where the pages come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backing {
    Anon,
    /// A pool of hugetlb pages of this size in bytes.
    Hugetlb(u64),
}

impl Backing {
    /// The flags of mmap(2) for it.
    pub fn flags(self) -> i32 {
        match self {
            Self::Anon => 0,
            Self::Hugetlb(page) => libc::MAP_HUGETLB | (page.trailing_zeros() << libc::MAP_HUGE_SHIFT as u32) as i32,
        }
    }

    /// Lengths are whole multiples of this: of a page of the pool, else of `otherwise`.
    pub fn unit(self, otherwise: u64) -> u64 {
        if let Self::Hugetlb(page) = self { page } else { otherwise }
    }
}

impl FromStr for Backing {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "anon" {
            return Ok(Self::Anon);
        }
        let Some(page) = text.strip_prefix("hugetlb:") else {
            return Err("write anon, or hugetlb:SIZE such as hugetlb:2m".into());
        };
        let page = size::parse(page)?;
        if !page.is_power_of_two() {
            return Err(format!("{page} bytes is not a page size (a power of two)"));
        }
        Ok(Self::Hugetlb(page))
    }
}

impl fmt::Display for Backing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anon => formatter.write_str("anon"),
            Self::Hugetlb(page) => write!(formatter, "hugetlb:{page}"),
        }
    }
}

/// The madvise that follows the mmap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Advice {
    None,
    Huge,
    Nohuge,
}

/// The options of a workload with one mapping.
#[derive(Debug, Clone, Args)]
pub struct Memory {
    /// Memory that is touched, e.g. 256k, 16m, 1g
    #[arg(long, value_parser = size::parse)]
    pub bytes: u64,
    /// anon, or hugetlb:SIZE to map from a pool
    #[arg(long, default_value = "anon")]
    pub map: Backing,
    /// Where the pool has no pages for it, map base pages
    #[arg(long)]
    pub or_base: bool,
    /// madvise on the mapping
    #[arg(long, value_enum, default_value = "none")]
    pub advice: Advice,
}

impl Memory {
    /// Map it as the options say. The memory is not touched yet.
    pub fn map(&self) -> Result<Region> {
        // Which pools there are is asked when mapping failed alone: maps may be timed.
        let short = || matches!(self.map, Backing::Hugetlb(page) if pages::hugetlb().contains(&page));
        match Region::map(self.bytes, self.map, self.advice) {
            Err(_) if self.or_base && short() => Region::map(self.bytes, Backing::Anon, self.advice),
            mapped => mapped,
        }
    }
}

/// A mapping of its own, given back when dropped.
#[derive(Debug)]
pub struct Region {
    reserve: *mut u8,
    reserved: usize,
    start: *mut u8,
    bytes: usize,
}

impl Region {
    /// Map `bytes` (more than zero) with `backing` and `advice`.
    pub fn map(bytes: u64, backing: Backing, advice: Advice) -> Result<Self> {
        if bytes == 0 {
            bail!(Mistake("--bytes must be more than 0".into()));
        }
        let base = pages::base();
        if backing != Backing::Anon && advice != Advice::None {
            bail!(Mistake("--advice is for --map anon: pages of a pool take no advice".into()));
        }
        let align = pages::pmd().max(backing.unit(base));
        let length = bytes.next_multiple_of(align);
        let reserved = length + align + 2 * base;
        let reserve = mmap(ptr::null_mut(), reserved, libc::PROT_NONE, libc::MAP_NORESERVE)
            .with_context(|| format!("cannot reserve {reserved} bytes of address space"))?;
        let start = (reserve as u64 + base).next_multiple_of(align) as *mut u8;
        // On success the mapping replaces a part of the reservation, so that one munmap gives back both.
        if let Err(error) = mmap(start, length, libc::PROT_READ | libc::PROT_WRITE, backing.flags() | libc::MAP_FIXED) {
            // A kernel that finds the pool short may have unmapped that part, and another thread may have a mapping there
            // by now: only the ends are given back for certain.
            // SAFETY: both ends are of the reservation from above, which nobody else knows.
            unsafe {
                libc::munmap(reserve.cast(), start as usize - reserve as usize);
                let end = start as u64 + length;
                libc::munmap(end as *mut libc::c_void, (reserve as u64 + reserved - end) as usize);
            }
            return Err(explain(error, length, backing));
        }
        let region = Self { reserve, reserved: reserved as usize, start, bytes: bytes as usize };
        region.advise(length, advice)?;
        Ok(region)
    }

    fn advise(&self, length: u64, advice: Advice) -> Result<()> {
        let code = match advice {
            Advice::None => return Ok(()),
            Advice::Huge => libc::MADV_HUGEPAGE,
            Advice::Nohuge => libc::MADV_NOHUGEPAGE,
        };
        // SAFETY: the range is our own mapping; this advice does not change its content.
        if unsafe { libc::madvise(self.start.cast(), length as usize, code) } == 0 {
            return Ok(());
        }
        let error = std::io::Error::last_os_error();
        // A kernel without THP refuses both; not getting huge pages is then true anyway.
        if advice == Advice::Nohuge && error.raw_os_error() == Some(libc::EINVAL) {
            return Ok(());
        }
        Err(error).context("madvise for huge pages failed: has this kernel transparent huge pages?")
    }

    /// Write once to every base page.
    pub fn touch(&self) {
        // SAFETY: start..start+bytes is mapped writable for the life of self.
        unsafe { touch_pages(self.start, self.bytes, pages::base() as usize) }
    }

    pub fn start(&self) -> *mut u8 {
        self.start
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The touched bytes in whole base pages: what the scan is asked about.
    pub fn range(&self) -> Range {
        let start = self.start as u64;
        Range { start, end: start + (self.bytes as u64).next_multiple_of(pages::base()) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the whole reservation belongs to self, and nothing borrows it any longer.
        unsafe { libc::munmap(self.reserve.cast(), self.reserved) };
    }
}

/// Write one byte at each `step` of `bytes` from `start`; the compiler may not leave any out.
///
/// # Safety
/// `start..start + bytes` must be mapped writable.
#[inline(never)]
pub unsafe fn touch_pages(start: *mut u8, bytes: usize, step: usize) {
    for at in (0..bytes).step_by(step) {
        // SAFETY: at < bytes; the caller vouches for the mapping.
        unsafe { start.add(at).write_volatile(1) };
    }
}

/// A private anonymous mapping where the kernel picks; with MAP_FIXED at `address`, a part of the caller's own reservation.
pub fn mmap(address: *mut u8, length: u64, protection: i32, flags: i32) -> std::io::Result<*mut u8> {
    let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: without MAP_FIXED the kernel picks a free place; with it, the caller gives a part of its own reservation.
    let place = unsafe { libc::mmap(address.cast(), length as usize, protection, flags, -1, 0) };
    if place == libc::MAP_FAILED { Err(std::io::Error::last_os_error()) } else { Ok(place.cast()) }
}

/// Say which pool is short, or which sizes there are.
pub fn explain(error: std::io::Error, length: u64, backing: Backing) -> anyhow::Error {
    let Backing::Hugetlb(page) = backing else {
        return anyhow::Error::new(error).context(format!("cannot map {length} bytes"));
    };
    let known = pages::hugetlb();
    let wanted = length / page;
    let name = size::format(page);
    if !known.contains(&page) {
        let offered: Vec<String> = known.into_iter().map(size::format).collect();
        return anyhow::anyhow!("this kernel has no hugetlb pages of {name} (it has: {})", offered.join(", "));
    }
    let pool = format!("{}/hugepages-{}kB", pages::HUGETLB, page >> 10);
    let count = |file: &str| pages::read_number(&format!("{pool}/{file}")).unwrap_or(0);
    anyhow::anyhow!(
        "cannot map {wanted} hugetlb pages of {name}: {error}; the pool {pool} has {} pages, {} free, {} of them reserved; \
         as root write at least {wanted} to {pool}/nr_hugepages",
        count("nr_hugepages"),
        count("free_hugepages"),
        count("resv_hugepages"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_base_pages_too_is_not_refused_by_a_short_pool() {
        let of = |map, or_base| Memory { bytes: 1 << 33, map, or_base, advice: Advice::None };
        if !pages::hugetlb().contains(&(2 << 20)) {
            eprintln!("requires a pool of 2m pages: the fallback is not tested");
            return;
        }
        let pool = Backing::Hugetlb(2 << 20); // of 8 GiB here, which no other test has
        assert!(of(pool, false).map().is_err_and(|error| error.to_string().contains("cannot map 4096 hugetlb pages")));
        assert_eq!(of(pool, true).map().unwrap().bytes(), 1 << 33);
        assert!(
            of(Backing::Hugetlb(1 << 14), true).map().is_err(),
            "a size that this kernel does not have is a mistake"
        );
    }

    #[test]
    fn backings_are_read_and_written() {
        assert_eq!("anon".parse(), Ok(Backing::Anon));
        assert_eq!("hugetlb:2m".parse(), Ok(Backing::Hugetlb(2 << 20)));
        assert_eq!("hugetlb:1073741824".parse(), Ok(Backing::Hugetlb(1 << 30)));
        assert_eq!(Backing::Hugetlb(2 << 20).to_string(), "hugetlb:2097152");
        for bad in ["", "huge", "hugetlb", "hugetlb:", "hugetlb:3m", "hugetlb:0"] {
            assert!(bad.parse::<Backing>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_size_is_in_the_flags() {
        assert_eq!(Backing::Hugetlb(2 << 20).flags(), 0x40000 | 21 << 26);
        assert_eq!(Backing::Hugetlb(1 << 30).flags(), 0x40000 | 30 << 26);
    }

    #[test]
    fn a_region_is_aligned_and_writable() {
        let region = Region::map(pages::base() * 3 + 1, Backing::Anon, Advice::Nohuge).unwrap();
        assert_eq!(region.start() as u64 % pages::pmd(), 0);
        region.touch();
        let range = region.range();
        assert_eq!(range.end - range.start, 4 * pages::base());
        // SAFETY: just mapped and touched.
        assert_eq!(unsafe { region.start().add(3 * pages::base() as usize).read() }, 1);
    }

    #[test]
    fn a_missing_size_and_a_short_pool_are_named() {
        let error = Region::map(1, Backing::Hugetlb(1 << 50), Advice::None).unwrap_err().to_string();
        assert!(error.contains("reserve") || error.contains("no hugetlb pages of 1024t"), "{error}");
        if let Some(page) = pages::hugetlb().first().copied() {
            let error = explain(std::io::Error::from_raw_os_error(libc::ENOMEM), 3 * page, Backing::Hugetlb(page));
            let pool = format!("hugepages-{}kB/nr_hugepages", page >> 10);
            assert!(error.to_string().contains(&pool) && error.to_string().contains("at least 3"), "{error}");
        }
    }

    #[test]
    fn advice_does_not_go_with_a_pool() {
        let error = Region::map(1, Backing::Hugetlb(2 << 20), Advice::Huge).unwrap_err();
        assert!(error.to_string().contains("--advice"), "{error}");
    }

    #[test]
    fn nothing_is_not_a_region() {
        assert!(Region::map(0, Backing::Anon, Advice::None).is_err());
    }
}
