//! The size of a cache line.

#[cfg(target_env = "musl")]
use crate::machine::pages;

/// The size of a cache line in bytes, as the C library knows it; 64 where it does not.
pub fn line() -> u64 {
    stated_line().filter(|line| line.is_power_of_two() && *line >= 16).unwrap_or(64)
}

#[cfg(not(target_env = "musl"))]
fn stated_line() -> Option<u64> {
    // SAFETY: sysconf only reads.
    let stated = unsafe { libc::sysconf(libc::_SC_LEVEL1_DCACHE_LINESIZE) };
    u64::try_from(stated).ok()
}

/// musl does not know it; the kernel does, where the firmware says it.
#[cfg(target_env = "musl")]
fn stated_line() -> Option<u64> {
    pages::read_number("/sys/devices/system/cpu/cpu0/cache/index0/coherency_line_size")
}
