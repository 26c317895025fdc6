//! Launching one attempt: made, followed, looked at when it leaves, and nothing left behind.
//!
//! `common`, `protocol`, `machine`, `process`, `counters`, `sample` and `scan` may be imported here. What an attempt can be told
//! goes into `spec`; what a child does before its exec into `plan` and `spawn`; what is done to it while it runs into
//! `run` (bare, or traced by `trace`) or `micro` (a micro-workload, which speaks); what it may not inherit into `confine`,
//! and what it may not fill into `bounds`. Another command that starts a program
//! is a file of its own beside `exec` and `keep_thp`.

mod bounds;
mod confine;
pub mod exec;
mod fullest;
mod guard;
pub mod keep_thp;
mod micro;
mod plan;
pub mod run;
mod spawn;
mod spec;
mod stack;
mod trace;
mod watch;
