"""The processor's own events: what each family counts of the TLB and of page walks, and what is counted together.

`families` reads the TOML files beside it, one a vendor; a new family is an entry there, with its source, and nothing
else. `families` says too which events one attempt counts. Nothing here asks a machine: who does hands in what it said.
"""

from __future__ import annotations
