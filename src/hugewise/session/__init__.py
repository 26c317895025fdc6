"""One process holds the host: it opens a run, conducts its blocks, and closes it with everything put back.

Imports `attempt`, `guests` and the rooms below. A step of opening or closing goes into `steps.OPENING` or `CLOSING`;
which block comes next into `conductor`.
"""
