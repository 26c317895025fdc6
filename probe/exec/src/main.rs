//! hugewise-exec: see the library of this package.
#![cfg_attr(not(test), no_std, no_main)]

#[cfg(not(test))]
mod begin;

/// Under test there is a C library, and a first instruction of its own.
#[cfg(test)]
fn main() {}
