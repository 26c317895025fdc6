"""Knobs, pools, cgroups and folders of this host: set for an attempt, and restored in any case.

Imports `machine` and the rooms below. All that changes the host stands in the journal first (`ledger`, `journal`) and
is undone by `journal`: something else that is changed goes here, with its record and its way back.
"""
