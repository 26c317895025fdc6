//! The micro-workloads as programs: what they say, in which order, and that they hold their memory.

mod common;

use common::{Held, events, index, need, number, one, probe, text};
use serde_json::Value;

const SMALL: [&[&str]; 7] = [
    &["chase", "--bytes", "1m", "--loads", "20000"],
    &["stream", "--bytes", "1m", "--rounds", "2"],
    &["gups", "--bytes", "1m", "--updates", "20000"],
    &["fault", "--bytes", "1m", "--rounds", "2"],
    &["spin", "--bytes", "16k", "--iterations", "20000"],
    &["mmap-perf", "--calls", "2000"],
    &["lat-mmap", "--bytes", "1m", "--rounds", "3"],
];

fn run(arguments: &[&str]) -> Vec<Value> {
    let output = probe().args(arguments).arg("--no-hold").output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    events(&output.stdout)
}

#[test]
fn every_workload_says_its_events_in_order() {
    for arguments in SMALL {
        let said = run(arguments);
        let kinds: Vec<&str> = said.iter().map(|event| text(event, "ev")).collect();
        assert_eq!(kinds, ["phase", "phase", "phase", "result", "hold"], "{arguments:?}");
        let phases: Vec<&str> = said[..3].iter().map(|event| text(event, "name")).collect();
        assert_eq!(phases, ["setup", "timed", "held"]);
        let times: Vec<u64> = said[..3].iter().map(|event| number(event, "t_ns")).collect();
        assert!(times.is_sorted() && times[1] < times[2], "{times:?}");
        let result = &said[3];
        assert_eq!(text(result, "workload"), arguments[0]);
        assert!(number(result, "wall_ns") <= times[2] - times[1]);
        let metrics = result["metrics"].as_object().unwrap();
        assert!(!metrics.is_empty() && metrics.values().all(|metric| metric.as_f64().unwrap() > 0.0), "{metrics:?}");
        let ranges = said[4]["ranges"].as_array().unwrap();
        assert!(!ranges.is_empty());
        assert!(ranges.iter().all(|range| number(range, "start") < number(range, "end")));
    }
}

#[test]
fn the_work_is_the_same_every_time() {
    let measured = ["user_s", "system_s", "minor_faults", "major_faults"];
    for arguments in SMALL {
        let facts = || {
            let mut facts = one(&run(arguments), "result")["facts"].as_object().unwrap().clone();
            measured.iter().for_each(|name| assert!(facts.remove(*name).is_some(), "{name}"));
            facts
        };
        assert_eq!(facts(), facts(), "{arguments:?}");
    }
}

#[test]
fn arms_differ_in_nothing_but_pages() {
    let cycle = |advice| {
        let said = run(&["chase", "--bytes", "8m", "--advice", advice, "--loads", "10000"]);
        let range = one(&said, "hold")["ranges"][0].clone();
        (one(&said, "result")["facts"]["cycle"].clone(), number(&range, "end") - number(&range, "start"))
    };
    assert_eq!(cycle("nohuge"), cycle("none"));
    if need(std::path::Path::new("/sys/kernel/mm/transparent_hugepage/enabled").exists(), "transparent huge pages") {
        assert_eq!(cycle("nohuge"), cycle("huge"));
    }
}

#[test]
fn another_seed_is_other_work() {
    let hash = |arguments: &[&str], name: &str, seed| {
        let said = run(&[arguments, &["--seed", seed]].concat());
        one(&said, "result")["facts"][name].clone()
    };
    for (arguments, name) in [(SMALL[0], "cycle"), (SMALL[2], "table"), (SMALL[5], "sequence")] {
        assert_ne!(hash(arguments, name, "1"), hash(arguments, name, "2"), "{name}");
    }
}

