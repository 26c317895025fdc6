"""What of a study can run on a machine: its cells, each with its arms, and what is left out and why. Pure.

Imports `host`, `policies`, `stats` and the rooms below. What is decided before anything is touched (parameters, arms,
venue, memory of pools) goes here.
"""
