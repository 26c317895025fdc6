//! The command line: one subcommand, one thing.

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::counters::{CountersArgs, count};
use crate::launch::{exec, keep_thp, run};
use crate::machine::cpu;
use crate::protocol::event::emit;
use crate::protocol::examples::examples;
use crate::work::{Work, fault_cost, touch};
use crate::{age, agent, counters, load, sample, scan, work};

/// Launches, measures and inspects the page-size trials of hugewise.
///
/// Says JSON Lines on stdout and text for people on stderr. Exit status: 0 done, 1 the probe or the host failed, 2 usage.
#[derive(Debug, Parser)]
#[command(name = "hugewise-probe", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Launch one attempt and say everything about it
    Run(run::RunArgs),
    #[command(flatten)]
    Work(Work),
    /// Ask redis or memcached servers for keys: closed loop, open loop, or a search
    Load(Box<load::Options>),
    /// Count what processes do that run already, while the caller says so
    Count(count::CountArgs),
    /// Read this machine's counters over time, until stdin ends
    Sample(sample::SampleArgs),
    /// Say what page sizes back the memory of a live process
    Scan(scan::ScanArgs),
    /// Say what size of pages backs each mapping of live processes, and how (root)
    Folios(scan::folios::FoliosArgs),
    /// Map, touch and release memory once
    Touch(touch::TouchArgs),
    /// Have no huge page left in what is free of this machine's memory, until stdin ends (root)
    Fragment(age::FragmentArgs),
    /// Say what page faults cost here
    FaultCost,
    /// Run a program that cannot switch transparent huge pages off for itself
    KeepThp(keep_thp::KeepThpArgs),
    /// Start a program with pages of one kind, and become it: as hugewise-exec
    Exec(exec::ExecArgs),
    /// Say what TLBs this processor has, by CPUID
    Cpu,
    /// Say which performance counters can be opened here
    Counters(CountersArgs),
    /// Do what the host of a guest asks; as the guest's /init it is started without a subcommand
    Agent(agent::AgentArgs),
    /// Describe the protocol
    Describe(DescribeArgs),
}

#[derive(Debug, clap::Args)]
struct DescribeArgs {
    /// Print one example of each event
    #[arg(long, required_unless_present = "agent")]
    examples: bool,
    /// Print one example of each line that the agent says
    #[arg(long, conflicts_with = "examples")]
    agent: bool,
}

/// Do what the arguments say. Usage errors that clap finds end the program here, with status 2.
pub fn main() -> anyhow::Result<ExitCode> {
    match Cli::parse().command {
        Command::Run(args) => return run::main(&args),
        Command::Agent(args) => return agent::main(&args),
        Command::Exec(args) => return exec::main(&args),
        Command::Work(work) => work::run(work)?,
        Command::Load(options) => load::main(*options)?,
        Command::Count(args) => count::main(&args)?,
        Command::Sample(args) => sample::main(&args)?,
        Command::Scan(args) => scan::main(args)?,
        Command::Folios(args) => scan::folios::main(&args)?,
        Command::Touch(args) => touch::main(args)?,
        Command::Fragment(args) => age::main(&args)?,
        Command::FaultCost => fault_cost::main()?,
        Command::KeepThp(args) => match keep_thp::main(&args)? {},
        Command::Cpu => cpu::main()?,
        Command::Counters(args) => counters::main(&args)?,
        Command::Describe(args) => describe(&args)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn describe(args: &DescribeArgs) -> anyhow::Result<()> {
    if !args.agent {
        examples().iter().try_for_each(emit)?;
        return Ok(());
    }
    let mut out = std::io::stdout().lock();
    agent::examples().iter().filter_map(agent::encode).try_for_each(|line| out.write_all(&line))?;
    Ok(())
}
