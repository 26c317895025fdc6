"""`fleet.json`: what a fleet found; and the reference of its format, made from the types themselves."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from hugewise.model.fleet import FleetResults, TransferredVerdict
from hugewise.report.json import structures
from hugewise.visible import json_text


def encode(results: FleetResults) -> bytes:
    """Indented JSON in UTF-8, keys in the order of the types. `msgspec.json.decode(_, type=FleetResults)` reads it."""
    return json_text(results).encode() + b"\n"


def reference() -> str:
    """docs/reference/fleet-json.md."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# fleet.json"
    yield ""
    yield "Made from the types in `model.fleet` by `report.fleet_json`; a test keeps it current."
    yield ""
    yield (
        "`hugewise fleet report` writes a `fleet.json` in UTF-8, and prints the same with `--json`. Its key `format` "
        "rises when a meaning changes; new keys may come without that. A value that is not there is null, never 0. All "
        "ratios are arm/baseline; a spread is a standard deviation of the logarithm of the ratio."
    )
    yield ""
    yield "`hugewise fleet confirm --json` prints a list of [TransferredVerdict](#transferredverdict)."
    yield from structures(FleetResults)
    yield from structures(TransferredVerdict)


if __name__ == "__main__":
    sys.stdout.write(reference())
