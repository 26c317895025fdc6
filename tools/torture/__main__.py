"""`make torture`, or `python -m tools.torture`: runs that are killed and starved on this machine."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import click

from hugewise.cli import options
from hugewise.cli.main import main
from hugewise.errors import UserError
from hugewise.quantity import parse_duration
from hugewise.visible import say, say_json
from tools.torture import cases, findings
from tools.torture import torture as torturing
from tools.torture.subject import THIS


@click.command()
@click.option("--kills", type=click.IntRange(0), default=200, show_default=True, help="Runs that are killed.")
@click.option("--faults", type=click.IntRange(0), default=70, show_default=True, help="Runs that suffer otherwise.")
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of all that is drawn.")
@click.option("--kinds", metavar="KINDS", help="Only these kinds of cases: host,pool,guest,disk.")
@click.option("--now", type=click.IntRange(0), help="Cases to do in this call (default: all that are left).")
@click.option("--time", "time_", default="70m", show_default=True, help="Begin no other case after this time.")
@click.option("--case", metavar="NAME", help="Do this case again, such as host-017; its folder stays.")
@click.option("--soak", "soaking", metavar="TIME", help="Instead: one long run, whose memory is watched, such as 30m.")
@click.option("--hugewise", metavar="COMMAND", help="The hugewise that is tortured (default: this one).")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@options.RESULTS
def torture(*, results: Path, case: str | None, soaking: str | None, as_json: bool, **asked: Any) -> None:
    """Kill and starve runs on this machine, and see that nothing is left of them and nothing lost.

    Keeps what it found in RESULTS/torture-SEED; called again, it goes on with the cases that are left. Exit status 1
    when a promise is broken.
    """
    command = asked["hugewise"]
    chosen = torturing.TortureOptions(
        folder=results,
        seed=asked["seed"],
        kills=asked["kills"],
        faults=asked["faults"],
        kinds=tuple(name.strip() for name in asked["kinds"].split(",")) if asked["kinds"] else (),
        most=asked["now"],
        seconds=_seconds("--time", asked["time_"]),
        hugewise=THIS if command is None else tuple(shlex.split(command)),
    )
    if soaking is not None:
        soaked = cases.soak(chosen.folder, _seconds("--soak", soaking), chosen.hugewise, _say)
        _told(soaked if as_json else None, cases.lines(soaked), passed=soaked.passed)
    if case is not None:
        one = torturing.again(chosen, case, _say)
        lines = [f"{one.name}: {one.did}", *(f"  {line}" for line in one.faults or ["every promise held"])]
        _told(one if as_json else None, lines, passed=not one.faults)
    report = torturing.torture(chosen, _say)
    if not as_json:
        findings.show(report)
    _told(report if as_json else None, (), passed=report.passed)


def _told(found: object, lines: Any, *, passed: bool) -> None:
    """Print the result, as JSON if requested, and exit."""
    if found is not None:
        say_json(found)
    else:
        for line in lines:
            say(line)
    sys.exit(0 if passed else 1)


def _seconds(option: str, text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise UserError(f"{option} {text}: {error}", hint=f"write for example {option} 30m") from None


def _say(line: str) -> None:
    say(line, err=True)


if __name__ == "__main__":
    main(command=torture, name="python -m tools.torture")
