"""Analysis of runs' folders: verdicts, effects, changes, earlier runs and published figures.

Imports `store`, `plan`, `stats` and the rooms below. A new result goes here: it is found from what is kept, never
measured again, and `report` shows it.
"""
