//! What is read: files of the kernel that count for the whole machine, each opened once and read from its beginning.
//!
//! Sources: Documentation/filesystems/proc.rst, admin-guide/mm/transhuge.rst, admin-guide/mm/hugetlbpage.rst and
//! accounting/psi.rst of the Linux kernel. Names are those of the files, after a word for where they come from.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A value that could not be read.
pub const NONE: u64 = u64::MAX;

const THP: &str = "/sys/kernel/mm/transparent_hugepage";
const HUGETLB: &str = "/sys/kernel/mm/hugepages";
const KHUGEPAGED: [&str; 2] = ["pages_collapsed", "full_scans"];
const PRESSURE: [&str; 3] = ["cpu", "memory", "io"];
const POOL: [&str; 3] = ["nr_hugepages", "free_hugepages", "resv_hugepages"];

/// Of /proc/vmstat: what begins so.
const VMSTAT: [&str; 10] = [
    "pgfault",
    "pgmajfault",
    "pswp",
    "thp_",
    "compact_",
    "allocstall",
    "pgmigrate_",
    "oom_kill",
    "pgscan_direct",
    "pgsteal_direct",
];
/// Of /proc/vmstat: what is called so; memory in base pages.
const MEMORY: [&str; 9] = [
    "nr_free_pages",
    "nr_anon_pages",
    "nr_file_pages",
    "nr_shmem",
    "nr_page_table_pages",
    "nr_anon_transparent_hugepages",
    "nr_shmem_hugepages",
    "nr_shmem_pmdmapped",
    "nr_unevictable",
];

/// The form of a file.
#[derive(Debug)]
enum Form {
    /// A number alone.
    Number,
    /// Lines of a name and a number; those wanted, in their order.
    Lines(Vec<Vec<u8>>),
    /// `some avg10=0.00 ... total=N`, and `full` where there is one: microseconds.
    Pressure,
    /// `Node 0, zone Normal 7 0 1 ...`: free blocks by order, summed over the zones.
    Buddy,
    /// The process number that was given last: processes and threads that have begun, in this process's namespace.
    LastPid,
}

struct Source {
    file: File,
    form: Form,
    columns: usize,
}

/// All files, with one column for each value.
pub struct Sources {
    sources: Vec<Source>,
    names: Vec<String>,
    buffer: Vec<u8>,
}

impl Sources {
    /// Open what is there. What is not has its reason, by name.
    pub fn open() -> (Sources, BTreeMap<String, String>) {
        Self::below(Path::new("/"))
    }

    fn below(root: &Path) -> (Sources, BTreeMap<String, String>) {
        let mut found = Sources { sources: Vec::new(), names: Vec::new(), buffer: vec![0; 64 << 10] };
        let mut absent = BTreeMap::new();
        let at = |path: &str| root.join(path.trim_start_matches('/'));
        found.open_lines(&at("/proc/vmstat"), &mut absent);
        for name in KHUGEPAGED {
            found.take(&format!("khugepaged.{name}"), &at(&format!("{THP}/khugepaged/{name}")), &mut absent);
        }
        for (size, folder) in sizes(&at(THP)) {
            for name in names(&folder.join("stats")) {
                found.take(&format!("thp.{size}.{name}"), &folder.join("stats").join(name), &mut absent);
            }
        }
        if !found.names.iter().any(|name| name.starts_with("thp.")) {
            let why = format!("{THP}/hugepages-*kB/stats: not there (counters by page size came with Linux 6.10)");
            absent.insert("thp".into(), why);
        }
        for (size, folder) in sizes(&at(HUGETLB)) {
            for name in POOL {
                found.take(&format!("hugetlb.{size}.{name}"), &folder.join(name), &mut absent);
            }
        }
        for resource in PRESSURE {
            let name = format!("pressure.{resource}");
            found.open_form(&name, &at(&format!("/proc/pressure/{resource}")), Form::Pressure, &mut absent);
        }
        found.open_form("free", &at("/proc/buddyinfo"), Form::Buddy, &mut absent);
        found.open_form("processes.last_pid", &at("/proc/loadavg"), Form::LastPid, &mut absent);
        (found, absent)
    }

    pub fn names(&self) -> Vec<String> {
        self.names.clone()
    }

