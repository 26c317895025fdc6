"""What backs a process that runs now, held against what a policy or the rules in force promise: `hugewise verify`.

Imports `attempt`, `policies`, `host`, `machine` and the rooms below. A new reason why pages were not given goes here:
`reasons`, with what it needs to know read in `look` or `rules`.
"""
