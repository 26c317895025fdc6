"""`hugewise torture`: runs that are killed, starved and stopped on this machine, and what they leave behind.

Read it in this order: `studies` (the runs that suffer), `subject` (a hugewise in a process of its own, as a user
starts it), `traces` and `descent` (what a run can leave on a machine; its processes), `kept` (what must stay of a run),
`rack` (what each case does), `kills` and `faults` (a function a kind of case, with `rooms` that are too small), `soak`
(memory and descriptors of a long run). `torture` draws the cases and goes through them, `findings` keeps what they
found, `summary` counts it. docs/concepts/trust.md has what is promised, and the figures.

Imports `host` and `store` for the names of what runs make, and the rooms below; what is tortured is reached by its
command line alone. A new fault goes here: a function in `faults`, its line in `torture.KINDS`.
"""
