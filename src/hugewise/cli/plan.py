"""`hugewise plan`: what was asked, what it is planned from, and the forecast; and a calibration in words."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hugewise.analysis import forecast
from hugewise.analysis.calibration import Agreement, Stream
from hugewise.cli import progress
from hugewise.errors import UserError
from hugewise.quantity import parse_share
from hugewise.report import forecast as told
from hugewise.report.reasons import worded
from hugewise.report.terminal import show
from hugewise.session import feasibility, session
from hugewise.session.calibrate import CalibratedMetric, Calibration
from hugewise.store.folder import RunFolder
from hugewise.study import load as studies
from hugewise.study.study import Study
from hugewise.visible import say_json


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
    effect: str | None = None
    as_json: bool = False
    results: Path = Path("results")
    command: Sequence[str] = ()


def main(asked: PlanOptions) -> None:
    """Print the forecast. Raises UserError, and what a pilot's run raises."""
    found = answer(asked)
    if asked.as_json:
        say_json(worded(found))
    else:
        show(told.study(found), width=80)


def answer(asked: PlanOptions) -> forecast.Forecast:
    """Return the forecast that was asked for; runs the pilot where one was. Raises UserError."""
    effect = None if asked.effect is None else _value("--effect", asked.effect, _effect)
    study = _study(asked)
    runs = list(asked.runs)
    if asked.pilot is not None:
        runs.append(_run_pilot(study, asked.pilot, asked))
    if not runs:
        planned = feasibility.make_plan(study)
        feasibility.must_have_cells(study, planned)
        raise forecast.missing(study, planned.cells, asked.results)
    return forecast.forecast(study, runs, effect=effect)


def _study(asked: PlanOptions) -> Study:
    if asked.study is not None:
        return studies.part(studies.load(asked.study, asked.scale), asked.only, asked.arms)
    if not asked.runs:
        raise UserError("name a study, or a run of one", hint="hugewise plan studies/demo.toml   or   --from RUN")
    folder = RunFolder(asked.runs[0])
    return folder.study(folder.opened())


def _run_pilot(study: Study, blocks: int, asked: PlanOptions) -> Path:
    with progress.show_progress(sys.stderr) as listener:

        def run(study: Study, results: Path) -> RunFolder:
            lock = session.host_lock(listener, anyway=asked.anyway)
            return session.run(study, results, listener=listener, lock=lock, command=asked.command)

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


_NOTHING = "-"


def lines(found: Calibration) -> Iterator[str]:
    """Yield the calibration, a line at a time."""
    planted = f"; {100 * found.planted:g}% more work planted under one label" if found.planted else ""
    yield f"Calibration of {found.host}{planted}"
    for metric in found.metrics:
        yield ""
        yield f"{metric.cell}: {metric.metric} under {metric.policy}, twice"
        yield from _of_metric(metric)
    yield ""
    yield f"{'passed' if found.passed else 'FAILED'}"


def _of_metric(metric: CalibratedMetric) -> Iterator[str]:
    found = metric.relabelled
    for stream in metric.streams:
        yield from _stream(stream)
    yield (
        f"  relabelled {found.relabellings} times at {100 * found.nominal:g}%: {100 * found.rate:.2f}% verdicts"
        f" (at most {100 * found.limit:.2f}%)"
    )
    yield (
        f"  {found.campaigns} campaigns of {metric.streams[0].pairs} pairs at {100 * found.campaign_alpha:g}%:"
        f" {found.campaign_verdicts} verdicts (at most {found.most_verdicts})"
    )
    yield from map(_agreement, metric.agreements)
    yield f"  {'passed' if metric.passed else 'FAILED'}: {metric.reason}"


def _stream(stream: Stream) -> Iterator[str]:
    said = {0: "no verdict", 1: "the second label is larger", -1: "the second label is smaller"}[stream.verdict]
    yield f"  {stream.kind}: {stream.pairs} pairs of {stream.seconds:.3g} s, with their own labels at 99%: {said}"
    yield (
        f"    noise floor (sd of a pair's difference) {_percent(stream.sd)}"
        f" ({_percent(stream.sd_low)} to {_percent(stream.sd_high)}); ratio {stream.ratio or float('nan'):.4f}"
    )
    yield (
        f"    correlation within pairs {_plain(stream.correlation)} ({_plain(stream.correlation_low)} to"
        f" {_plain(stream.correlation_high)}); lag-1 autocorrelation {_plain(stream.lag_one)},"
        f" inefficiency {_plain(stream.inefficiency)}"
    )


def _agreement(one: Agreement) -> str:
    return (
        f"  {one.arm}: effect {_percent(one.other)} {one.kind}, {_percent(one.sequential)} sequential; they differ by"
        f" {_percent(one.low)} to {_percent(one.high)} (95%)"
    )


def _percent(value: float | None) -> str:
    return _NOTHING if value is None else f"{100 * value:.3g}%"


def _plain(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:.2f}"
