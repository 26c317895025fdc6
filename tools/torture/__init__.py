"""Runs that are killed, starved and stopped on this machine, and what they leave behind: `make torture`.

Read in this order: `subject` (a hugewise in a process of its own, as a user starts it, and its studies), `traces`
(what a run can leave on a machine, and what must stay of a run), `context` (what each case has), `cases` (a function a
kind of case). `torture` draws the cases and does them, `findings` keeps and counts what they found.
docs/concepts/trust.md has what is promised, and the figures. A new fault is a function in `cases` and its line in
`torture.KINDS`.
"""
