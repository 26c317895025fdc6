//! What every other room may need and what knows none of them: time, usage, randomness, lines, the caller's mistakes.
//!
//! Nothing of this crate may be imported here. A thing comes here when two rooms that do not see each other need it.

pub mod clock;
pub mod complain;
#[cfg(test)]
pub mod fuzz;
pub mod lines;
pub mod mistake;
pub mod random;
pub mod size;
pub mod usage;
