"""Storage: the folder of a run, its log and attempts, tables over them, and the data of workloads.

Imports `host` and the rooms below. What is written of a run, and how it is read again, goes here.
"""
