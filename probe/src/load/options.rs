//! What `load` is told on the command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::common::mistake::Mistake;
use crate::load::keys::{KeyName, Popularity};
use crate::load::payload::Mix;
use crate::load::times::{nanoseconds, seconds};
use crate::load::turns::Slices;

/// What the servers speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Protocol {
    Redis,
    Memcached,
}

impl Protocol {
    pub fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Memcached => "memcached",
        }
    }
}

#[derive(Debug, Clone, Args)]
pub struct Options {
    /// What the servers speak
    #[arg(long)]
    pub protocol: Protocol,
    /// A server, as unix:/path or 127.0.0.1:6379; each one named is an instance with its own keys and connections
    #[arg(long, required = true, value_name = "ADDRESS")]
    pub server: Vec<Address>,
    /// A file whose first line is the servers' password (memcached: a name and a password, as its auth file has them)
    #[arg(long, value_name = "FILE")]
    pub secret: Option<PathBuf>,
    /// One thread pinned to each of these CPUs; without it one thread, free to move
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub cpus: Vec<usize>,
    /// Connections to each instance
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=16_384))]
    pub connections: u32,
    /// Requests that a connection may have under way
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4_096))]
    pub pipeline: u32,
    /// Keys that each instance holds
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    pub keys: u64,
    /// How keys are called: a text with one %d, or %012d for numbers of twelve digits
    #[arg(long, default_value = "memtier-%d", value_name = "FORMAT")]
    pub key_name: KeyName,
    /// Which keys are asked for: uniform, zipf:S, gauss or gauss:SD (a share of the key space, default 1/6)
    #[arg(long, default_value = "uniform", value_name = "LAW")]
    pub popularity: Popularity,
    /// Sets to gets
    #[arg(long, default_value = "1:10", value_name = "S:G")]
    pub set_get: SetGet,
    /// Share of the gets that ask for a key that is there
    #[arg(long, default_value_t = 0.95, value_name = "SHARE")]
    pub hit_ratio: f64,
    /// Sizes of values in bytes, each with its weight
    #[arg(long, default_value = "16:56,64:30,128:12,1024:2", value_name = "SIZE:WEIGHT,...")]
    pub payload: Mix,
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Store every key once, in order, over one connection an instance
    #[arg(long)]
    pub preload: bool,
    /// Read every key once and compare every byte, over the connections of the timed phase
    #[arg(long)]
    pub touch: bool,
    /// Untimed seconds of the same mix before the timed phase
    #[arg(long, default_value = "0", value_parser = seconds, value_name = "SECONDS")]
    pub lead: Duration,
    /// Length of the timed phase (of each probe with --sla)
    #[arg(long, value_parser = seconds, value_name = "SECONDS", conflicts_with = "operations")]
    pub duration: Option<Duration>,
    /// Operations of the timed phase, over all instances; 0: no timed phase
    #[arg(long)]
    pub operations: Option<u64>,
    /// Open loop: operations a second over all instances, at evenly spaced times that do not wait for replies
    #[arg(long, conflicts_with = "sla")]
    pub rate: Option<f64>,
    /// When warm, say `ready` and wait for a byte on stdin before the timed phase
    #[arg(long)]
    pub gate: bool,
    /// Keep the connections open after the result until stdin ends
    #[arg(long)]
    pub hold: bool,
    /// Search the highest rate at which the worst instance's p99 stays within this, as p99:1ms
    #[arg(long, value_name = "p99:TIME", requires = "duration")]
    pub sla: Option<Sla>,
    /// Probes of each rate of --sla; the majority decides
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    pub repeats: u32,
    /// Bracket at which --sla ends, as a share of the closed loop's throughput
    #[arg(long, default_value_t = 0.02, value_name = "SHARE")]
    pub resolution: f64,
    #[command(flatten)]
    pub slices: Slices,
}

