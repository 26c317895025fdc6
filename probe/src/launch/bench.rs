//! `bench-launch`: the launcher timed by itself, over and over, on the path that `run` takes without scans.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use anyhow::{Context, bail};

use crate::common::clock::now_ns;
use crate::common::mistake::Mistake;
use crate::counters::names::everywhere;
use crate::counters::perf::{Counters, Target};
use crate::launch::plan::{Plan, Program, c_string, find_program, open_cgroups};
use crate::launch::spawn::Launcher;
use crate::launch::spec::ThpDisable;
use crate::launch::watch::{Why, wait_bare};
use crate::process::signals::Signals;
use crate::protocol::event::{Event, emit};

#[derive(Debug, clap::Args)]
pub struct BenchArgs {
    /// How often to launch
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// Open the software counters before each launch, and read them after it (neither is timed)
    #[arg(long)]
    counters: bool,
    /// A cgroup.procs file that each child enters
    #[arg(long, value_name = "FILE")]
    cgroup: Vec<PathBuf>,
    /// The program and its arguments; it inherits this environment
    #[arg(last = true, required = true)]
    argv: Vec<String>,
}

pub fn main(args: &BenchArgs) -> anyhow::Result<()> {
    let signals = Signals::block().context("cannot block signals")?;
    let launcher = Launcher::new(plan(args)?)?;
    let names = everywhere();
    let mut wall_ns = Vec::with_capacity(args.count as usize);
    for _ in 0..args.count {
        let counters = args.counters.then(|| Counters::open(&names, Target::Child));
        let start = now_ns();
        let root = launcher.launch().with_context(|| args.argv[0].clone())?;
        let watched = wait_bare(root, &signals, None, None)?;
        wall_ns.push(watched.end_ns - start);
        match watched.why {
            Why::Ended(0) => {}
            Why::Ended(status) => bail!("{:?} failed (wait status {status:#x}); give one that succeeds", args.argv[0]),
            // The child dies with this process (PDEATHSIG).
            Why::Stopped(signal) => bail!("stopped by signal {signal}"),
            Why::TimedOut | Why::Exceeded => bail!("it met a limit, and has none"),
        }
        if let Some(mut counters) = counters
            && let Some((name, count)) = counters.read().into_iter().find(|(_, count)| count.value.is_none())
        {
            bail!("counter {name}: {}", count.reason.unwrap_or_default());
        }
    }
    emit(&Event::Launches { wall_ns, counters: args.counters, cgroup: !args.cgroup.is_empty() })?;
    Ok(())
}

fn plan(args: &BenchArgs) -> anyhow::Result<Plan> {
    let path = std::env::var("PATH").ok();
    let Some(program) = find_program(&args.argv[0], path.as_deref(), None) else {
        return Err(Mistake(format!("{:?} is not on PATH", args.argv[0])).into());
    };
    let null = || -> anyhow::Result<OwnedFd> {
        Ok(File::options().read(true).write(true).open("/dev/null").context("cannot open /dev/null")?.into())
    };
    let mut env = Vec::new();
    for (key, value) in std::env::vars_os() {
        env.push(std::ffi::CString::new([key.as_bytes(), b"=", value.as_bytes()].concat())?);
    }
    Ok(Plan {
        program: Program::Path(c_string(program)?),
        argv: args.argv.iter().map(c_string).collect::<Result<_, _>>()?,
        env,
        cwd: None,
        stdio: [null()?, null()?, null()?],
        input: None,
        opened: vec![],
        uid: None,
        gid: None,
        groups: vec![],
        thp_disable: ThpDisable::None,
        cgroups: open_cgroups(&args.cgroup)?,
        cpus: None,
    })
}
