"""The words: pages, policies, workloads, procedures, trials, results, as plain values. Pure.

Imports the ground and `published`. A word that two rooms need, or a field of what is kept, goes here; how it is read,
made or judged goes to the room that does so. A new counter goes here: a row of `metrics.toml`, where the
probe knows the event (else first in probe/src/counters/names.rs).
"""
