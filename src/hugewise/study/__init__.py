"""The study file: what its keys may hold, how it is read, and in what its keys must agree. No machine is known here.

Imports the model and the rooms below. A new key goes here: a field of the struct that its table is (`study`, `tables`,
`workload`, `guest`), with a `KeyKind` where its type does not say what it may hold, and its meaning in `keys.toml`; a
rule over several keys goes into `rules`. `make docs` writes the reference again.
"""
