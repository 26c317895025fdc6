"""Inputs that nobody wrote, for every reader of what others write.

Each test holds a reader to one property: it returns a value, or raises the one error that it declares, whatever it is
given. Inputs are files that tools really wrote, broken: words are taken out, doubled, swapped, and replaced by what
readers have stumbled over. `corpus/NAME/` keeps those that once broke the reader NAME; each is tried in every run.

`make test` draws some tens for each reader, a second or two; `make fuzz` 10,000 for each (HUGEWISE_FUZZ=10000).
"""
