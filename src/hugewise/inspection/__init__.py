"""Backing of running processes: as found (`hugewise inspect`), or against a promise (`hugewise verify`).

Imports `attempt`, `policies`, `host`, `machine` and the rooms below. A new reason why pages were not given goes here:
`reasons`, with what it needs to know read in `look` or `rules`. What `inspect` says as JSON is `inspected`.
"""
