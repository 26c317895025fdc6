//! Processes as the kernel tells of them: signals, changes of state, the tree that descends from this one.
//!
//! `common` may be imported here. What launches, counts or serves needs this alike; how a process is made is
//! `launch`'s.

pub mod change;
pub mod signals;
pub mod tree;
