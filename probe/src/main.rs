//! hugewise-probe: launches, measures and inspects the page-size trials of hugewise.

mod event;

fn main() {
    println!("{}", event::VERSION);
}
