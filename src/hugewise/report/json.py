"""`report.json` and `fleet.json`: indented JSON in UTF-8, keys in the order of the types."""

from __future__ import annotations

from typing import Any

import msgspec

from hugewise.model.fleet import FleetResults
from hugewise.model.results import Results
from hugewise.report.cell_answers import answers
from hugewise.visible import json_text

LEFT_OUT = ("attempts",)
"""Keys of `Results` that `report.json` does not have."""


def encode(results: Results) -> bytes:
    """`report.json`: the results without their attempts, with the answer of each cell under `answers`."""
    told: dict[str, Any] = {
        name: value for name, value in msgspec.structs.asdict(results).items() if name not in LEFT_OUT
    }
    told["answers"] = answers(results)
    return json_text(told).encode() + b"\n"


def encode_fleet(results: FleetResults) -> bytes:
    """`fleet.json`. `msgspec.json.decode(_, type=FleetResults)` reads it."""
    return json_text(results).encode() + b"\n"
