//! What people are told: on stderr what is wrong and how to put it right, on stdout what they asked for.

use core::ffi::c_int;

use hugewise_ground::sys;
use hugewise_ground::text::Line;

/// What has been said already, and the exit status that it means.
#[derive(Debug, PartialEq, Eq)]
pub struct Failure(pub c_int);

pub const USAGE: c_int = 2;
pub const CANNOT: c_int = 125;
pub const NOT_EXECUTABLE: c_int = 126;
pub const NOT_FOUND: c_int = 127;

pub struct Say {
    pub name: &'static str,
}

impl Say {
    /// `what` is quoted: it is the user's. Where it is empty, the reason stands alone.
    pub fn refuse(&self, status: c_int, what: &[u8], reason: &str, cure: &str) -> Failure {
        let mut room = [0u8; 1024];
        let mut line = Line::over(&mut room);
        line.say(self.name.as_bytes()).say(b": ");
        if !what.is_empty() {
            line.quote(&what[..what.len().min(300)]).say(b": ");
        }
        line.say(reason.as_bytes()).say(b"\n");
        if !cure.is_empty() {
            line.say(b"  cure: ").say(cure.as_bytes()).say(b"\n");
        }
        self.write(2, line.bytes());
        Failure(status)
    }

    /// The exit status: 0, or 1 where stdout took nothing.
    pub fn tell(&self, text: &str) -> c_int {
        c_int::from(!self.write(1, text.as_bytes()))
    }

    fn write(&self, descriptor: c_int, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            match sys::write(descriptor, bytes) {
                Ok(0) => return false,
                Ok(count) => bytes = &bytes[count..],
                Err(sys::EINTR) => {}
                Err(_) => return false,
            }
        }
        true
    }
}
