//! What processes and threads have used, as getrusage(2) says.

use std::mem::MaybeUninit;

use serde::{Deserialize, Serialize};

/// Only the sum of user and system time is exact (the kernel splits it by ticks).
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Usage {
    pub user_s: f64,
    pub system_s: f64,
    pub peak_bytes: u64,
    pub minor_faults: u64,
    pub major_faults: u64,
    pub voluntary: u64,
    pub involuntary: u64,
}

impl Usage {
    /// Of `RUSAGE_SELF`, `RUSAGE_THREAD`, or `RUSAGE_CHILDREN`: all that were reaped, and all that those had reaped.
    pub fn of(who: libc::c_int) -> Self {
        let mut usage = MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: getrusage fills the structure; it cannot fail with these, and all-zero is a valid rusage.
        let usage = unsafe {
            libc::getrusage(who, usage.as_mut_ptr());
            usage.assume_init()
        };
        let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 * 1e-6;
        Self {
            user_s: seconds(usage.ru_utime),
            system_s: seconds(usage.ru_stime),
            peak_bytes: usage.ru_maxrss as u64 * 1024,
            minor_faults: usage.ru_minflt as u64,
            major_faults: usage.ru_majflt as u64,
            voluntary: usage.ru_nvcsw as u64,
            involuntary: usage.ru_nivcsw as u64,
        }
    }

    /// What has come since `before`; the peak is that of all the time.
    pub fn since(self, before: Self) -> Self {
        Self {
            user_s: self.user_s - before.user_s,
            system_s: self.system_s - before.system_s,
            peak_bytes: self.peak_bytes,
            minor_faults: self.minor_faults - before.minor_faults,
            major_faults: self.major_faults - before.major_faults,
            voluntary: self.voluntary - before.voluntary,
            involuntary: self.involuntary - before.involuntary,
        }
    }
}

/// Seconds that this thread has waited for a CPU: the second number of its schedstat, in nanoseconds.
pub fn waited_s() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanoseconds: f64 = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(nanoseconds * 1e-9)
}
