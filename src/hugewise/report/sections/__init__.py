"""The sections of a study's report, a file each: pure functions from `Results` to blocks of `report.document`.

A section without anything to say yields none; what a terminal shows of it is its `brief`. Which sections there are, and
in which order, is `report.write`.
"""
