"""Attempt: prepared, launched, measured, proven and stored, on whatever machine it runs.

Imports `store`, `plan`, `host`, `machine` and the rooms below. A new step of an attempt goes into `runner.STEPS`; a new
reading of its results into `outcome` or `recording`.
"""
