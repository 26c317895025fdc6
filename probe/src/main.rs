//! hugewise-probe: launches, measures and inspects the page-size trials of hugewise.

mod agent;
mod cli;
mod common;
mod counters;
mod launch;
mod load;
mod machine;
mod process;
mod protocol;
mod scan;
mod work;

use std::process::ExitCode;

use common::mistake::Mistake;

fn main() -> ExitCode {
    if agent::is_init() {
        agent::init();
    }
    match cli::main() {
        Ok(status) => status,
        Err(error) => {
            eprintln!("hugewise-probe: {error:#}");
            ExitCode::from(if error.is::<Mistake>() { 2 } else { 1 })
        }
    }
}
