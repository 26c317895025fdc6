"""Plan of a study on a machine: its cells, each with its arms, and what is left out and why. Pure.

Imports `host`, `policies`, `stats` and the rooms below. Decisions made before anything is touched go here: first
`cells` (every parameter and metric, from the study alone), then `arms` (what the machine offers), `plan` (which cell
takes which arms, and the account of its programs), `memory` (pools, and the room beside the host's own load).
"""
