//! `run`: launch one attempt, and say everything about it.
//!
//! Nothing is written while a workload runs: what happened is kept, with its time, and told afterwards.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::common::clock::now_ns;
use crate::common::complain;
use crate::common::usage::Usage;
use crate::counters::perf::{Counters, Target};
use crate::launch::bounds::Bounds;
use crate::launch::confine::confine;
use crate::launch::fullest::Fullest;
use crate::launch::guard;
use crate::launch::micro;
use crate::launch::plan::{LaunchError, Plan, Program, Step, c_string, find_program, open_cgroups, open_for_child};
use crate::launch::spawn::Launcher;
use crate::launch::spec::{Scan, Spec};
use crate::launch::trace::{Move, Tracer};
use crate::launch::watch::{Start, Watched, Why, is_over, wait_bare};
use crate::process::change::{Change, Pid, next_change};
use crate::process::signals::{Came, Signals};
use crate::process::tree::{self, Groups};
use crate::protocol::event::{Count, Event, Fault, Scope, emit};
use crate::sample::Sampler;
use crate::scan::scan_process;

#[derive(Debug, clap::Args)]
pub struct RunArgs {
    /// The specification of the attempt (JSON)
    #[arg(long, value_name = "FILE")]
    spec: PathBuf,
}

pub fn main(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let spec = Spec::read(&args.spec)?;
    let groups = Groups::of(&spec.cgroup_procs);
    guard::guarded(&groups, |signals| match attempt(&spec, &groups, signals) {
        Ok(status) => status,
        Err(error) => {
            complain::complain(format_args!("{error:#}"));
            ExitCode::from(complain::status(&error))
        }
    })
}

/// One attempt, told as events. Err: the host failed, and an `error` event has said so where that was possible.
fn attempt(spec: &Spec, groups: &Groups, signals: &Signals) -> anyhow::Result<ExitCode> {
    let prepared = prepare(spec).inspect_err(|error| say(true, error))?;
    let Prepared { launcher, mut counters, micro, mut bounds } = match prepared {
        Ok(prepared) => prepared,
        Err(not_found) => return no_workload(&not_found, 127),
    };
    let sampler = spec.sample.map(Duration::from_secs_f64).map(Sampler::start);
    let is_traced = !spec.micro && spec.scan != Scan::None;
    if let Some(barrier) = spec.barrier.filter(|_| !spec.micro) {
        micro::meet(barrier, signals, Instant::now() + spec.timeout()).inspect_err(|error| say(true, error))?;
    }
    let start_ns = now_ns();
    let deadline = Instant::now() + spec.timeout();
    let launched = if is_traced { launcher.launch_seized() } else { launcher.launch() };
    let root = match launched {
        Ok(root) => root,
        Err(error) => return failed_launch(spec, &error),
    };
    drop(launcher);
    let mut start = Start::new(start_ns, root);
    if spec.announce {
        start.tell()?;
    }
    let watched = match micro {
        Some(pipes) => micro::converse(spec, root, pipes, signals, deadline, &mut start),
        None if is_traced => follow(spec, root, signals, deadline, &mut bounds, &mut start),
        None => wait_bare(root, signals, Some(deadline), Some(&mut bounds)),
    };
    let values = counters.read();
    // Told with the rest: nothing is written before the tree is gone.
    let series = sampler.map(|sampler| sampler.and_then(Sampler::stop));
    let killed = tree::kill_all(signals, groups).context("cannot kill the tree");
    start.tell()?;
    let mut watched = watched.inspect_err(|error| say(false, error))?;
    let killed = killed.inspect_err(|error| say(false, error))?;
    // What was written since the last look is found here.
    let cut = bounds.cut().context("cannot cut its output").inspect_err(|error| say(false, error))?;
    watched.exceeded = watched.exceeded.or(cut);
    match series {
        Some(Ok(series)) => emit(&Event::Series(Box::new(series)))?,
        // It explains an attempt, and fails none.
        Some(Err(error)) => complain::complain(format_args!("no counters over time: {error:#}")),
        None => {}
    }
    conclude(spec, start_ns, root, watched, &killed, values)
}

struct Prepared {
    launcher: Launcher,
    counters: Counters,
    micro: Option<micro::Pipes>,
    bounds: Bounds,
}

