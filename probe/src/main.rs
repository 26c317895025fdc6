//! hugewise-probe: launches, measures and inspects the page-size trials of hugewise.

mod age;
mod agent;
mod cli;
mod common;
mod counters;
mod launch;
mod load;
mod machine;
mod process;
mod protocol;
mod sample;
mod scan;
mod work;

use std::process::ExitCode;

use common::complain;

fn main() -> ExitCode {
    if agent::is_init() {
        agent::init();
    }
    match cli::main() {
        Ok(status) => status,
        Err(error) => {
            complain::complain(format_args!("{error:#}"));
            ExitCode::from(complain::status(&error))
        }
    }
}
