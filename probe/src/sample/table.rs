//! What was read, row by row, in memory that is mapped before anything is timed and bounded whatever its length.
//!
//! When the table is full every other row is dropped and the period doubles, so that it covers all of the time at half
//! the resolution. Its memory is never huge: a page of 2 MiB would be cleared in the workload's time, and counted.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::protocol::series::Series;
use crate::sample::sources::NONE;

/// Rows that are kept at most: over half an hour at a second.
const MOST: usize = 2048;
/// Columns of the table's own: the time, and the CPU time of the thread.
const OWN: usize = 2;

pub struct Table {
    names: Vec<String>,
    cells: Cells,
    rows: usize,
    period: Duration,
}

impl Table {
    pub fn new(names: Vec<String>, period: Duration) -> anyhow::Result<Table> {
        let cells = Cells::new(MOST * (OWN + names.len())).context("memory for the sampler")?;
        Ok(Table { names, cells, rows: 0, period })
    }

    /// As it is by now: longer than it was where rows were dropped.
    pub fn period(&self) -> Duration {
        self.period
    }

    /// Add a row of that time, which `read` fills.
    pub fn add(&mut self, t_ns: u64, cpu_ns: u64, read: impl FnOnce(&mut [u64])) {
        if self.rows == MOST {
            self.thin();
        }
        let width = OWN + self.names.len();
        let row = &mut self.cells.all()[self.rows * width..][..width];
        (row[0], row[1]) = (t_ns, cpu_ns);
        read(&mut row[OWN..]);
        self.rows += 1;
    }

    fn thin(&mut self) {
        let width = OWN + self.names.len();
        for row in 1..self.rows.div_ceil(2) {
            self.cells.all().copy_within(2 * row * width..(2 * row + 1) * width, row * width);
        }
        self.rows = self.rows.div_ceil(2);
        self.period *= 2;
    }

    /// All of it, by columns: one number for what never changed.
    pub fn told(mut self, asked: Duration, absent: BTreeMap<String, String>) -> Series {
        let (width, rows) = (OWN + self.names.len(), self.rows);
        let cells = self.cells.all();
        let column = |index: usize| (0..rows).map(|row| cells[row * width + index]).collect::<Vec<u64>>();
        let mut series = Series {
            asked_ns: asked.as_nanos() as u64,
            period_ns: self.period.as_nanos() as u64,
            t_ns: column(0),
            cpu_ns: column(1),
            absent,
            ..Series::default()
        };
        for (index, name) in self.names.iter().enumerate() {
            let values = column(OWN + index);
            match values.first() {
                Some(first) if values.iter().all(|value| value == first) && *first != NONE => {
                    series.constant.insert(name.clone(), *first);
                }
                _ => {
                    let known = values.into_iter().map(|value| (value != NONE).then_some(value)).collect();
                    series.changed.insert(name.clone(), known);
                }
            }
        }
        series
    }
}

/// Anonymous memory of base pages, which is there when it is written.
struct Cells {
    start: *mut u64,
    length: usize,
}

impl Cells {
    fn new(length: usize) -> std::io::Result<Cells> {
        let bytes = length * size_of::<u64>();
        // SAFETY: a fresh mapping that nothing else knows of; advice does not change what it holds.
        let start = unsafe {
            let start =
                mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)?;
            // A kernel without transparent huge pages refuses it, and has none.
            let _ = madvise(start, bytes, Advice::LinuxNoHugepage);
            start
        };
        Ok(Cells { start: start.cast(), length })
    }

    fn all(&mut self) -> &mut [u64] {
        // SAFETY: the mapping is ours alone, page-aligned, of that length, and all-zero bytes are numbers.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.length) }
    }
}

impl Drop for Cells {
    fn drop(&mut self) {
        // SAFETY: what was mapped is unmapped once, and no slice of it outlives this.
        let _ = unsafe { munmap(self.start.cast(), self.length * size_of::<u64>()) };
    }
}

// SAFETY: the pointer is to memory that this value alone owns.
unsafe impl Send for Cells {}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row in each second in which one is due.
    fn table(seconds: u64) -> Series {
        let mut table = Table::new(vec!["a".into(), "b".into(), "c".into()], Duration::from_secs(1)).unwrap();
        for second in 0..seconds {
            if second % table.period().as_secs() == 0 {
                let last = if second == 1 { NONE } else { 3 };
                table.add(second, 2 * second, |cells| cells.copy_from_slice(&[10 * second, 5, last]));
            }
        }
        table.told(Duration::from_secs(1), BTreeMap::new())
    }

    #[test]
    fn what_changes_is_a_column_and_what_does_not_a_number() {
        let series = table(3);
        assert_eq!((series.t_ns, series.cpu_ns), (vec![0, 1, 2], vec![0, 2, 4]));
        assert_eq!(series.constant, BTreeMap::from([("b".to_string(), 5)]));
        assert_eq!(series.changed["a"], [Some(0), Some(10), Some(20)]);
        assert_eq!(series.changed["c"], [Some(3), None, Some(3)]);
    }

    #[test]
    fn a_long_time_is_kept_whole_at_a_longer_period() {
        let series = table(5 * MOST as u64);
        assert!(series.t_ns.len() <= MOST && series.t_ns.len() > MOST / 2, "{}", series.t_ns.len());
        assert_eq!((series.asked_ns, series.period_ns), (1_000_000_000, 8_000_000_000));
        assert_eq!(series.t_ns[0], 0);
        // Rows stay whole.
        assert!(series.t_ns.iter().zip(&series.changed["a"]).all(|(t_ns, a)| *a == Some(10 * t_ns)));
        assert!(*series.t_ns.last().unwrap() >= 5 * MOST as u64 - 8);
    }
}
