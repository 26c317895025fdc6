"""Prediction: misses and walk steps of an unmodified program on machines that are not here, for `hugewise predict`.

One run of the program under QEMU's user mode, whose plugin (`probe/trace`) simulates the TLBs that `machines`
describes. `timing` adds times where runs on layouts earn them. A new described machine is a TOML file in `machines/`.
Imports `report`, `attempt` and the rooms below; only `cli` imports it.
"""
