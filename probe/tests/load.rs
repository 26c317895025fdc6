//! The load generator against a small redis in a thread of this test: what it says when all goes well, and when not.

mod common;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Output, Stdio};
use std::sync::{Arc, Mutex};

use common::{events, number, one, probe, text};
use serde_json::Value;
use tempfile::TempDir;

type Store = Arc<Mutex<HashMap<Vec<u8>, Vec<u8>>>>;

/// How the small redis behaves.
#[derive(Clone, Copy)]
enum Manner {
    Plain,
    /// A connection is closed after so many requests.
    Closes(u64),
    /// Every request is answered with this.
    Says(&'static str),
}

struct Server {
    folder: TempDir,
    store: Store,
}

impl Server {
    fn start(manner: Manner) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("socket")).unwrap();
        let store = Store::default();
        let shared = Arc::clone(&store);
        // The thread ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, store) = (stream.unwrap(), Arc::clone(&shared));
                std::thread::spawn(move || serve(&stream, &store, manner));
            }
        });
        Self { folder, store }
    }

    fn run(&self, options: &[&str]) -> Output {
        let address = format!("unix:{}", self.folder.path().join("socket").display());
        let fixed = ["load", "--protocol", "redis", "--keys", "300", "--server", &address];
        probe().args(fixed).args(options).stdin(Stdio::null()).output().unwrap()
    }

    fn said(&self, options: &[&str]) -> Vec<Value> {
        let output = self.run(options);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        events(&output.stdout)
    }

    fn error(&self, options: &[&str]) -> Value {
        let output = self.run(options);
        assert_eq!(output.status.code(), Some(1));
        one(&events(&output.stdout), "error").clone()
    }
}

