"""Measurements that others made, read from their files and judged (`hugewise analyze`).

Imports `stats` and the rooms below. A new format of files goes into `readers`, one file each.
"""
