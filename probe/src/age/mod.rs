//! Memory that looks as if it had been used for weeks: a long-lived process pins unmovable pages, so that no huge page
//! can be made of what is free.
//!
//! `common`, `protocol` and `machine` may be imported here. Another way in which memory ages goes here, one file each.

mod fragment;
mod free;
mod pins;

pub use fragment::{FragmentArgs, main};
