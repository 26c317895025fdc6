//! The password of redis: read from a file, so that neither a process list nor a log has it, and told on each connection.

use std::fmt;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::common::mistake::Mistake;
use crate::load::fell::Fell;

/// Most bytes of an answer to it.
const LONGEST: usize = 512;

pub struct Secret(Vec<u8>);

impl Secret {
    /// The first line of the file.
    pub fn read(path: &Path) -> Result<Secret> {
        let text = fs::read(path).with_context(|| format!("--secret {}", path.display()))?;
        let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
        if line.is_empty() {
            return Err(Mistake(format!("--secret {}: its first line is empty", path.display())).into());
        }
        Ok(Secret(line.to_vec()))
    }

    /// AUTH, as RESP has it.
    fn request(&self) -> Vec<u8> {
        let mut request = format!("*2\r\n$4\r\nAUTH\r\n${}\r\n", self.0.len()).into_bytes();
        request.extend_from_slice(&self.0);
        request.extend_from_slice(b"\r\n");
        request
    }

    /// Say it, and hear that it is right; the same connection comes back.
    pub fn show(&self, socket: OwnedFd) -> Result<OwnedFd> {
        // A File reads and writes any descriptor; seeking is never asked of it.
        let mut stream = File::from(socket);
        stream.write_all(&self.request())?;
        let mut answer = Vec::new();
        let mut byte = [0u8];
        while !answer.ends_with(b"\n") && answer.len() < LONGEST {
            if stream.read(&mut byte)? == 0 {
                bail!(Fell("it closed the connection".into()));
            }
            answer.push(byte[0]);
        }
        match answer.as_slice() {
            b"+OK\r\n" => Ok(stream.into()),
            other => bail!(Fell(format!("it answered {:?}", String::from_utf8_lossy(other).trim_end()))),
        }
    }
}

impl fmt::Debug for Secret {
    /// Never what it is.
    fn fmt(&self, form: &mut fmt::Formatter<'_>) -> fmt::Result {
        form.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    fn answered(answer: &'static [u8]) -> (Result<OwnedFd>, Vec<u8>) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let server = std::thread::spawn(move || {
            let mut heard = [0u8; 32];
            let length = theirs.read(&mut heard).unwrap();
            theirs.write_all(answer).unwrap();
            heard[..length].to_vec()
        });
        let shown = Secret(b"ab12".to_vec()).show(ours.into());
        (shown, server.join().unwrap())
    }

    #[test]
    fn it_is_told_as_the_protocol_says_and_a_wrong_one_is_an_error() {
        let (shown, heard) = answered(b"+OK\r\n");
        assert!(shown.is_ok());
        assert_eq!(heard, b"*2\r\n$4\r\nAUTH\r\n$4\r\nab12\r\n");
        let error = answered(b"-WRONGPASS invalid\r\n").0.unwrap_err();
        assert!(error.is::<Fell>() && error.to_string().contains("WRONGPASS"), "{error}");
        assert!(!format!("{:?}", Secret(b"ab12".to_vec())).contains("ab12"));
    }

    #[test]
    fn it_is_the_first_line_of_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("secret");
        fs::write(&file, "one\ntwo\n").unwrap();
        assert_eq!(Secret::read(&file).unwrap().0, b"one");
        fs::write(&file, "\n").unwrap();
        assert!(Secret::read(&file).unwrap_err().is::<Mistake>());
        assert!(Secret::read(&folder.path().join("absent")).is_err());
    }
}
