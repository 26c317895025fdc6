"""What of a study can run on a machine: its cells, each with its arms, and what is left out and why. Pure.

Imports `host`, `policies`, `stats` and the rooms below. What is decided before anything is touched goes here: first
`cells` (every parameter and metric, from the study alone), then `arms` (what the machine offers), `plan`
(which cell takes which arms, and whom its programs run as), `memory` (pools), `memory.within` (beside
what the host is for).
"""
