//! hugewise-probe: launches, measures and inspects the page-size trials of hugewise.

mod agent;
mod bench_launch;
mod cli;
mod clock;
mod count;
mod cpu;
mod describe;
mod event;
mod fullest;
mod guard;
mod keep_thp;
mod load;
mod micro;
mod perf;
mod run;
mod scan;
mod signals;
mod spawn;
mod spec;
mod stack;
mod touch;
mod trace;
mod tree;
mod walk;
mod work;

use std::process::ExitCode;

fn main() -> ExitCode {
    if agent::is_init() {
        agent::init();
    }
    match cli::main() {
        Ok(status) => status,
        Err(error) => {
            eprintln!("hugewise-probe: {error:#}");
            ExitCode::from(if error.is::<spec::Usage>() { 2 } else { 1 })
        }
    }
}
