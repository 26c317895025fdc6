"""One attempt: prepared, launched, measured, proven and stored, on whatever machine it runs.

Imports `store`, `plan`, `host`, `machine` and the rooms below. A step of an attempt goes into `runner.STEPS`; what is
read of it into `outcome` and `recording`.
"""