/// Answer until the client has gone, which ends the reading with an error.
fn serve(mut stream: &UnixStream, store: &Store, manner: Manner) {
    let mut reader = BufReader::new(stream);
    for served in 0.. {
        let Some(words) = request(&mut reader) else {
            return;
        };
        let reply = match (manner, words.as_slice()) {
            (Manner::Closes(after), _) if served == after => return,
            (Manner::Says(reply), _) => reply.into(),
            (_, [verb]) if verb == b"DBSIZE" => format!(":{}\r\n", store.lock().unwrap().len()).into_bytes(),
            (_, [_, key]) => match store.lock().unwrap().get(key) {
                Some(value) => [format!("${}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat(),
                None => b"$-1\r\n".to_vec(),
            },
            (_, [_, key, value]) => {
                store.lock().unwrap().insert(key.clone(), value.clone());
                b"+OK\r\n".to_vec()
            }
            _ => panic!("no request of the load generator: {words:?}"),
        };
        if stream.write_all(&reply).is_err() {
            return;
        }
    }
}

/// The words of one request: an array of bulk strings, or an inline one.
fn request(reader: &mut impl BufRead) -> Option<Vec<Vec<u8>>> {
    let mut line = || {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|length| *length > 0).map(|_| line.trim_end().to_string())
    };
    let head = line()?;
    let Some(count) = head.strip_prefix('*') else {
        return Some(vec![head.into_bytes()]);
    };
    let word = |_| {
        let mut size = String::new();
        reader.read_line(&mut size).ok()?;
        let mut word = vec![0; size.trim_end()[1..].parse::<usize>().unwrap() + 2];
        reader.read_exact(&mut word).ok()?;
        word.truncate(word.len() - 2);
        Some(word)
    };
    (0..count.parse::<usize>().unwrap()).map(word).collect()
}

#[test]
fn one_invocation_goes_through_all_phases() {
    let server = Server::start(Manner::Plain);
    let said = server.said(&["--preload", "--touch", "--lead", "0.01", "--operations", "2000", "--pipeline", "4"]);
    let kinds: Vec<&str> = said.iter().map(|event| text(event, "ev")).collect();
    assert_eq!(kinds, ["phase", "phase", "phase", "phase", "phase", "phase", "load"]);
    let load = one(&said, "load");
    assert_eq!(number(&load["stored"], "keys"), 300);
    assert_eq!(server.store.lock().unwrap().len(), 300);
    let bytes = server.store.lock().unwrap().iter().map(|(key, value)| key.len() + value.len()).sum::<usize>();
    assert_eq!(number(&load["stored"], "bytes"), bytes as u64);
    let timed = &load["timed"];
    assert_eq!(number(timed, "operations"), 2000);
    assert_eq!(number(timed, "sets") + number(timed, "hits") + number(timed, "misses"), 2000);
    assert_eq!(number(&timed["latency"], "count"), 2000);
    assert!(load["search"].is_null() && load["tuning"].is_null());
}

#[test]
fn sets_write_what_is_there() {
    let server = Server::start(Manner::Plain);
    server.said(&["--preload"]);
    let before = server.store.lock().unwrap().clone();
    server.said(&["--operations", "1000", "--set-get", "1:0"]);
    assert_eq!(*server.store.lock().unwrap(), before);
}

#[test]
fn an_open_loop_counts_every_operation_that_was_due() {
    let server = Server::start(Manner::Plain);
    server.said(&["--preload"]);
    for options in [["--duration", "0.1"], ["--operations", "400"]] {
        let said = server.said(&[&["--rate", "4000"], &options[..]].concat());
        let timed = &one(&said, "load")["timed"];
        assert_eq!(number(timed, "operations") + number(timed, "unsent"), 400);
        assert_eq!(number(&timed["latency"], "count"), 400);
        assert_eq!(timed["asked_rate"], 4000.0);
        assert!(timed["late"].is_object() && timed["rate_met"].is_boolean());
    }
}

#[test]
fn a_lost_key_is_counted_and_a_changed_one_is_an_error() {
    let server = Server::start(Manner::Plain);
    server.said(&["--preload"]);
    server.store.lock().unwrap().remove(b"memtier-7".as_slice()).unwrap();
    let gets = ["--operations", "3000", "--set-get", "0:1", "--hit-ratio", "1"];
    let timed = one(&server.said(&gets), "load")["timed"].clone();
    assert!(number(&timed, "lost") > 0 && number(&timed, "lost") == number(&timed, "misses"));
    assert!(text(&server.error(&["--touch"]), "message").contains("does not have key number 7"));
    server.store.lock().unwrap().insert(b"memtier-7".to_vec(), b"x".to_vec());
    assert!(text(&server.error(&gets), "message").contains("another value of 1 B for key number 7"));
}

#[test]
fn what_the_server_does_wrong_is_said() {
    let cases = [
        (Manner::Closes(100), "closed a connection"),
        (
            Manner::Says("-OOM command not allowed when used memory > 'maxmemory'.\r\n"),
            "answered: OOM command not allowed",
        ),
        (Manner::Says("HTTP/1.1 400 Bad Request\r\n"), "does not speak redis"),
        (Manner::Says("$-1\r\n"), "answered another request"),
    ];
    for (manner, words) in cases {
        let error = Server::start(manner).error(&["--preload"]);
        assert!(text(&error, "message").contains(words), "{error}");
        assert_eq!((text(&error, "fault"), &error["before_timed"]), ("workload", &Value::Bool(true)));
    }
    let error = Server::start(Manner::Closes(20)).error(&["--operations", "5000"]);
    assert_eq!((text(&error, "fault"), &error["before_timed"]), ("workload", &Value::Bool(false)));
}

#[test]
fn wrong_options_are_refused() {
    let server = Server::start(Manner::Plain);
    let cases: [&[&str]; 5] = [
        &[],
        &["--operations", "5", "--hit-ratio", "1.5"],
        &["--operations", "5", "--rate", "-1"],
        &["--operations", "5", "--key-name", "none"],
        &["--duration", "1", "--sla", "p99:1ms", "--pipeline", "2"],
    ];
    for options in cases {
        assert_eq!(server.run(options).status.code(), Some(2), "{options:?}");
    }
}