    /// Read all files once, into a row with a place for each name.
    pub fn read(&mut self, row: &mut [u64]) {
        let mut rest = row;
        for source in &self.sources {
            let (own, others) = rest.split_at_mut(source.columns);
            own.fill(NONE);
            if let Ok(length) = source.file.read_at(&mut self.buffer, 0) {
                source.form.parse(&self.buffer[..length], own);
            }
            rest = others;
        }
    }

    fn take(&mut self, name: &str, path: &Path, absent: &mut BTreeMap<String, String>) {
        self.open_form(name, path, Form::Number, absent);
    }

    fn open_lines(&mut self, path: &Path, absent: &mut BTreeMap<String, String>) {
        let wanted = |name: &str| VMSTAT.iter().any(|start| name.starts_with(start)) || MEMORY.contains(&name);
        let text = fs::read_to_string(path).unwrap_or_default();
        let names: Vec<&str> =
            text.lines().filter_map(|line| line.split(' ').next()).filter(|name| wanted(name)).collect();
        let form = Form::Lines(names.iter().map(|name| format!("{name} ").into_bytes()).collect());
        let before = self.names.len();
        self.open_form("vmstat", path, form, absent);
        if self.names.len() > before {
            self.names.truncate(before);
            self.names.extend(names.iter().map(|name| format!("vmstat.{name}")));
        }
    }

    fn open_form(&mut self, name: &str, path: &Path, form: Form, absent: &mut BTreeMap<String, String>) {
        let read = File::open(path).and_then(|file| Ok((file.read_at(&mut self.buffer, 0)?, file)));
        let (length, file) = match read {
            Ok(read) => read,
            Err(error) => {
                absent.insert(name.into(), format!("{}: {}", path.display(), plain(&error)));
                return;
            }
        };
        let columns = form.columns(&self.buffer[..length]);
        if columns.is_empty() {
            absent.insert(name.into(), format!("{}: not in the form that is known", path.display()));
            return;
        }
        self.sources.push(Source { file, form, columns: columns.len() });
        self.names.extend(columns.iter().map(|column| format!("{name}{column}")));
    }
}

impl Form {
    /// The names of its values behind the name of the file.
    fn columns(&self, text: &[u8]) -> Vec<String> {
        match self {
            Self::Number | Self::LastPid => last_number(text).map(|_| String::new()).into_iter().collect(),
            Self::Lines(names) => vec![String::new(); names.len()],
            Self::Pressure => lines(text).filter_map(|line| Some(format!(".{}", word(line, 0)?))).collect(),
            Self::Buddy => {
                let orders = lines(text).map(|line| blocks(line).count()).max().unwrap_or(0);
                (0..orders).map(|order| format!(".order{order}")).collect()
            }
        }
    }

    /// Put its values where they belong; what is not found stays as it was.
    fn parse(&self, text: &[u8], out: &mut [u64]) {
        match self {
            Self::Number | Self::LastPid => out[0] = last_number(text).unwrap_or(NONE),
            Self::Lines(names) => {
                let mut wanted = names.iter().zip(out);
                let mut next = wanted.next();
                for line in lines(text) {
                    let Some((name, place)) = &mut next else { return };
                    if let Some(value) = line.strip_prefix(name.as_slice()) {
                        **place = number(value).unwrap_or(NONE);
                        next = wanted.next();
                    }
                }
            }
            Self::Pressure => {
                for (line, place) in lines(text).zip(out) {
                    let total = line.rsplit(|byte| *byte == b'=').next();
                    *place = total.and_then(number).unwrap_or(NONE);
                }
            }
            Self::Buddy => {
                for line in lines(text) {
                    for (count, place) in blocks(line).zip(out.iter_mut()) {
                        *place = if *place == NONE { count } else { *place + count };
                    }
                }
            }
        }
    }
}

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty())
}

fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}

fn word(line: &[u8], index: usize) -> Option<String> {
    words(line).nth(index).map(|word| String::from_utf8_lossy(word).into_owned())
}

/// Free blocks of a zone, by order.
fn blocks(line: &[u8]) -> impl Iterator<Item = u64> {
    words(line).skip(4).filter_map(number)
}

fn number(text: &[u8]) -> Option<u64> {
    let digits = text.trim_ascii();
    let is_number = !digits.is_empty() && digits.len() < 20 && digits.iter().all(u8::is_ascii_digit);
    is_number.then(|| digits.iter().fold(0u64, |value, digit| value.wrapping_mul(10) + u64::from(digit - b'0')))
}

/// The last word, where it is a number.
fn last_number(text: &[u8]) -> Option<u64> {
    words(text).last().and_then(number)
}

