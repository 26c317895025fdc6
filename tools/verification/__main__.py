"""`make verify-statistics`, or `python -m tools.verification`: simulations of the promises that verdicts rest on."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from hugewise.cli.main import main
from hugewise.visible import say_json
from tools.verification import suite


@click.command()
@click.option("--check", "checks", multiple=True, metavar="NAME", help="Only this check (can be repeated).")
@click.option("--power", is_flag=True, help="Only the power replay, as --check power.")
@click.option("--seed", type=int, help="Seed of all random streams (default: 1).")
@click.option("--streams", type=int, help="Null streams of each noise family (default: 500).")
@click.option("--replays", type=int, help="Replays of each published benchmark (default: 200).")
@click.option("--repeats", type=int, help="Repeats of each coverage case (default: 200).")
@click.option("--blocks", type=int, help="Streams of blocks of each case through the whole method (default: 100).")
@click.option("--stops", type=int, help="Streams of each case of the correction for stopping (default: 500).")
@click.option("--spreads", type=int, help="Streams of each case of the test of spread (default: 100).")
@click.option("--pilots", type=int, help="Simulated pilots of each case of planning (default: 300).")
@click.option("--fleets", type=int, help="Simulated fleets of 10 hosts of each case of pooling (default: 100).")
@click.option(
    "--reruns", type=int, help="Sequences of runs begun anew of each case of claims over runs (default: 300)."
)
@click.option(
    "--long", is_flag=True, help="More streams of blocks, spreads, pilots and fleets, and 20,000 pairs: hours of CPU."
)
@click.option("--run", "run_", type=click.Path(path_type=Path), help="Folder of an ended run: its coins are checked.")
@click.option("--jobs", type=int, help="Processes (default: one a CPU).")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def verify_statistics(checks: Sequence[str], power: bool, as_json: bool, **options: Any) -> None:
    """Check the promises that verdicts rest on, in less than 15 minutes of CPU: from closed blocks to the verdict.

    Checks: size, ledger, e-process, replay, coverage, metamorphic, coins, self-test, blocks, copies, edges, stopping,
    spread, planning, screening, futility, fleet, reruns, power. Exit status 1 when one fails.
    """
    given = {name.rstrip("_"): value for name, value in options.items() if value is not None}
    if power or checks:
        given["checks"] = (*checks, *(["power"] if power else []))
    found = suite.verify(suite.Options(**given), suite.progress(sys.stderr))
    if as_json:
        say_json(found)
    else:
        suite.show(found)
    sys.exit(0 if found.passed else 1)


if __name__ == "__main__":
    main(command=verify_statistics, name="python -m tools.verification")
