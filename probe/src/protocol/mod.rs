//! What the probe says on stdout: its boundary to Python (docs/design/probe-protocol.md).
//!
//! Only `common` may be imported here. A new event, or a new field of one, goes into `event` and gets its example in
//! `examples`; what the load generator says goes into `load`, what the sampler says into `series`, what is found of each
//! mapping of a process into `folios`.

pub mod event;
pub mod examples;
pub mod folios;
pub mod load;
pub mod series;
