"""`hugewise audit`: the page settings in force on a host, wherever they were set, and the traps among them.

Read it in this order: `facts` (what is known of a host, as values), `root` (how its files are read: below a folder, so
many bytes, no link followed out), `collect` with `systemd`, `running` and `servers` (from files to facts), `rules/`
(from facts to findings, pure), `inventory` (the settings in force, and what makers of programs say of them), `audit`
(all together).

Imports `host`, `published` and the rooms below. A new trap goes here: an entry in a module of `rules`, found by being
there, its texts in the TOML file beside it, and a test on a host that has the fault and on one just beside it;
`make docs` writes it into the reference.
"""
