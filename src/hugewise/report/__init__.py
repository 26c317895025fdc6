"""Reports of one run, of other data and of a forecast, made from their results alone.

Imports `analysis`, `external` and the rooms below. A new report section goes here: one file of pure functions in
`sections`, and its place in `report/write.py`; what it says is found in `analysis`, never here. Every report is a
`document`, and `html`, `markdown` and `terminal` know each of its blocks; `figures` draws.
"""
