//! libhugewise-trace.so: a plugin of QEMU's user mode that simulates TLBs and page-walk caches while a program runs.
//!
//! Each thread of the program has a filter (`filter`), which passes on what can change a TLB, and a simulator
//! (`simulator`) of all configurations. `plugin` is the only part that QEMU knows. docs/concepts/prediction.md says
//! what is simulated and what is not.

mod ask;
mod filter;
mod laid;
mod lru;
mod memory;
#[cfg(not(test))]
mod plugin;
mod recent;
mod sets;
mod simulator;
#[cfg(test)]
mod tests;
mod walk;
