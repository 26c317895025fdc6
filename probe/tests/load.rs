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
type Words = Vec<Vec<u8>>;
/// Requests to several servers in the order in which they came, each with its server's number.
type Log = Arc<Mutex<Vec<(usize, Words)>>>;

/// How the small redis behaves.
#[derive(Clone, Copy)]
enum Manner {
    Plain,
    /// A connection is closed after so many requests.
    Closes(u64),
    /// The request of that number is answered late: after 200 ms.
    Stalls(u64),
    /// Every request is answered 2 ms late.
    Slow,
    /// Every request is answered with this.
    Says(&'static str),
}

struct Server {
    folder: TempDir,
    store: Store,
}

impl Server {
    fn start(manner: Manner) -> Self {
        Self::start_logged(manner, 0, Log::default())
    }

    fn start_logged(manner: Manner, number: usize, log: Log) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("socket")).unwrap();
        let store = Store::default();
        let shared = Arc::clone(&store);
        // The thread ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, store, log) = (stream.unwrap(), Arc::clone(&shared), Arc::clone(&log));
                std::thread::spawn(move || {
                    serve(&stream, &store, manner, |words| log.lock().unwrap().push((number, words.to_vec())));
                });
            }
        });
        Self { folder, store }
    }

    fn run(&self, options: &[&str]) -> Output {
        run(&[self], options)
    }

    fn said(&self, options: &[&str]) -> Vec<Value> {
        said(&[self], options)
    }

    fn error(&self, options: &[&str]) -> Value {
        let output = self.run(options);
        assert_eq!(output.status.code(), Some(1));
        one(&events(&output.stdout), "error").clone()
    }
}

fn run(servers: &[&Server], options: &[&str]) -> Output {
    let address = |server: &&Server| format!("--server=unix:{}", server.folder.path().join("socket").display());
    let mut command = probe();
    command.args(["load", "--protocol", "redis", "--keys", "300"]).args(servers.iter().map(address));
    command.args(options).stdin(Stdio::null()).output().unwrap()
}

fn said(servers: &[&Server], options: &[&str]) -> Vec<Value> {
    let output = run(servers, options);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    events(&output.stdout)
}