/// Open everything that the attempt needs. The inner error: there is no such program.
fn prepare(spec: &Spec) -> anyhow::Result<Result<Prepared, String>> {
    let program = if spec.micro {
        let own = File::open("/proc/self/exe").context("cannot open this program (is /proc mounted?)")?;
        Program::Descriptor(own.into())
    } else {
        let path = spec.env.get("PATH").map(String::as_str);
        match find_program(&spec.argv[0], path, spec.entered()) {
            Some(found) => Program::Path(c_string(found)?),
            None => {
                let path = path.unwrap_or("not set");
                return Ok(Err(format!("{:?} is not on the workload's PATH ({path})", spec.argv[0])));
            }
        }
    };
    let stderr = create(&spec.stderr)?;
    let (stdin, stdout, micro) = if spec.micro {
        let (stdin, stdout, pipes) = micro::pipes().context("cannot make pipes")?;
        (stdin, stdout, Some(pipes))
    } else {
        // One file for both is opened once, so that neither writes over the other.
        let stdout = if spec.stdout == spec.stderr { stderr.try_clone()? } else { create(&spec.stdout)? };
        (File::open("/dev/null").context("cannot open /dev/null")?.into(), stdout, None)
    };
    let bounds = Bounds::new(&spec.limits, [("stdout", &stdout), ("stderr", &stderr)]).context("its output")?;
    confine(spec)?;
    let name = spec.micro.then(|| "hugewise-probe".to_string());
    let words = |words: &mut dyn Iterator<Item = String>| words.map(c_string).collect::<io::Result<Vec<_>>>();
    let plan = Plan {
        program,
        argv: words(&mut name.into_iter().chain(spec.argv.iter().cloned()))?,
        env: words(&mut spec.env.iter().map(|(key, value)| format!("{key}={value}")))?,
        cwd: spec.entered().map(c_string).transpose()?,
        stdio: [stdin, stdout, stderr],
        input: spec.stdin.as_deref().map(c_string).transpose()?,
        opened: open_for_child(&spec.opens)?,
        uid: spec.uid,
        gid: spec.gid,
        groups: spec.groups.clone(),
        thp_disable: spec.thp_disable,
        cgroups: open_cgroups(&spec.cgroup_procs)?,
        cpus: spec.cpus.clone(),
    };
    Ok(Ok(Prepared {
        launcher: Launcher::new(plan)?,
        counters: Counters::open(&spec.counters, Target::Child),
        micro,
        bounds,
    }))
}

/// A file for what a program says. A link in its place is never followed: the account could have put it there.
fn create(path: &Path) -> anyhow::Result<OwnedFd> {
    let file = File::options().write(true).create(true).truncate(true).custom_flags(libc::O_NOFOLLOW).open(path);
    Ok(file.with_context(|| format!("cannot create {}", path.display()))?.into())
}

/// Follow the tree from its exec, and look at processes while they leave.
fn follow(
    spec: &Spec,
    root: Pid,
    signals: &Signals,
    deadline: Instant,
    bounds: &mut Bounds,
    start: &mut Start,
) -> anyhow::Result<Watched> {
    let mut tracer = Tracer::start(root);
    let mut watched = Watched::new();
    // Only of an untimed twin: it takes time.
    let mut fullest = (spec.scan == Scan::EveryExit).then(|| Fullest::new(spec.source));
    watched.why = loop {
        if let Some(status) = tracer.root_status() {
            break Why::Ended(status);
        }
        watched.exceeded = bounds.look();
        if watched.exceeded.is_some() {
            break Why::Exceeded;
        }
        if let Some(fullest) = fullest.as_mut().filter(|fullest| is_over(Some(fullest.due()))) {
            fullest.look_around(&tracer.living());
        }
        let Some(change) = next_change().context("waiting for the tree")? else {
            let dues = [fullest.as_ref().map(Fullest::due), bounds.due()];
            let until = dues.into_iter().flatten().fold(deadline, Instant::min);
            match signals.wait(Some(until.saturating_duration_since(Instant::now()))) {
                Came::Stop(signal) => break Why::Stopped(signal),
                Came::Nothing if is_over(Some(deadline)) => break Why::TimedOut,
                Came::Nothing | Came::Child => continue,
            }
        };
        // Read for each stop, as any may be the root's: the clock comes before everything else.
        let stopped_ns = now_ns();
        let Move::Leaving { pid, task } = tracer.on(change) else { continue };
        if pid == root {
            watched.early_exits += tracer.unseen();
            start.tell()?;
            look(spec, pid, task, &mut fullest, &mut watched)?;
            for held in tracer.hold(signals).context("holding the tree")? {
                look(spec, held.pid, held.task, &mut fullest, &mut watched)?;
            }
            let looked_ns = now_ns();
            watched.paused_ns += looked_ns - stopped_ns;
            watched.looked_at = Some([stopped_ns, looked_ns]);
        } else if spec.scan == Scan::EveryExit && watched.may_look() {
            start.tell()?;
            look(spec, pid, task, &mut fullest, &mut watched)?;
            watched.paused_ns += now_ns() - stopped_ns;
        } else {
            watched.early_exits += 1;
        }
        tracer.release(pid, task);
    };
    watched.end_ns = now_ns();
    watched.begun = Some(tracer.begun());
    Ok(watched)
}

