//! The password of a server: read from a file, so that neither a process list nor a log has it, and told on each
//! connection, as RESP (redis) or the text protocol (memcached -Y: a name and a password) has it.

use std::fmt;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::common::mistake::Mistake;
use crate::load::fell::Fell;
use crate::load::options::Protocol;

/// Most bytes of an answer to it.
const LONGEST: usize = 512;

pub struct Secret {
    line: Vec<u8>,
    protocol: Protocol,
}

impl Secret {
    /// The first line of the file.
    pub fn read(path: &Path, protocol: Protocol) -> Result<Secret> {
        let text = fs::read(path).with_context(|| format!("--secret {}", path.display()))?;
        let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
        if line.is_empty() {
            return Err(Mistake(format!("--secret {}: its first line is empty", path.display())).into());
        }
        Ok(Secret { line: line.to_vec(), protocol })
    }

    /// AUTH of redis; a key that is set, of memcached.
    fn request(&self) -> Vec<u8> {
        let length = self.line.len();
        let mut request = match self.protocol {
            Protocol::Redis => format!("*2\r\n$4\r\nAUTH\r\n${length}\r\n"),
            Protocol::Memcached => format!("set auth 0 0 {length}\r\n"),
        }
        .into_bytes();
        request.extend_from_slice(&self.line);
        request.extend_from_slice(b"\r\n");
        request
    }

    fn accepted(&self) -> &'static [u8] {
        match self.protocol {
            Protocol::Redis => b"+OK\r\n",
            Protocol::Memcached => b"STORED\r\n",
        }
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
            right if right == self.accepted() => Ok(stream.into()),
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

    fn secret(line: &[u8], protocol: Protocol) -> Secret {
        Secret { line: line.to_vec(), protocol }
    }

    fn answered(secret: &Secret, answer: &'static [u8]) -> (Result<OwnedFd>, Vec<u8>) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let server = std::thread::spawn(move || {
            let mut heard = [0u8; 64];
            let length = theirs.read(&mut heard).unwrap();
            theirs.write_all(answer).unwrap();
            heard[..length].to_vec()
        });
        let shown = secret.show(ours.into());
        (shown, server.join().unwrap())
    }

    #[test]
    fn it_is_told_as_the_protocol_says_and_a_wrong_one_is_an_error() {
        let redis = secret(b"ab12", Protocol::Redis);
        let (shown, heard) = answered(&redis, b"+OK\r\n");
        assert!(shown.is_ok());
        assert_eq!(heard, b"*2\r\n$4\r\nAUTH\r\n$4\r\nab12\r\n");
        let error = answered(&redis, b"-WRONGPASS invalid\r\n").0.unwrap_err();
        assert!(error.is::<Fell>() && error.to_string().contains("WRONGPASS"), "{error}");
        assert!(!format!("{redis:?}").contains("ab12"));
        let memcached = secret(b"hugewise ab12", Protocol::Memcached);
        let (shown, heard) = answered(&memcached, b"STORED\r\n");
        assert!(shown.is_ok());
        assert_eq!(heard, b"set auth 0 0 13\r\nhugewise ab12\r\n");
        let error = answered(&memcached, b"CLIENT_ERROR authentication failure\r\n").0.unwrap_err();
        assert!(error.is::<Fell>() && error.to_string().contains("authentication failure"), "{error}");
    }

    #[test]
    fn it_is_the_first_line_of_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("secret");
        fs::write(&file, "one\ntwo\n").unwrap();
        assert_eq!(Secret::read(&file, Protocol::Redis).unwrap().line, b"one");
        fs::write(&file, "\n").unwrap();
        assert!(Secret::read(&file, Protocol::Redis).unwrap_err().is::<Mistake>());
        assert!(Secret::read(&folder.path().join("absent"), Protocol::Redis).is_err());
    }
}