/// The folders `hugepages-NkB` below one, by size in bytes.
fn sizes(folder: &Path) -> BTreeMap<u64, PathBuf> {
    let of = |name: &str| Some(name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse::<u64>().ok()? << 10);
    names(folder).into_iter().filter_map(|name| Some((of(&name)?, folder.join(&name)))).collect()
}

fn names(folder: &Path) -> Vec<String> {
    let mut found: Vec<String> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|one| one.file_name().into_string().ok())
        .collect();
    found.sort();
    found
}

/// The system's words alone, as `No such file or directory`.
fn plain(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    use crate::common::fuzz;

    fn host(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn files_become_named_columns() {
        let root = host(&[
            ("proc/vmstat", "nr_free_pages 7\nother 1\npgfault 12\nthp_fault_alloc 3\nthp_fault_fallback 4\n"),
            ("sys/kernel/mm/transparent_hugepage/khugepaged/full_scans", "5\n"),
            ("sys/kernel/mm/transparent_hugepage/hugepages-64kB/stats/nr_anon", "9\n"),
            ("sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled", "always\n"),
            ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "20\n"),
            ("proc/pressure/memory", "some avg10=0.00 avg60=1.23 avg300=0.00 total=77\nfull avg10=0.00 total=66\n"),
            ("proc/buddyinfo", "Node 0, zone      DMA      1      2 \nNode 0, zone   Normal      10     20 \n"),
            ("proc/loadavg", "0.10 0.20 0.30 2/150 4711\n"),
        ]);
        let (mut sources, absent) = Sources::below(root.path());
        let mut row = vec![0; sources.names().len()];
        sources.read(&mut row);
        let found: BTreeMap<_, _> = sources.names().into_iter().zip(row).collect();
        let expected = [
            ("free.order0", 11),
            ("free.order1", 22),
            ("hugetlb.2097152.nr_hugepages", 20),
            ("khugepaged.full_scans", 5),
            ("pressure.memory.full", 66),
            ("pressure.memory.some", 77),
            ("processes.last_pid", 4711),
            ("thp.65536.nr_anon", 9),
            ("vmstat.nr_free_pages", 7),
            ("vmstat.pgfault", 12),
            ("vmstat.thp_fault_alloc", 3),
            ("vmstat.thp_fault_fallback", 4),
        ];
        assert_eq!(found, expected.map(|(name, value)| (name.to_string(), value)).into());
        assert!(absent["khugepaged.pages_collapsed"].ends_with("No such file or directory"), "{absent:?}");
        assert!(absent.contains_key("pressure.cpu") && absent.contains_key("hugetlb.2097152.free_hugepages"));
        assert!(!absent.contains_key("thp"));
    }

    #[test]
    fn what_a_machine_does_not_have_is_absent_and_never_zero() {
        let root = host(&[("proc/vmstat", "pgfault 1\n")]);
        let (mut sources, absent) = Sources::below(root.path());
        let mut row = vec![0; sources.names().len()];
        // Gone between two readings.
        fs::write(root.path().join("proc/vmstat"), "").unwrap();
        sources.read(&mut row);
        assert_eq!((sources.names(), row), (vec!["vmstat.pgfault".to_string()], vec![NONE]));
        for name in ["thp", "free", "pressure.io", "khugepaged.full_scans", "processes.last_pid"] {
            assert!(absent.contains_key(name), "{name}: {absent:?}");
        }
    }

    #[test]
    fn this_machine_has_its_faults() {
        let (mut sources, _) = Sources::open();
        let mut row = vec![0; sources.names().len()];
        sources.read(&mut row);
        let place = sources.names().iter().position(|name| name == "vmstat.pgfault").unwrap();
        assert!(row[place] > 0 && row[place] != NONE);
    }

    proptest! {
        #![proptest_config(fuzz::config())]

        #[test]
        fn whatever_a_file_says_is_read_or_not(
            text in fuzz::broken(&["Node 0, zone  DMA 1 2", "some avg10=0.00 total=77", "pgfault 1", "1 2 3/4 5"]),
        ) {
            for form in [Form::Number, Form::Pressure, Form::Buddy, Form::LastPid, Form::Lines(vec![b"pgfault ".to_vec()])] {
                let mut row = vec![NONE; form.columns(&text).len()];
                if !row.is_empty() {
                    form.parse(&text, &mut row);
                }
            }
        }
    }
}