/// Scan one process; what goes wrong with that does not stop the others from being looked at.
fn look(spec: &Spec, pid: Pid, task: Pid, fullest: &mut Option<Fullest>, watched: &mut Watched) -> io::Result<()> {
    match scan_process(pid as u32, task as u32, None, spec.source) {
        Ok(at_exit) => emit(&match fullest {
            Some(fullest) => fullest.leave(pid, at_exit),
            None => at_exit,
        }),
        Err(error) => {
            watched.complain(format!("cannot look at the pages of process {pid}: {error:#}"));
            Ok(())
        }
    }
}

/// The last events: troubles, usage, counters, exit.
fn conclude(
    spec: &Spec,
    start_ns: u64,
    root: Pid,
    watched: Watched,
    killed: &tree::Killed,
    values: BTreeMap<String, Count>,
) -> anyhow::Result<ExitCode> {
    for message in &watched.trouble {
        emit(&host_error(false, message.clone()))?;
    }
    // All that were reaped, and all that those had reaped.
    emit(&Event::Usage(Usage::of(libc::RUSAGE_CHILDREN)))?;
    if !values.is_empty() {
        emit(&Event::Counters { scope: Scope::Command, values })?;
    }
    let of_root = |change: &&Change| change.pid == root;
    let status = match watched.why {
        Why::Ended(status) => Some(status),
        _ => killed.ends.iter().find(of_root).map(|change| change.status),
    };
    emit(&Event::Exit {
        t_ns: watched.end_ns,
        wall_ns: (watched.end_ns - start_ns).saturating_sub(watched.paused_ns),
        code: status.filter(|status| libc::WIFEXITED(*status)).map(|status| libc::WEXITSTATUS(status)),
        signal: status.filter(|status| libc::WIFSIGNALED(*status)).map(|status| libc::WTERMSIG(status)),
        timed_out: watched.why == Why::TimedOut,
        early_exits: watched.early_exits,
        killed: killed.count,
        looked_ns: watched.looked_at,
        exceeded: watched.exceeded,
        forked: watched.begun.map(|begun| begun.forked),
        executed: watched.begun.map(|begun| begun.executed),
        threads: watched.begun.map(|begun| begun.threads),
    })?;
    match watched.why {
        Why::Stopped(signal) => anyhow::bail!("stopped by signal {signal}; the tree of {:?} was killed", spec.argv[0]),
        _ if !watched.trouble.is_empty() => anyhow::bail!("{}", watched.trouble.join("; ")),
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Say that the host failed. When that fails too (nobody reads), the exit status is left to tell.
fn say(before_timed: bool, error: &anyhow::Error) {
    let _ = emit(&host_error(before_timed, format!("{error:#}")));
}

fn host_error(before_timed: bool, message: String) -> Event {
    Event::Error { fault: Fault::Host, before_timed, message }
}

/// An exec that fails is the workload's fault, unless the machine was short of something; other steps are the host's.
fn failed_launch(spec: &Spec, error: &LaunchError) -> anyhow::Result<ExitCode> {
    let errno = error.errno.raw_os_error().unwrap_or(0);
    let is_short = [libc::EAGAIN, libc::ENOMEM, libc::EMFILE, libc::ENFILE].contains(&errno);
    if error.step != Step::Execute || is_short || spec.micro {
        let entered = spec.entered().filter(|_| error.step == Step::WorkingDirectory);
        let place = entered.map_or(String::new(), |cwd| format!(": {}{}", cwd.display(), spec.by_account()));
        let message = format!("{:?}: {error}{place}", spec.argv[0]);
        emit(&host_error(true, message.clone()))?;
        anyhow::bail!(message);
    }
    let cure = match errno {
        libc::ENOENT => " (no such file, or the interpreter that it names is missing)",
        libc::EACCES => " (not executable for the user whom it runs as)",
        libc::ENOEXEC => " (neither a binary of this machine nor a script that starts with #!)",
        libc::E2BIG => " (arguments and environment are too long)",
        _ => "",
    };
    no_workload(&format!("{:?}: {error}{cure}", spec.argv[0]), if errno == libc::ENOENT { 127 } else { 126 })
}

/// The shell's statuses, 127 for not found and 126 for not executable, in an `exit` event of no duration.
fn no_workload(message: &str, code: i32) -> anyhow::Result<ExitCode> {
    complain::complain(message);
    emit(&Event::Error { fault: Fault::Workload, before_timed: true, message: message.into() })?;
    emit(&Event::Exit {
        t_ns: now_ns(),
        wall_ns: 0,
        code: Some(code),
        signal: None,
        timed_out: false,
        early_exits: 0,
        killed: 0,
        looked_ns: None,
        exceeded: None,
        forked: None,
        executed: None,
        threads: None,
    })?;
    Ok(ExitCode::SUCCESS)
}