impl Options {
    /// Refuse what clap cannot see.
    pub fn check(&self) -> Result<(), Mistake> {
        let wrong = |text: String| Err(Mistake(text));
        if !(0.0..=1.0).contains(&self.hit_ratio) {
            return wrong(format!("--hit-ratio {}: a share lies between 0 and 1", self.hit_ratio));
        }
        if self.rate.is_some_and(|rate| !rate.is_finite() || rate <= 0.0) {
            return wrong(format!("--rate {}: give operations a second, above 0", self.rate.unwrap_or_default()));
        }
        if !(self.resolution > 0.0 && self.resolution < 1.0) {
            return wrong(format!("--resolution {}: a share lies between 0 and 1", self.resolution));
        }
        if self.sla.is_some() && self.pipeline != 1 {
            return wrong("--sla is judged per operation: leave --pipeline at 1".into());
        }
        if self.key_name.longest(self.keys) > 250 {
            return wrong(format!(
                "--key-name: {} bytes are too long, 250 is the most",
                self.key_name.longest(self.keys)
            ));
        }
        if !(self.preload || self.touch || self.is_timed()) {
            return wrong("nothing to do: give --preload, --touch, --duration, --operations or --turns".into());
        }
        if self.slices.groups > 1 && self.slices.turns.is_none() && self.is_timed() {
            return wrong("--groups: they are asked one at a time; give --turns, as 0110, and no other end".into());
        }
        self.slices.check(self.server.len(), !self.lead.is_zero())
    }

    /// Whether a timed phase or a search was asked for.
    pub fn is_timed(&self) -> bool {
        self.duration.is_some_and(|duration| !duration.is_zero())
            || self.operations.is_some_and(|count| count > 0)
            || self.slices.turns.is_some()
    }
}

/// Where an instance listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return Ok(Self::Unix(path.into()));
        }
        text.parse()
            .map(Self::Tcp)
            .map_err(|_| "write unix:/path or an IP address and a port, as 127.0.0.1:6379".into())
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, form: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unix(path) => write!(form, "unix:{}", path.display()),
            Self::Tcp(address) => write!(form, "{address}"),
        }
    }
}

/// The share of sets among all operations.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SetGet(pub f64);

impl FromStr for SetGet {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.parse::<u16>().ok().map(f64::from);
        let parts = text.split_once(':').and_then(|(sets, gets)| Some((number(sets)?, number(gets)?)));
        match parts {
            Some((sets, gets)) if sets + gets > 0.0 => Ok(Self(sets / (sets + gets))),
            _ => Err("write sets to gets, as 1:10".into()),
        }
    }
}

/// The limit on the worst instance's p99.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sla {
    pub limit_ns: u64,
}

impl FromStr for Sla {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let limit = text.strip_prefix("p99:").and_then(nanoseconds).filter(|limit| *limit > 0);
        limit.map(|limit_ns| Self { limit_ns }).ok_or_else(|| "write p99:1ms, or us, s".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    use crate::common::fuzz;

    #[test]
    fn addresses_are_read_and_written() {
        for text in ["unix:/tmp/a b", "127.0.0.1:6379", "[::1]:11211"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        assert!("localhost".parse::<Address>().is_err());
    }

    #[test]
    fn ratios_and_limits_are_read() {
        assert_eq!("1:10".parse(), Ok(SetGet(1.0 / 11.0)));
        assert!("0:0".parse::<SetGet>().is_err() && "1".parse::<SetGet>().is_err());
        assert_eq!("p99:1ms".parse(), Ok(Sla { limit_ns: 1_000_000 }));
        assert_eq!("p99:250us".parse(), Ok(Sla { limit_ns: 250_000 }));
        assert!("p95:1ms".parse::<Sla>().is_err() && "p99:1".parse::<Sla>().is_err());
    }

    proptest! {
        #![proptest_config(fuzz::config())]

        #[test]
        fn whatever_is_asked_for_is_understood_or_refused(
            text in fuzz::broken_text(&["p99:250us", "1:10", "unix:/tmp/a", "[::1]:11211", "127.0.0.1:6379"]),
        ) {
            let _ = (text.parse::<Address>(), text.parse::<SetGet>(), text.parse::<Sla>());
        }
    }
}
