//! The lines of the agent: requests of the host, answers and events. docs/design/guests.md is the contract.

use std::io;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::protocol::event::Source;

/// Longest line in bytes, with its newline, both ways.
pub const LONGEST_LINE: usize = 1 << 20;
/// Most bytes of a file that one answer can hold.
pub const LONGEST_PART: usize = 512 << 10;
/// Version of this protocol, in the hello.
pub const VERSION: u32 = 1;

/// What a request asks for, by its `do`.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum Do {
    Read {
        path: String,
    },
    Write {
        path: String,
        text: String,
    },
    Names {
        path: String,
    },
    Status {
        path: String,
    },
    Make {
        path: String,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
    },
    Remove {
        path: String,
    },
    Put {
        path: String,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        offset: u64,
        #[serde(deserialize_with = "decoded")]
        data: Vec<u8>,
    },
    Get {
        path: String,
        offset: u64,
        length: u64,
    },
    Mount {
        source: String,
        target: String,
        #[serde(rename = "type")]
        kind: String,
        options: Option<String>,
    },
    Network {
        interface: String,
        address: std::net::Ipv4Addr,
        prefix: u8,
        gateway: Option<std::net::Ipv4Addr>,
    },
    Ports {
        count: usize,
    },
    Spawn {
        process: u64,
        spec: Value,
        /// It meets a barrier, which `release` opens.
        #[serde(default)]
        held: bool,
    },
    Release {
        process: u64,
    },
    Signal {
        pid: i32,
        number: i32,
    },
    End {
        process: u64,
        number: i32,
    },
    Coverage {
        pid: u32,
        ranges: Option<Vec<(u64, u64)>>,
        source: Source,
    },
    Ask {
        arguments: Vec<String>,
    },
    Wait {
        process: u64,
    },
    Settle {
        seconds: f64,
    },
    Clock {},
    Poweroff {},
}

/// A line that was understood, or why it was not.
pub struct Request {
    /// The host's number for it, where the line has one.
    pub id: Option<u64>,
    pub what: Result<Do, Failure>,
}

/// What the agent says: one line each.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Said {
    Hello { hello: Hello },
    Line { process: u64, line: String },
    Ready { process: u64, ready: bool },
    Ended { process: u64, ended: Ended },
    Ok { id: u64, ok: Value },
    Error { id: Option<u64>, error: Failure },
}

/// The first line.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Hello {
    pub v: u32,
    pub probe: String,
    pub arch: String,
    pub release: String,
    pub page_size: u64,
    pub cpus: Vec<usize>,
    pub boot_id: String,
}

/// How a launcher ended: its exit status (128 + signal), and the last of its stderr.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ended {
    pub status: i32,
    pub stderr: String,
}

/// Why a request was not done.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Failure {
    pub errno: i32,
    pub message: String,
}

impl Failure {
    pub fn new(errno: i32, message: impl Into<String>) -> Failure {
        Failure { errno, message: message.into() }
    }

    /// A request that makes no sense.
    pub fn invalid(message: impl Into<String>) -> Failure {
        Failure::new(libc::EINVAL, message)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        let text = error.to_string();
        match error.raw_os_error() {
            Some(errno) => Failure::new(errno, text.strip_suffix(&format!(" (os error {errno})")).unwrap_or(&text)),
            None => Failure::new(libc::EIO, text),
        }
    }
}

impl From<rustix::io::Errno> for Failure {
    fn from(errno: rustix::io::Errno) -> Failure {
        io::Error::from(errno).into()
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Failure {
        let errno = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>()?.raw_os_error());
        Failure::new(errno.unwrap_or(libc::EIO), format!("{error:#}"))
    }
}

/// Read a line of the host.
pub fn parse(line: &[u8]) -> Request {
    let malformed = |id, error: serde_json::Error| Request { id, what: Err(Failure::invalid(error.to_string())) };
    let mut value: Value = match serde_json::from_slice(line) {
        Ok(value) => value,
        Err(error) => return malformed(None, error),
    };
    let id = value.as_object_mut().and_then(|fields| fields.remove("id")).and_then(|id| id.as_u64());
    if id.is_none() {
        return Request { id, what: Err(Failure::invalid("a request is an object with a whole number \"id\"")) };
    }
    // Told apart from wrong fields, as a newer host may know more than this agent.
    let unknown = value.get("do").and_then(Value::as_str).filter(|name| !NAMES.contains(name)).map(str::to_owned);
    if let Some(name) = unknown {
        return Request { id, what: Err(Failure::new(libc::ENOSYS, format!("\"do\": {name:?} is not known here"))) };
    }
    match serde_json::from_value(value) {
        Ok(what) => Request { id, what: Ok(what) },
        Err(error) => malformed(id, error),
    }
}

const NAMES: [&str; 21] = [
    "read", "write", "names", "status", "make", "remove", "put", "get", "mount", "network", "ports", "spawn",
    "release", "signal", "end", "coverage", "ask", "wait", "settle", "clock", "poweroff",
];

/// A line for the host, with its newline. None: it is an event, and longer than a line may be.
pub fn encode(said: &Said) -> Option<Vec<u8>> {
    let mut line = serde_json::to_vec(said).expect("strings and numbers alone");
    line.push(b'\n');
    if line.len() <= LONGEST_LINE {
        return Some(line);
    }
    let Said::Ok { id, .. } = said else { return None };
    let message = format!("the answer has {} bytes, and a line at most {LONGEST_LINE}", line.len());
    encode(&Said::Error { id: Some(*id), error: Failure::new(libc::EMSGSIZE, message) })
}

