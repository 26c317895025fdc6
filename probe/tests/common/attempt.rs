//! An attempt of `run`: its specification and its files.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{events, probe};

/// One attempt in a folder of its own, which other accounts may enter.
pub struct Attempt {
    pub folder: TempDir,
    pub spec: Value,
}

impl Attempt {
    pub fn new(argv: &[&str]) -> Attempt {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
        let spec = json!({
            "v": 1, "argv": argv, "micro": false, "env": {"PATH": "/usr/bin:/bin"}, "cwd": null,
            "stdout": path("stdout"), "stderr": path("stderr"), "uid": null, "gid": null, "thp_disable": "none",
            "cgroup_procs": [], "cpus": null, "timeout_s": 60.0, "counters": [], "scan": "none", "source": "smaps"
        });
        Attempt { folder, spec }
    }

    pub fn sh(script: &str) -> Attempt {
        Attempt::new(&["sh", "-c", script])
    }

    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Attempt {
        self.spec[key] = value.into();
        self
    }

    pub fn command(&self) -> std::process::Command {
        let file = self.folder.path().join("spec.json");
        fs::write(&file, self.spec.to_string()).unwrap();
        let mut command = probe();
        command.arg("run").arg("--spec").arg(file);
        command
    }

    pub fn output(&self) -> Output {
        self.command().output().unwrap()
    }

    /// The events of an attempt that ends with status 0.
    pub fn run(&self) -> Vec<Value> {
        let output = self.output();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        events(&output.stdout)
    }

    pub fn start(&self) -> Child {
        self.command().stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    pub fn said(&self) -> String {
        fs::read_to_string(self.folder.path().join("stdout")).unwrap()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}
