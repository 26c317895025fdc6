"""`hugewise verify-statistics`: the promises that a verdict rests on, checked on this machine in some minutes.

Read it in this order: `finding` (what a check says), `candidate` (what is checked: the public functions), `generators`
and `magnitudes` (what it is checked on), then one check a file: `size`, `ledger` (with `independent`), `evalue`,
`replay` (with `naive`), `coverage`, `metamorphic`, `orders`, `power` (with `matched`), `selftest` (with `faults`).
`suite` runs them, `show` prints what they found. docs/concepts/verification.md says what each proves, and what not.

Imports `stats` and the rooms below. A new check goes here: a file that finds `CheckResult`s, and its line in `suite`.
"""
