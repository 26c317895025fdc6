//! The specification of one attempt: the JSON file of `run --spec`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::common::mistake::Mistake;
use crate::protocol::event::{Source, VERSION};

/// Highest number of CPUs in an affinity mask: the kernel's largest NR_CPUS.
const MAX_CPUS: usize = 8192;

/// What `run` is told; the table in docs/design/probe-protocol.md explains each key.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    pub v: u32,
    pub argv: Vec<String>,
    pub micro: bool,
    pub env: BTreeMap<String, String>,
    pub cwd: Option<PathBuf>,
    pub stdout: PathBuf,
    pub stderr: PathBuf,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub thp_disable: ThpDisable,
    pub cgroup_procs: Vec<PathBuf>,
    pub cpus: Option<Vec<usize>>,
    pub timeout_s: f64,
    pub counters: Vec<String>,
    pub scan: Scan,
    pub source: Source,
    #[serde(default)]
    pub barrier: Option<Barrier>,
    #[serde(default)]
    pub announce: bool,
    #[serde(default)]
    pub limits: Limits,
    /// Files that are opened as the caller, for reading; the workload has them as descriptors 3, 4, ...
    #[serde(default)]
    pub opens: Vec<PathBuf>,
    /// A file that the workload's account opens as its stdin; nothing by default.
    #[serde(default)]
    pub stdin: Option<PathBuf>,
    /// Supplementary groups of the account that it becomes; none are kept of the caller's.
    #[serde(default)]
    pub groups: Vec<u32>,
    /// Seconds between two readings of the machine's counters while it runs; none are read by default.
    #[serde(default)]
    pub sample: Option<f64>,
    /// It has an IPC namespace: what it leaves of System V's shared memory, semaphores and queues goes with it.
    #[serde(default)]
    pub own_ipc: bool,
}

/// What a workload may take of the machine; nothing is bounded by default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Most bytes that are kept of its stdout, and of its stderr; the tree is killed when there are more.
    pub stream_bytes: Option<u64>,
    /// Folders that it writes to: the tree is killed before the last of the room there is taken.
    pub rooms: Vec<PathBuf>,
    /// Most processes of the account that it becomes; by default half of what the kernel can number.
    pub processes: Option<u64>,
}

/// Where launchers that start together meet: inherited descriptors of two pipes. A byte into `ready` says that this one
/// could begin; the end of `go` says that all can.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Barrier {
    pub ready: i32,
    pub go: i32,
}

/// prctl(PR_SET_THP_DISABLE) for the workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ThpDisable {
    None,
    All,
    ExceptAdvised,
}

/// Which processes are looked at when they leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scan {
    None,
    Exit,
    EveryExit,
}

impl Spec {
    /// Read and check it. The error names the file, the key, the value and the cure.
    pub fn read(path: &Path) -> Result<Spec, Mistake> {
        let wrong = |what: String| Mistake(format!("{}: {what}", path.display()));
        let text = std::fs::read(path).map_err(|error| wrong(format!("cannot read the specification: {error}")))?;
        Spec::parse(&text).map_err(|Mistake(what)| wrong(what))
    }

    fn parse(text: &[u8]) -> Result<Spec, Mistake> {
        let spec: Spec = serde_json::from_slice(text)
            .map_err(|error| Mistake(format!("{error}; docs/design/probe-protocol.md lists the keys")))?;
        spec.check().map_err(Mistake)?;
        Ok(spec)
    }

    /// The folder that the workload enters. What becomes another account does not begin in the caller's, which it may
    /// be unable to enter: through /proc/PID/cwd all its processes could look around there.
    pub fn entered(&self) -> Option<&Path> {
        let own = self.uid.or(self.gid).map(|_| Path::new("/"));
        self.cwd.as_deref().or(own)
    }

    /// Whom that is done as, for a message: nothing, where it is the caller.
    pub fn by_account(&self) -> String {
        self.uid.map_or(String::new(), |uid| format!(" (as uid {uid}, which must be able to enter it)"))
    }

    pub fn timeout(&self) -> Duration {
        Duration::from_secs_f64(self.timeout_s)
    }

