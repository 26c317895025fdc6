//! What the program prints by itself: kept as snapshots, so that a change of the contract is a change of a file.

mod common;

use assert_cmd::Command;
use common::{events, one};

fn printed(arguments: &[&str]) -> String {
    let assert = Command::new(env!("CARGO_BIN_EXE_hugewise-probe")).args(arguments).assert().success();
    String::from_utf8(assert.get_output().stdout.clone()).unwrap()
}

#[test]
fn help_is_as_it_was() {
    insta::assert_snapshot!("help", printed(&["--help"]));
    insta::assert_snapshot!("help_run", printed(&["run", "--help"]));
}

#[test]
fn the_examples_are_as_they_were() {
    insta::assert_snapshot!("examples", printed(&["describe", "--examples"]));
    insta::assert_snapshot!("agent_examples", printed(&["describe", "--agent"]));
}

#[test]
fn wrong_arguments_end_with_2() {
    for arguments in [&[][..], &["frobnicate"], &["run"], &["describe"]] {
        Command::new(env!("CARGO_BIN_EXE_hugewise-probe")).args(arguments).assert().code(2);
    }
}

#[test]
fn every_counter_is_there_or_has_a_reason() {
    let said = events(printed(&["counters"]).as_bytes());
    let counters = one(&said, "available")["counters"].as_object().unwrap().clone();
    assert!(counters.contains_key("dTLB-load-misses") && counters.contains_key("page-faults"));
    assert!(counters.values().all(|reason| reason.is_null() || !reason.as_str().unwrap().is_empty()));
}
