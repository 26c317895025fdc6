"""One process holds the host: it opens a run, conducts its blocks, and closes it with everything put back.

Imports `attempt`, `guests` and the rooms below. A step of opening goes into `steps.OPENING`, and what undoes it is
registered by it with `Session.at_close`; which block comes next is decided in `conductor`.
"""
