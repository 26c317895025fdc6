//! Which NUMA node a physical page lies in, from the memory blocks of sysfs.
//!
//! Source: Documentation/admin-guide/mm/memory-hotplug.rst of the Linux kernel (`nodeN/memoryM`, `block_size_bytes`).

use std::collections::HashMap;
use std::fs;
use std::path::Path;

/// What the kernel says of nodes.
#[derive(Debug, PartialEq, Eq)]
pub enum Nodes {
    /// There is one, or the kernel knows none.
    One(u32),
    /// By memory block of so many pages.
    Blocks { pages: u64, nodes: HashMap<u64, u32> },
    /// Several, and it does not say what lies where.
    Unknown,
}

impl Nodes {
    /// Those of this machine, whose base page has `base` bytes.
    pub fn of_machine(base: u64) -> Self {
        Self::below(Path::new("/sys/devices/system"), base)
    }

    fn below(system: &Path, base: u64) -> Self {
        let numbered = |folder: &Path, prefix: &str| -> Vec<u64> {
            let names = fs::read_dir(folder).into_iter().flatten().flatten();
            names.filter_map(|entry| entry.file_name().to_str()?.strip_prefix(prefix)?.parse().ok()).collect()
        };
        let numbers = numbered(&system.join("node"), "node");
        if numbers.len() <= 1 {
            return Self::One(numbers.first().map_or(0, |number| *number as u32));
        }
        let size = fs::read_to_string(system.join("memory/block_size_bytes")).unwrap_or_default();
        let pages = u64::from_str_radix(size.trim(), 16).unwrap_or(0) / base;
        let nodes: HashMap<u64, u32> = numbers
            .iter()
            .flat_map(|node| {
                let blocks = numbered(&system.join(format!("node/node{node}")), "memory");
                blocks.into_iter().map(|block| (block, *node as u32))
            })
            .collect();
        if pages == 0 || nodes.is_empty() { Self::Unknown } else { Self::Blocks { pages, nodes } }
    }

    /// Whether all pages lie in the same.
    pub fn is_one(&self) -> bool {
        matches!(self, Self::One(_))
    }

    /// The node of page `pfn`, and how many pages from it on surely lie in the same.
    pub fn of(&self, pfn: u64) -> (Option<u32>, u64) {
        match self {
            Self::One(node) => (Some(*node), u64::MAX),
            Self::Blocks { pages, nodes } => (nodes.get(&(pfn / pages)).copied(), pages - pfn % pages),
            Self::Unknown => (None, u64::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_the_node_whose_folder_names_them() {
        let folder = tempfile::tempdir().unwrap();
        let system = folder.path();
        for path in ["memory", "node/node0/memory0", "node/node0/memory2", "node/node1/memory1", "node/power"] {
            fs::create_dir_all(system.join(path)).unwrap();
        }
        assert_eq!(Nodes::below(system, 4096), Nodes::Unknown);
        fs::write(system.join("memory/block_size_bytes"), "8000000\n").unwrap();
        let found = Nodes::below(system, 4096);
        let block = (128 << 20) / 4096;
        assert_eq!(found.of(5), (Some(0), block - 5));
        assert_eq!(found.of(block), (Some(1), block));
        assert_eq!(found.of(3 * block + 1), (None, block - 1));
        fs::remove_dir_all(system.join("node/node1")).unwrap();
        assert_eq!(Nodes::below(system, 4096), Nodes::One(0));
        assert_eq!(Nodes::below(&system.join("nothing"), 4096).of(7), (Some(0), u64::MAX));
    }
}
