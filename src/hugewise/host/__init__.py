"""This host: its knobs, pools, cgroups and folders, turned for an attempt and put back whatever happens.

Imports `machine` and the rooms below. All that changes the host stands in the journal first (`ledger`, `journal`) and
is undone by `journal`: something else that is changed goes here, with its record and its way back.
"""