/// Answer until the client has gone, which ends the reading with an error.
fn serve(mut stream: &UnixStream, store: &Store, manner: Manner, note: impl Fn(&Words)) {
    let mut reader = BufReader::new(stream);
    for served in 0.. {
        let Some(words) = request(&mut reader) else {
            return;
        };
        note(&words);
        if matches!(manner, Manner::Slow) {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        let reply = match (manner, words.as_slice()) {
            (Manner::Closes(after), _) if served == after => return,
            (Manner::Stalls(late), [_, _]) if served == late => {
                std::thread::sleep(std::time::Duration::from_millis(200));
                b"$-1\r\n".into()
            }
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
fn request(reader: &mut impl BufRead) -> Option<Words> {
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
    assert!(load["search"].is_null());
}

#[test]
fn a_late_answer_is_the_worst_stall_and_in_the_tail_of_its_second() {
    // One connection, so that the request of that number is late on the one that asks; the server answers that it has no
    // such key, which is counted.
    let server = Server::start(Manner::Stalls(700));
    server.said(&["--preload", "--connections", "1"]);
    let options = ["--operations", "2000", "--connections", "1", "--set-get", "0:1"];
    let said = server.said(&options);
    let timed = &one(&said, "load")["timed"];
    let start = number(timed, "start_ns");
    assert_eq!(start, number(said.iter().find(|event| event["name"] == "timed").unwrap(), "t_ns"));
    let stalls = timed["stalls"].as_array().unwrap();
    let worst = &stalls[0];
    assert!(number(worst, "latency_ns") >= 200_000_000, "{stalls:?}");
    assert_eq!(number(worst, "answered_ns") - number(worst, "sent_ns"), number(worst, "latency_ns"));
    assert!(number(worst, "sent_ns") >= start && number(worst, "answered_ns") <= start + number(timed, "wall_ns"));
    assert!(text(worst, "server").ends_with("/socket"));
    // The histogram has three digits: it tells the top of the bucket that the latency lies in.
    let (top, exact) = (number(&timed["latency"], "max_ns"), number(worst, "latency_ns"));
    assert!(exact <= top && top - exact <= exact / 1000, "{top} {exact}");
    // The whole histogram has every operation, the late one last.
    let (up_to, counts) = (&timed["buckets"]["up_to_ns"], &timed["buckets"]["counts"]);
    let sum: u64 = counts.as_array().unwrap().iter().map(|count| count.as_u64().unwrap()).sum();
    assert_eq!(sum, 2000);
    assert_eq!(up_to.as_array().unwrap().last().unwrap().as_u64().unwrap(), number(&timed["latency"], "max_ns"));
    let seconds = &timed["seconds"];
    let place = ((number(worst, "answered_ns") - start) / number(seconds, "interval_ns")) as usize;
    assert_eq!(seconds["max_ns"][place].as_u64().unwrap(), number(worst, "latency_ns"));
    let operations: u64 = seconds["operations"].as_array().unwrap().iter().map(|count| count.as_u64().unwrap()).sum();
    assert_eq!(operations, 2000);
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
    let cases: [&[&str]; 11] = [
        &[],
        &["--operations", "5", "--cpus", "5000"],
        &["--operations", "5", "--hit-ratio", "1.5"],
        &["--operations", "5", "--rate", "-1"],
        &["--operations", "5", "--key-name", "none"],
        &["--duration", "1", "--sla", "p99:1ms", "--pipeline", "2"],
        &["--turns", "00"],
        &["--turns", "0", "--slice-operations", "5", "--operations", "5"],
        &["--turns", "01", "--slice-operations", "5"],
        &["--groups", "2", "--preload"],
        &["--groups", "1", "--turns", "00", "--lead", "0.1", "--slice", "0"],
    ];
    for options in cases {
        assert_eq!(server.run(options).status.code(), Some(2), "{options:?}");
    }
}

/// Four servers, two of each group, with their log.
fn two_groups() -> ([Server; 4], Log) {
    groups([Manner::Plain; 2])
}

fn groups(manners: [Manner; 2]) -> ([Server; 4], Log) {
    let log = Log::default();
    let servers = [0, 1, 2, 3].map(|number| Server::start_logged(manners[number / 2], number, Arc::clone(&log)));
    (servers, log)
}

fn loads(said: &[Value]) -> Vec<&Value> {
    said.iter().filter(|event| event["ev"] == "load").collect()
}

#[test]
fn groups_are_asked_in_turns_one_at_a_time_and_for_the_same() {
    let (servers, log) = two_groups();
    let servers: Vec<&Server> = servers.iter().collect();
    said(&servers, &["--groups", "2", "--preload"]);
    log.lock().unwrap().clear();
    let options = ["--groups", "2", "--turns", "100110", "--slice-operations", "101", "--wash-out", "0.3"];
    said(&servers, &[&options[..], &["--connections", "1"]].concat());
    let log = std::mem::take(&mut *log.lock().unwrap());
    let mut groups: Vec<usize> = log.iter().map(|(server, _)| server / 2).collect();
    assert_eq!(groups.len(), 6 * 101);
    groups.dedup();
    assert_eq!(groups, [1, 0, 1, 0]);
    let of = |server| log.iter().filter(move |entry| entry.0 == server).map(|entry| &entry.1).collect::<Vec<_>>();
    assert_eq!((of(0), of(1)), (of(2), of(3)));
    assert_ne!(of(0)[..50], of(1)[..50]);
    // Of 51 requests in a turn 15 are the wash-out's; no round repeats another's, nor its own.
    assert_ne!(of(0)[..15], of(0)[51..66]);
    assert_ne!(of(0)[15..51], of(0)[66..102]);
    assert_ne!(of(0)[..15], of(0)[15..30]);
}

#[test]
fn each_group_has_an_event_with_the_sum_of_its_counted_parts() {
    let (servers, _) = two_groups();
    let servers: Vec<&Server> = servers.iter().collect();
    let options = ["--groups", "2", "--turns", "011001", "--slice-operations", "101", "--wash-out", "0.3"];
    let said = said(&servers, &[&options[..], &["--preload", "--touch", "--pipeline", "2"]].concat());
    let phases: Vec<&str> =
        said.iter().filter(|event| event["ev"] == "phase").map(|event| text(event, "name")).collect();
    assert_eq!(phases, ["setup", "preload", "touch", "timed", "held"]);
    let loads = loads(&said);
    assert_eq!(loads.len(), 2);
    for (group, load) in loads.iter().enumerate() {
        assert_eq!(load["stored"]["counts"], serde_json::json!([300, 300]));
        assert_eq!(number(&load["touched"], "keys"), 300);
        let (timed, turns) = (&load["timed"], &load["timed"]["turns"]);
        let counts = ["count", "slice_operations", "washed", "operations"].map(|name| number(turns, name));
        assert_eq!(counts, [3, 101, 90, 303]);
        let wall_ns = number(timed, "wall_ns");
        let turn_ns: Vec<u64> = turns["turn_ns"].as_array().unwrap().iter().map(|own| own.as_u64().unwrap()).collect();
        assert_eq!((turn_ns.len(), turn_ns.iter().sum::<u64>()), (3, wall_ns));
        assert!(number(turns, "wall_ns") > wall_ns);
        assert_eq!(number(timed, "operations"), 213);
        assert_eq!(number(timed, "sets") + number(timed, "hits") + number(timed, "misses"), 213);
        assert_eq!(number(&timed["latency"], "count"), 213);
        assert!((timed["achieved_rate"].as_f64().unwrap() * wall_ns as f64 * 1e-9 - 213.0).abs() < 1e-6);
        let own: Vec<&str> = timed["instances"].as_array().unwrap().iter().map(|one| text(one, "server")).collect();
        let folders = &servers[2 * group..2 * group + 2];
        assert!(
            own.len() == 2
                && own.iter().zip(folders).all(|(own, due)| own.contains(due.folder.path().to_str().unwrap()))
        );
        assert_eq!(timed["per_second"], serde_json::json!([]));
        let client = &timed["client"];
        let busy =
            (client["user_s"].as_f64().unwrap() + client["system_s"].as_f64().unwrap()) / (wall_ns as f64 * 1e-9);
        assert!((client["busy"].as_f64().unwrap() - busy).abs() < 1e-9);
    }
    for name in ["sequence", "sets", "hits", "misses", "bytes_sent", "bytes_received"] {
        assert_eq!(loads[0]["timed"][name], loads[1]["timed"][name], "{name}");
    }
    assert!(loads[0]["timed"]["sequence"].is_string());
}

#[test]
fn a_turn_is_as_long_as_the_slowest_group_takes() {
    let (servers, log) = groups([Manner::Plain, Manner::Slow]);
    let servers: Vec<&Server> = servers.iter().collect();
    let options = ["--preload", "--groups", "2", "--lead", "0.2", "--slice", "0.05", "--turns", "1001"];
    let said = said(&servers, &options);
    let loads = loads(&said);
    let turns = loads.iter().map(|load| &load["timed"]["turns"]);
    let operations: Vec<u64> = turns.map(|turns| number(turns, "slice_operations")).collect();
    // A lead is four slices long, and its requests are those that are no turn's and no preload's.
    // A lead lasts no shorter than asked, so a quarter of its requests is the most for a turn.
    let asked = log.lock().unwrap().iter().filter(|entry| entry.0 / 2 == 1).count() as u64;
    let slowest = asked - 2 * 301 - 2 * operations[0];
    assert_eq!(operations[0], operations[1]);
    assert!((1..=slowest / 4 + 1).contains(&operations[0]), "{operations:?} by {slowest}");
    assert!(said.iter().any(|event| event["name"] == "lead"));
}
