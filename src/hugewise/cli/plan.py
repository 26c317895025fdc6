"""The verb `plan`: what was asked, what it is planned from, and the forecast on the terminal or as JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hugewise import published
from hugewise.analysis import forecast
from hugewise.analysis.published_forecast import Reread, replan
from hugewise.cli import progress
from hugewise.errors import UserError
from hugewise.quantity import parse_duration, parse_share
from hugewise.report import forecast as told
from hugewise.report.terminal import show
from hugewise.session import feasibility, session
from hugewise.store.folder import RunFolder
from hugewise.study import load as studies
from hugewise.study.study import Study
from hugewise.visible import say_json

__all__ = ["PlanOptions", "answer", "main"]


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """The options of `hugewise plan`, as they were given, and the `command` line that has them."""

    study: Path | None = None
    scale: str | None = None
    only: Sequence[str] = ()
    arms: Sequence[str] = ()
    runs: Sequence[Path] = ()
    pilot: int | None = None
    anyway: bool = False
    published: str | None = None
    effect: str | None = None
    session_cost: str = "1m"
    as_json: bool = False
    results: Path = Path("results")
    command: Sequence[str] = ()


def main(asked: PlanOptions) -> None:
    """Print the forecast. Raises UserError, and what a pilot's run raises."""
    found = answer(asked)
    if asked.as_json:
        say_json(found)
    else:
        show(told.study(found) if isinstance(found, forecast.Forecast) else told.published(found), width=80)


def answer(asked: PlanOptions) -> forecast.Forecast | Reread:
    """The forecast that was asked for; runs the pilot where one was. Raises UserError."""
    if asked.published is not None:
        if asked.study is not None or asked.runs or asked.pilot is not None or asked.effect is not None:
            raise UserError(
                "a published comparison is planned from its own figures",
                hint=f"alone: hugewise plan --published {asked.published}",
            )
        return replan(published.load(asked.published))
    effect = None if asked.effect is None else _value("--effect", asked.effect, _effect)
    cost = _value("--session-cost", asked.session_cost, parse_duration)
    study = _study(asked)
    runs = list(asked.runs)
    if asked.pilot is not None:
        runs.append(_pilot(study, asked.pilot, asked))
    if not runs:
        planned = feasibility.make_plan(study)
        feasibility.must_have_cells(study, planned)
        raise forecast.missing(study, planned.cells, asked.results)
    return forecast.forecast(study, runs, effect=effect, session_cost=cost)


def _study(asked: PlanOptions) -> Study:
    if asked.study is not None:
        return studies.part(studies.load(asked.study, asked.scale), asked.only, asked.arms)
    if not asked.runs:
        raise UserError(
            "name a study, or a published one", hint="hugewise plan studies/demo.toml   or   --published redhat-2021"
        )
    folder = RunFolder(asked.runs[0])
    return folder.study(folder.opened())


def _pilot(study: Study, blocks: int, asked: PlanOptions) -> Path:
    with progress.shown(sys.stderr) as listener:

        def run(study: Study, results: Path) -> RunFolder:
            return session.run(study, results, listener=listener, anyway=asked.anyway, command=asked.command)

        return forecast.pilot(study, blocks, asked.results, run=run)


def _value(name: str, text: str, read: Callable[[str], float]) -> float:
    try:
        return read(text)
    except ValueError as error:
        raise UserError(f"{name} {text}: {error}", hint="see: hugewise plan --help") from None


def _effect(text: str) -> float:
    share = parse_share(text)
    if share == 0:
        raise ValueError("no number of pairs shows an effect of 0; write for example 1%")
    return share
