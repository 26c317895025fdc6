//! hugewise-probe: launches, measures and inspects the page-size trials of hugewise.

mod event;
mod perf;

fn main() {
    println!("{}", event::VERSION);
}