#[test]
fn memory_is_held_until_stdin_ends() {
    for arguments in SMALL {
        let mut held = Held::start(arguments);
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", held.pid())).unwrap();
        for range in held.ranges() {
            assert!(index(&maps).iter().any(|(start, end)| *start <= range.0 && range.0 < *end), "{arguments:?}");
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(held.is_running(), "{arguments:?}");
        assert!(held.release().success());
    }
}

#[test]
fn fault_touches_every_page_of_every_round() {
    let said = run(&["fault", "--bytes", "4m", "--rounds", "3", "--advice", "nohuge", "--counters", "page-faults"]);
    let page = rustix::param::page_size() as u64;
    let pages = 3 * (4 << 20) / page;
    assert_eq!(number(&one(&said, "result")["facts"], "pages"), pages);
    let counters = one(&said, "counters");
    assert_eq!(text(counters, "scope"), "timed");
    let count = &counters["values"]["page-faults"];
    match count["value"].as_u64() {
        Some(faults) => assert!((pages..pages + 100).contains(&faults), "{faults}"),
        None => assert!(!need(false, &format!("the page-faults counter: {}", text(count, "reason")))),
    }
}

#[test]
fn unmapping_can_be_timed_and_memory_is_still_held() {
    let said = run(&["fault", "--bytes", "1m", "--rounds", "2", "--include-unmap"]);
    assert_eq!(one(&said, "result")["facts"]["unmap_timed"], 1);
    assert_eq!(one(&said, "hold")["ranges"].as_array().unwrap().len(), 1);
}

#[test]
fn counters_that_do_not_exist_have_a_reason() {
    let said = run(&["chase", "--bytes", "1m", "--loads", "1000", "--counters", "task-clock,no-such-counter"]);
    let values = &one(&said, "counters")["values"];
    assert!(values["no-such-counter"]["value"].is_null());
    assert!(!text(&values["no-such-counter"], "reason").is_empty());
}

#[test]
fn a_temporary_file_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let output = probe()
        .args(["lat-mmap", "--bytes", "1m", "--rounds", "2", "--random", "--no-hold", "--dir"])
        .arg(folder.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_short_pool_is_named_before_the_timed_region() {
    let folder = std::path::Path::new("/sys/kernel/mm/hugepages");
    let pool = std::fs::read_dir(folder).ok().and_then(|mut entries| entries.next()?.ok());
    let Some(pool) = pool.map(|entry| entry.file_name().into_string().unwrap()) else {
        assert!(!need(false, "a kernel with hugetlb pages"));
        return;
    };
    let kilobytes: u64 = pool.trim_start_matches("hugepages-").trim_end_matches("kB").parse().unwrap();
    let large: [&[&str]; 3] =
        [&["chase", "--bytes", "64t"], &["mmap-perf", "--max-bytes", "64g"], &["lat-mmap", "--bytes", "64t"]];
    for arguments in large {
        let output = probe()
            .args(arguments)
            .args(["--map", &format!("hugetlb:{}", kilobytes << 10), "--no-hold"])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let error = &events(&output.stdout)[0];
        assert_eq!(
            (text(error, "ev"), text(error, "fault"), &error["before_timed"]),
            ("error", "host", &Value::Bool(true))
        );
        assert!(text(error, "message").contains(&format!("{pool}/nr_hugepages")), "{error}");
    }
}

#[test]
fn mistakes_are_usage_errors_that_name_the_option() {
    for (arguments, named) in [
        (&["chase", "--bytes", "4k", "--stride", "4k"][..], "--stride"),
        (&["chase", "--bytes", "1m", "--stride", "100"], "--stride"),
        (&["chase", "--bytes", "x"], "--bytes"),
        (&["chase"], "--bytes"),
        (&["chase", "--bytes", "1m", "--loads", "0"], "--loads"),
        (&["chase", "--bytes", "1m", "--map", "hugetlb:3m"], "--map"),
        (&["chase", "--bytes", "1m", "--map", "hugetlb:2m", "--advice", "huge"], "--advice"),
        (&["stream", "--bytes", "10"], "--bytes"),
        (&["gups", "--bytes", "7"], "--bytes"),
        (&["fault", "--bytes", "0"], "--bytes"),
        (&["mmap-perf", "--max-bytes", "1"], "--max-bytes"),
        (&["mmap-perf", "--touch-chance", "2"], "--touch-chance"),
        (&["lat-mmap", "--bytes", "4k"], "--bytes"),
    ] {
        let output = probe().args(arguments).arg("--no-hold").output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {message}");
        assert!(message.contains(named), "{arguments:?}: {message}");
    }
}

#[test]
fn touch_and_cpu_say_one_event() {
    let output = probe().args(["touch", "--bytes", "8m"]).output().unwrap();
    let said = events(&output.stdout);
    assert_eq!((text(&said[0], "ev"), number(&said[0], "bytes")), ("touched", 8 << 20));
    let output = probe().args(["touch", "--bytes", "4096t"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("available"));
    let output = probe().arg("cpu").output().unwrap();
    let cpu = &events(&output.stdout)[0];
    assert!(!cpu["tlbs"].as_array().unwrap().is_empty() || !text(cpu, "reason").is_empty(), "{cpu}");
}

#[test]
fn the_loop_does_every_iteration_that_was_asked_for() {
    let after = |iterations: &str| {
        let said = run(&["spin", "--bytes", "16k", "--iterations", iterations]);
        let result = one(&said, "result");
        assert_eq!(number(&result["facts"], "iterations").to_string(), iterations);
        assert!(result["metrics"]["loop_cpu_s"].as_f64().unwrap() > 0.0, "{result}");
        text(&result["facts"], "last").to_string()
    };
    // Each iteration hangs on the one before, so the last word is that of exactly as many.
    assert_eq!(after("100000"), after("100000"));
    assert_ne!(after("100000"), after("100001"));
}

#[test]
fn a_gated_workload_waits_before_its_timed_region() {
    use std::io::{BufRead, BufReader, Write};
    use std::process::Stdio;
    let mut child = probe()
        .args(["spin", "--bytes", "16k", "--iterations", "1000", "--gate"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.next().unwrap().contains("\"ready\""));
    let pause = std::time::Duration::from_millis(50);
    std::thread::sleep(pause);
    child.stdin.as_mut().unwrap().write_all(b"g").unwrap();
    let said: Vec<Value> = lines.by_ref().take(4).map(|line| serde_json::from_str(&line).unwrap()).collect();
    assert!(number(&said[1], "t_ns") - number(&said[0], "t_ns") >= pause.as_nanos() as u64);
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}
