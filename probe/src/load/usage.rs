//! CPU time of one thread, and its time without one.

use std::mem::MaybeUninit;

/// Seconds; only the sum is exact where the kernel splits it by ticks.
#[derive(Debug, Clone, Copy, Default)]
pub struct Usage {
    pub user_s: f64,
    pub system_s: f64,
    /// It could have run, but another one had the CPU; None where the kernel does not count that.
    pub wait_s: Option<f64>,
}

impl Usage {
    pub fn of_this_thread() -> Self {
        let mut usage = MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: getrusage fills the structure; RUSAGE_THREAD cannot fail, and all-zero is a valid rusage.
        let usage = unsafe {
            libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
            usage.assume_init()
        };
        let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 * 1e-6;
        Self { user_s: seconds(usage.ru_utime), system_s: seconds(usage.ru_stime), wait_s: waited() }
    }

    pub fn since(self, before: Self) -> Self {
        Self {
            user_s: self.user_s - before.user_s,
            system_s: self.system_s - before.system_s,
            wait_s: self.wait_s.zip(before.wait_s).map(|(now, then)| now - then),
        }
    }
}

/// Seconds that this thread has waited for a CPU: the second number of its schedstat, in nanoseconds.
fn waited() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanoseconds: f64 = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(nanoseconds * 1e-9)
}
