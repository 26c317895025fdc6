//! What this machine is: its page sizes, its cache lines, its TLBs.
//!
//! `common` and `protocol` may be imported here. A new fact about processor or kernel goes here, one file each.

pub mod cache;
pub mod cpu;
pub mod pages;
