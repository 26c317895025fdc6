"""The promises that a verdict rests on, checked on this machine: `make verify-statistics`.

Read in this order: `candidate` (what is checked, what a check says, and the tests that people use), `generators`
(what it is checked on), then the checks: `enumeration` (size, ledger with `independent`, e-process), `replay`,
`coverage`, `metamorphic`, `orders`, `power` (with `matched`), `blocks`, `selftest`. `suite` runs them and prints what
they found. docs/concepts/verification.md says what each proves, and what not. A new check is a file that finds
`CheckResult`s and its line in `suite`.
"""
