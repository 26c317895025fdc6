"""Question over many hosts: ordinary runs placed on hosts, brought back whole, and judged together.

Imports `session`, `report`, `analysis` and the rooms below. What decides is pure (`decision`, `records`); a new engine
goes into a file of its own beside `slurm`, and is an `engine.Engine`. docs/design/fleet.md is the contract.
"""
