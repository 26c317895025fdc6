"""Advice: from a program to a setting, for `hugewise advise`.

A pilot of the program as it is, candidates that can reach it, a screening that chooses one and claims nothing, and a
confirmation whose verdict is free of that choice: three runs like any other, each with its own seed. A new candidate is
an entry in `candidates`. Imports `session` and the rooms below; only `cli` imports it.
"""
