//! Runs of pages, from the entries of a pagemap. No I/O.
//!
//! Source: Documentation/admin-guide/mm/pagemap.rst of the Linux kernel.

use std::io;

pub const PRESENT: u64 = 1 << 63;
/// In swap, or on its way from one place to another.
pub const SWAPPED: u64 = 1 << 62;
/// Of a file or shared: no anonymous page.
pub const FILE: u64 = 1 << 61;
pub const PFN_MASK: u64 = (1 << 55) - 1;

/// Present pages that are contiguous in virtual and in physical memory, in base pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    pub vpn: u64,
    pub pfn: u64,
    pub len: u64,
    /// Anonymous pages, of a mapping that no file or device stands behind.
    pub anonymous: bool,
}

/// Makes runs of pagemap entries, which come piece by piece: what a folio is cut into by that is one run all the same.
#[derive(Debug, Default)]
pub struct Runs {
    open: Option<Run>,
    /// Pages that are in swap.
    pub swapped: u64,
}

impl Runs {
    /// Take `entries`, the first of page `vpn`; give each run that has ended to `take`. `fileless`: nothing stands
    /// behind the mapping.
    pub fn push(
        &mut self,
        vpn: u64,
        entries: &[u64],
        fileless: bool,
        mut take: impl FnMut(Run) -> io::Result<()>,
    ) -> io::Result<()> {
        for (here, entry) in (vpn..).zip(entries) {
            if entry & PRESENT == 0 {
                self.swapped += u64::from(entry & SWAPPED != 0);
                continue;
            }
            let (pfn, anonymous) = (entry & PFN_MASK, fileless && entry & FILE == 0);
            match &mut self.open {
                Some(run) if run.vpn + run.len == here && run.pfn + run.len == pfn && run.anonymous == anonymous => {
                    run.len += 1;
                }
                open => {
                    if let Some(run) = open.replace(Run { vpn: here, pfn, len: 1, anonymous }) {
                        take(run)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The run that has not ended.
    pub fn finish(&mut self) -> Option<Run> {
        self.open.take()
    }
}

/// The runs of entries that come at once.
#[cfg(test)]
pub fn runs(vpn: u64, entries: &[u64]) -> Vec<Run> {
    let (mut runs, mut found) = (Runs::default(), Vec::new());
    runs.push(vpn, entries, false, |run| {
        found.push(run);
        Ok(())
    })
    .unwrap();
    found.extend(runs.finish());
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn run(vpn: u64, pfn: u64, len: u64) -> Run {
        Run { vpn, pfn, len, anonymous: false }
    }

    #[test]
    fn entries_become_runs() {
        let at = |pfn| PRESENT | pfn;
        // Recorded shape: two pages in a row, a hole, a swapped page, a descending pair.
        let entries = [at(100), at(101), 0, 1 << 62 | 7, at(103), at(102)];
        assert_eq!(runs(10, &entries), [run(10, 100, 2), run(14, 103, 1), run(15, 102, 1)]);
        assert_eq!(runs(10, &[]), []);
    }

    #[test]
    fn flag_bits_of_an_entry_are_not_its_page() {
        // Bits 55 soft-dirty, 56 exclusive and 61 shared stand beside the page number.
        assert_eq!(runs(0, &[PRESENT | 1 << 55 | 1 << 56 | 1 << 61 | 42])[0].pfn, 42);
    }

    #[test]
    fn a_folio_is_one_run_however_its_entries_come() {
        let entries: Vec<u64> = (0..16).map(|page| PRESENT | (32 + page)).collect();
        let (mut runs, mut found) = (Runs::default(), Vec::new());
        for (vpn, part) in [(5, &entries[..7]), (12, &entries[7..])] {
            runs.push(vpn, part, true, |run| {
                found.push(run);
                Ok(())
            })
            .unwrap();
        }
        assert!(found.is_empty());
        assert_eq!(runs.finish(), Some(Run { anonymous: true, ..run(5, 32, 16) }));
        runs.push(0, &[SWAPPED, PRESENT | FILE | 3, 0, SWAPPED], true, |_| Ok(())).unwrap();
        assert_eq!((runs.swapped, runs.finish()), (2, Some(run(1, 3, 1))));
    }
}
