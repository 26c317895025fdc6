//! What `folios` says of a process: the body of the event `folios`. Sizes are bytes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Folios {
    pub pid: u32,
    pub mappings: Vec<FoliosOfMapping>,
    pub scan_ns: u64,
}

/// A mapping, as /proc/PID/maps has it, and what backs it: those that nothing backs are left out.
///
/// `bytes` is by `kind:folio size:state`: kind anon, shmem, hugetlb or file; state `pmd` (mapped by the PMD or above),
/// `aligned` and `unaligned` (by base entries, whole), `partial` (by base entries, not whole).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FoliosOfMapping {
    pub start: u64,
    pub end: u64,
    pub permissions: String,
    pub offset: u64,
    pub device: String,
    pub inode: u64,
    pub name: String,
    pub bytes: BTreeMap<String, u64>,
    /// Of these, what was counted already, in this process or one before (`--once`).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub again: BTreeMap<String, u64>,
    /// By NUMA node; nothing where the kernel does not say.
    pub nodes: BTreeMap<String, u64>,
    pub swapped: u64,
    /// Reads as zero, and has no memory.
    pub zero: u64,
    /// In aligned blocks of the PMD size that are touched throughout, and that the PMD does not map.
    pub whole: u64,
}

impl Folios {
    pub fn example() -> Self {
        let bytes = |pairs: &[(&str, u64)]| pairs.iter().map(|(key, size)| ((*key).into(), *size)).collect();
        let found = [("anon:2097152:pmd", 2 << 20), ("anon:4096:aligned", 8192), ("anon:65536:partial", 4096)];
        Self {
            pid: 4242,
            mappings: vec![FoliosOfMapping {
                start: 0x7f00_0000_0000,
                end: 0x7f00_0040_0000,
                permissions: "rw-p".into(),
                offset: 0,
                device: "00:00".into(),
                inode: 0,
                name: "[heap]".into(),
                bytes: bytes(&found),
                again: bytes(&found[..1]),
                nodes: [("0".into(), (2 << 20) + 12288)].into(),
                swapped: 4096,
                zero: 0,
                whole: 0,
            }],
            scan_ns: 250_000,
        }
    }
}
