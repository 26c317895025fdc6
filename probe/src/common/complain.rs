//! What people are told on stderr, and the status with which a failure ends the probe.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

use crate::common::mistake::Mistake;

/// Of a probe that had no room for what it had to say (EX_IOERR of sysexits.h): nothing of it was the workload's fault.
const NO_ROOM: u8 = 74;

/// Say it; on a full disk nobody hears it, and nothing else happens (eprintln would abort).
pub fn complain(text: impl Display) {
    let _ = writeln!(io::stderr(), "hugewise-probe: {text}");
}

pub fn status(error: &anyhow::Error) -> u8 {
    let is_full = |cause: &io::Error| {
        matches!(cause.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge)
    };
    if error.is::<Mistake>() {
        2
    } else if error.chain().filter_map(|cause| cause.downcast_ref()).any(is_full) {
        NO_ROOM
    } else {
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn a_full_disk_has_a_status_of_its_own() {
        let full = Err::<(), _>(io::Error::from_raw_os_error(libc::ENOSPC)).context("an event").unwrap_err();
        let other = Err::<(), _>(io::Error::from_raw_os_error(libc::EIO)).context("an event").unwrap_err();
        assert_eq!([status(&full), status(&other), status(&Mistake("x".into()).into())], [NO_ROOM, 1, 2]);
    }
}