    fn check(&self) -> Result<(), String> {
        if self.v != VERSION {
            return Err(format!("v = {}: this probe speaks version {VERSION}; rebuild it with `make setup`", self.v));
        }
        match self.argv.first() {
            None => return Err("argv = []: give a program and its arguments".into()),
            Some(program) if program.is_empty() => return Err("argv[0] = \"\": name a program".into()),
            Some(_) => {}
        }
        if let Some(word) = self.argv.iter().find(|word| word.contains('\0')) {
            return Err(format!("argv: {word:?} holds a NUL byte, which no argument can; remove it"));
        }
        if self.micro && !self.opens.is_empty() {
            return Err(format!("opens = {:?}: a micro-workload reads no files; leave it out", self.opens));
        }
        if self.micro && self.stdin.is_some() {
            return Err(format!("stdin = {:?}: a micro-workload hears its launcher there; leave it out", self.stdin));
        }
        if !self.groups.is_empty() && self.uid.or(self.gid).is_none() {
            return Err(format!("groups = {:?}: only of an account that it becomes; give uid and gid", self.groups));
        }
        for (key, value) in &self.env {
            if key.is_empty() || key.contains(['=', '\0']) || value.contains('\0') {
                return Err(format!("env: {key:?} = {value:?}: a name is not empty and has no '='; neither has NUL"));
            }
        }
        // The bound keeps the time within what a Duration, and a person, can hold.
        if !(self.timeout_s > 0.0 && self.timeout_s <= 1e9) {
            return Err(format!("timeout_s = {}: give seconds above 0 and up to 1e9", self.timeout_s));
        }
        if let Some(period) = self.sample.filter(|period| !(0.01..=3600.0).contains(period)) {
            return Err(format!("sample = {period}: give seconds, from 0.01 to 3600"));
        }
        if self.cpus.as_ref().is_some_and(Vec::is_empty) {
            return Err("cpus = []: name at least one CPU, or give null for all".into());
        }
        if let Some(cpu) = self.cpus.iter().flatten().find(|cpu| **cpu >= MAX_CPUS) {
            return Err(format!("cpus: {cpu} is beyond the last CPU ({}) known here", MAX_CPUS - 1));
        }
        if self.limits.stream_bytes == Some(0) || self.limits.processes == Some(0) {
            return Err("limits: a limit of 0 leaves nothing; give null for none".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    use crate::common::fuzz;

    fn good() -> serde_json::Value {
        serde_json::json!({
            "v": 1, "argv": ["true"], "micro": false, "env": {"PATH": "/bin"}, "cwd": null,
            "stdout": "out", "stderr": "err", "uid": null, "gid": null, "thp_disable": "except-advised",
            "cgroup_procs": [], "cpus": [0], "timeout_s": 5.0, "counters": [], "scan": "every-exit", "source": "smaps"
        })
    }

    fn complaint(key: &str, value: serde_json::Value) -> String {
        let mut json = good();
        json[key] = value;
        Spec::parse(json.to_string().as_bytes()).unwrap_err().0
    }

    #[test]
    fn a_good_one_is_read() {
        let spec = Spec::parse(good().to_string().as_bytes()).unwrap();
        assert_eq!((spec.scan, spec.thp_disable), (Scan::EveryExit, ThpDisable::ExceptAdvised));
        assert_eq!(spec.timeout(), Duration::from_secs(5));
    }

    #[test]
    fn mistakes_name_the_key() {
        use serde_json::json;
        for (key, value, word) in [
            ("colour", json!(1), "unknown field `colour`"),
            ("v", json!(2), "v = 2"),
            ("argv", json!([]), "argv"),
            ("argv", json!(["a\0b"]), "NUL"),
            ("env", json!({"A=B": "x"}), "A=B"),
            ("timeout_s", json!(0), "timeout_s = 0"),
            ("timeout_s", json!(1e300), "timeout_s"),
            ("sample", json!(0.001), "sample = 0.001"),
            ("cpus", json!([]), "cpus"),
            ("cpus", json!([99999999]), "99999999"),
            ("scan", json!("sometimes"), "every-exit"),
            ("source", json!("guess"), "kpageflags"),
            ("thp_disable", json!("half"), "except-advised"),
            ("limits", json!({"stream_bytes": 0}), "limits"),
            ("limits", json!({"stream_bytes": -1}), "-1"),
            ("limits", json!({"file_bytes": 1}), "file_bytes"),
        ] {
            let said = complaint(key, value);
            assert!(said.contains(word), "{key}: {said}");
        }
    }

    #[test]
    fn limits_may_be_left_out_and_each_of_them_too() {
        let mut json = good();
        assert_eq!(Spec::parse(json.to_string().as_bytes()).unwrap().limits, Limits::default());
        json["limits"] = serde_json::json!({"rooms": ["/tmp"]});
        let limits = Spec::parse(json.to_string().as_bytes()).unwrap().limits;
        assert_eq!((limits.rooms, limits.stream_bytes), (vec![PathBuf::from("/tmp")], None));
    }

    #[test]
    fn a_missing_key_is_named() {
        let mut json = good();
        json.as_object_mut().unwrap().remove("scan");
        assert!(Spec::parse(json.to_string().as_bytes()).unwrap_err().0.contains("missing field `scan`"));
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = Spec::read(Path::new("/nowhere/spec.json")).unwrap_err();
        assert!(error.0.starts_with("/nowhere/spec.json: cannot read"));
    }

    const GOOD: &str = r#"{"v": 1, "argv": ["true"], "micro": false, "env": {"PATH": "/bin"}, "cwd": null, "stdout": "out",
        "stderr": "err", "uid": null, "gid": 5, "thp_disable": "except-advised", "cgroup_procs": ["/x"], "cpus": [0, 1],
        "timeout_s": 5.0, "counters": ["cycles"], "scan": "every-exit", "source": "smaps", "announce": true,
        "barrier": {"ready": 3, "go": 4}, "limits": {"stream_bytes": 5, "rooms": ["/tmp"], "processes": null}}"#;

    proptest! {
        #![proptest_config(fuzz::config())]

        #[test]
        fn whatever_it_is_told_it_understands_or_refuses(text in fuzz::broken(&[GOOD])) {
            if let Ok(spec) = Spec::parse(&text) {
                prop_assert!(!spec.argv.is_empty() && spec.timeout() <= Duration::from_secs(1_000_000_000));
            }
        }
    }
}