/// Bytes as text.
pub fn encoded(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

fn decoded<'de, D: Deserializer<'de>>(source: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(source)?;
    STANDARD.decode(text).map_err(|error| serde::de::Error::custom(format!("data: {error}")))
}

/// One example of each line that the agent says.
pub fn examples() -> Vec<Said> {
    vec![
        Said::Hello {
            hello: Hello {
                v: VERSION,
                probe: "0.1.0".into(),
                arch: "aarch64".into(),
                release: "6.12.0-arm64-16k".into(),
                page_size: 16384,
                cpus: vec![0, 1],
                boot_id: "b3a1e1d8-5d0b-4f0e-9a39-0a54d5a0c3f1".into(),
            },
        },
        Said::Line { process: 7, line: "{\"ev\":\"phase\",\"t_ns\":5,\"name\":\"timed\"}".into() },
        Said::Ready { process: 7, ready: true },
        Said::Ended { process: 7, ended: Ended { status: 0, stderr: String::new() } },
        Said::Ok { id: 1, ok: serde_json::json!({"text": "always [madvise] never\n"}) },
        Said::Error { id: Some(2), error: io::Error::from_raw_os_error(libc::ENOENT).into() },
        Said::Error { id: None, error: Failure::invalid("expected value at line 1 column 1") },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    use crate::common::fuzz;

    #[test]
    fn requests_are_read() {
        let request = parse(br#"{"id": 3, "do": "get", "path": "/x", "offset": 5, "length": 6}"#);
        assert_eq!(request.id, Some(3));
        assert_eq!(request.what.unwrap(), Do::Get { path: "/x".into(), offset: 5, length: 6 });
        let request = parse(br#"{"id": 4, "do": "put", "path": "/x", "mode": 420, "offset": 0, "data": "AAH/"}"#);
        let Ok(Do::Put { data, mode, uid, .. }) = request.what else { panic!("not a put") };
        assert_eq!((data, mode, uid), (vec![0, 1, 255], Some(0o644), None));
        assert_eq!(parse(br#"{"id": 5, "do": "poweroff"}"#).what.unwrap(), Do::Poweroff {});
    }

    #[test]
    fn what_is_not_understood_has_a_reason() {
        for (line, id, errno) in [
            (&b"not json"[..], None, libc::EINVAL),
            (b"[1]", None, libc::EINVAL),
            (br#"{"do": "poweroff"}"#, None, libc::EINVAL),
            (br#"{"id": 1}"#, Some(1), libc::EINVAL),
            (br#"{"id": 2, "do": "fly"}"#, Some(2), libc::ENOSYS),
            (br#"{"id": 3, "do": "read"}"#, Some(3), libc::EINVAL),
            (br#"{"id": 4, "do": "read", "path": "/x", "more": 1}"#, Some(4), libc::EINVAL),
            (br#"{"id": 5, "do": "put", "path": "/x", "offset": 0, "data": "?"}"#, Some(5), libc::EINVAL),
            (b"\xff", None, libc::EINVAL),
        ] {
            let request = parse(line);
            let failure = request.what.unwrap_err();
            assert_eq!((request.id, failure.errno), (id, errno), "{}: {failure:?}", String::from_utf8_lossy(line));
        }
    }

    #[test]
    fn every_request_of_the_contract_is_known() {
        for name in NAMES {
            let line = format!("{{\"id\": 1, \"do\": {name:?}}}");
            let what = parse(line.as_bytes()).what;
            // Known, whatever fields it wants.
            assert!(what.as_ref().map_or_else(|failure| failure.message.contains("missing field"), |_| true), "{name}");
        }
    }

    #[test]
    fn an_answer_that_is_too_long_becomes_an_error() {
        let long = Said::Ok { id: 9, ok: serde_json::json!({"text": "\u{1}".repeat(LONGEST_LINE / 5)}) };
        let line = String::from_utf8(encode(&long).unwrap()).unwrap();
        assert!(line.starts_with("{\"id\":9,\"error\":{\"errno\":90,") && line.ends_with("}\n"), "{line}");
        assert_eq!(encode(&Said::Line { process: 1, line: "x".repeat(LONGEST_LINE) }), None);
    }

    #[test]
    fn a_failure_keeps_the_errno_and_its_words() {
        assert_eq!(Failure::from(io::Error::from_raw_os_error(2)), Failure::new(2, "No such file or directory"));
        let deep = anyhow::Error::from(io::Error::from_raw_os_error(3)).context("there is no process 5");
        assert_eq!(Failure::from(deep).errno, libc::ESRCH);
    }

    const REQUESTS: [&str; 6] = [
        r#"{"id": 3, "do": "get", "path": "/x", "offset": 5, "length": 6}"#,
        r#"{"id": 4, "do": "put", "path": "/x", "mode": 420, "offset": 0, "data": "AAH/"}"#,
        r#"{"id": 5, "do": "network", "interface": "eth0", "address": "10.0.2.15", "prefix": 24, "gateway": null}"#,
        r#"{"id": 6, "do": "spawn", "process": 1, "spec": {"argv": ["true"], "stdout": "/o", "stderr": "/e"}}"#,
        r#"{"id": 7, "do": "coverage", "pid": 5, "ranges": [{"start": 1, "end": 2}], "source": "smaps"}"#,
        r#"{"id": 8, "do": "settle", "seconds": 0.5}"#,
    ];

    proptest! {
        #![proptest_config(fuzz::config())]

        #[test]
        fn whatever_the_host_asks_it_is_understood_or_answered(line in fuzz::broken(&REQUESTS)) {
            let Request { id, what } = parse(&line);
            if let Err(failure) = what {
                let line = encode(&Said::Error { id, error: failure }).unwrap();
                prop_assert!(line.len() <= LONGEST_LINE && line.ends_with(b"\n"));
            }
        }
    }
}
