"""`hugewise torture`: from its options to what it found."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

from hugewise.errors import UserError
from hugewise.quantity import parse_duration
from hugewise.torture import soak, summary
from hugewise.torture.subject import THIS
from hugewise.torture.torture import TortureOptions, again, torture
from hugewise.visible import say, say_json

__all__ = ["main"]


def main(*, results: Path, case: str | None, soaking: str | None, as_json: bool, **asked: Any) -> bool:
    """Do what was asked and say what was found; whether every promise held. Raises HugewiseError."""
    command = asked["hugewise"]
    options = TortureOptions(
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
        soaked = soak.soak(options.folder, _seconds("--soak", soaking), options.hugewise, _say)
        _print(soaked) if as_json else soak.show(soaked)
        return soaked.passed
    if case is not None:
        one = again(options, case, _say)
        if as_json:
            _print(one)
        else:
            say(f"{one.name}: {one.did}")
            for line in one.faults or ["every promise held"]:
                say(f"  {line}")
        return not one.faults
    report = torture(options, _say)
    _print(report) if as_json else summary.show(report)
    return report.passed


def _seconds(option: str, text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise UserError(f"{option} {text}: {error}", hint=f"write for example {option} 30m") from None


def _print(found: object) -> None:
    say_json(found)


def _say(line: str) -> None:
    say(line, err=True)
    sys.stderr.flush()
