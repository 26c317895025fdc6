"""From the folders of runs to results: verdicts, effects, changes, what the runs before and the published figures say.

Imports `store`, `plan`, `stats` and the rooms below. A new result goes here: it is found from what is kept, never
measured again, and `report` shows it.
"""
