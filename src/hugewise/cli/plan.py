"""Plans for the terminal: of `hugewise plan`, of a dry run; listings; a calibration.

The verb `plan`: what was asked, what it is planned from, and the forecast on the terminal or as JSON.

Plain listings for the terminal: a dry run's plan, and what there is of policies, workloads, metrics, and so on.

A calibration in words, for a terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

import hugewise
from hugewise import policies, published, workloads
from hugewise.analysis import forecast
from hugewise.analysis.calibration import Agreement, Calibrated, CalibrationRecord, Stream
from hugewise.analysis.forecast import Reread, replan
from hugewise.cli import progress
from hugewise.console import TextConsole
from hugewise.errors import StudyError, UserError
from hugewise.host.local_host import LocalHost
from hugewise.model import randomisation
from hugewise.model.design import ESTIMANDS
from hugewise.model.host import ClientHost
from hugewise.model.metric import COMMON
from hugewise.model.pages import PageSizes
from hugewise.model.policy import mechanism as mechanism_of
from hugewise.quantity import format_duration, parse_duration, parse_share
from hugewise.report import forecast as told
from hugewise.report.terminal import show
from hugewise.session import feasibility, session
from hugewise.store.folder import RunFolder
from hugewise.study import load
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
    with progress.show_progress(sys.stderr) as listener:

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


_BESIDE = 40  # columns of a dry run's table beside the cell's name


def show_plan(study: Study, client: ClientHost | None, seed: bytes | None, results: Path) -> None:
    """Cells, arms, budget, what is left out, why the budget decides nothing, and one example order under a seed that no
    run uses. `results` is the folder of earlier runs. Raises UserError.
    """
    from hugewise.analysis import budget, earlier  # noqa: PLC0415  (numpy, which listings do without)

    plan = hugewise.make_plan(study, results=results, client=client)
    console = TextConsole()
    table = _table("cell", "metric", "arms (baseline first)")
    table.columns[0].no_wrap = True  # what --only takes stays in one piece: so wide the table is at least
    console.width = max(console.width, _BESIDE + max((len(cell.id) for cell in plan.cells), default=0))
    for cell in plan.cells:
        arms = [cell.baseline, *(arm.name for arm in cell.arms if arm.name != cell.baseline)]
        metrics = ", ".join(f"{metric.name} ({metric.unit})" for metric in (cell.metric, *cell.also))
        table.add_row(cell.id, metrics, ", ".join(arms))
    console.print(table)
    for cell in plan.cells:
        if cell.kind != "sequential":
            console.print(f"{cell.id}: {cell.kind}, {ESTIMANDS[cell.kind]}", soft_wrap=True)
    for left in plan.left_out:
        console.print(f"left out: {left.what}: {left.reason}", soft_wrap=True)
    if not plan.cells:
        console.print("nothing of it can run here")
        return
    claims = None if study.method == "screening" else len(earlier.judged_comparisons(study, plan.cells))
    console.print(_budget(study, claims), soft_wrap=True)
    for line in plan.first:
        console.print(f"first: {line}", soft_wrap=True)
    if (why := budget.too_small(study, plan.cells, results)) is not None:
        console.print(why, soft_wrap=True)
    example = seed or randomisation.new_seed()
    note = "shown only; no run uses it" if seed is None else "shown only; a run uses it if --seed gives it again"
    console.print(f"\nexample orders under the seed {example.hex()} ({note}):", soft_wrap=True)
    for number, cell in enumerate(plan.cells, 1):
        order = randomisation.order(example, number, [arm.name for arm in cell.arms], cell=cell.id)
        console.print(f"  block {number} ({cell.id}): {', '.join(trial.arm for trial in order)}", soft_wrap=True)


def _budget(study: Study, comparisons: int | None) -> str:
    """How much a run measures, and how many comparisons share its error rate; None of them: nothing is claimed."""
    most = "" if study.method == "fixed-n" else "at most "
    time = "" if study.budget.time is None else f", at most {format_duration(study.budget.time)} in all"
    if comparisons is None:
        claim = "claims nothing"
    else:
        sure = f"{study.confidence * 100:.10g}%"
        claim = f"one comparison at {sure}" if comparisons == 1 else f"{comparisons} comparisons, together at {sure}"
    return f"budget: {most}{study.budget.blocks} blocks of each cell{time}; {claim} ({study.method})"


def show_list(what: str) -> None:
    """Print one of the listings."""
    makers = {
        "policies": _policies,
        "workloads": _workloads,
        "metrics": _metrics,
        "studies": _studies,
        "published": _published,
    }
    heads = {
        "policies": ("policy", "here", "what it is"),
        "workloads": ("workload", "judged by", "what it is"),
        "metrics": ("metric", "of", "unit", "better", "what it is"),
        "studies": ("study", "question"),
        "published": ("source", "what it is"),
    }
    table = _table(*heads[what])
    for row in makers[what]():
        table.add_row(*row)
    TextConsole().print(table)


def _table(*heads: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in heads:
        table.add_column(head, overflow="fold")
    return table


def _policies() -> Iterator[Sequence[str]]:
    host = LocalHost()
    sizes = PageSizes.discover(host)
    mechanism = mechanism_of(host)
    for policy in policies.discover(sizes).values():
        missing = policy.missing(host, sizes, mechanism)
        yield policy.name, mechanism if missing is None else f"no: {missing}", policy.description


def _workloads() -> Iterator[Sequence[str]]:
    for workload in workloads.discover().values():
        values = ", ".join(parameter.name for parameter in workload.parameters)
        yield workload.name, workload.metrics[0].name, f"{workload.description}\nparameters: {values}"


def _metrics() -> Iterator[Sequence[str]]:
    for metric in COMMON:
        yield metric.name, "every attempt", metric.unit, metric.better, metric.description
    for workload in workloads.discover().values():
        for metric in workload.metrics:
            if metric not in COMMON:
                yield metric.name, workload.name, metric.unit, metric.better, metric.description


def _studies() -> Iterator[Sequence[str]]:
    for path in sorted({path.resolve() for folder in _folders() for path in folder.glob("*.toml")}):
        try:
            found = studies.load(path)
            yield _shown(path), found.question
        except StudyError as error:
            yield _shown(path), f"cannot be read: {error.message}"


def _published() -> Iterator[Sequence[str]]:
    for name in published.names():
        found = published.load(name)
        planned = ", ".join(one.name for one in found.benchmarks) or "nothing, for want of figures"
        yield name, f"{found.source.title} ({found.source.publisher}, {found.source.date})\nto plan: {planned}"


def _folders() -> Iterable[Path]:
    """Where studies lie: below the folder of the call, and those that come with hugewise."""
    return (Path("studies"), load.folder())


def _shown(path: Path) -> str:
    """What `hugewise run` takes for it here."""
    if path.is_relative_to(Path.cwd()):
        return str(path.relative_to(Path.cwd()))
    return path.stem if path.parent == load.folder().resolve() else str(path)


_NOTHING = "-"


def lines(record: CalibrationRecord) -> Iterator[str]:
    """The record, a line at a time."""
    planted = f"; {100 * record.planted:g}% more work planted under one label" if record.planted else ""
    yield f"Calibration of {record.host}, kernel {record.kernel}{planted}"
    for cell in record.cells:
        yield ""
        yield f"{cell.cell}: {cell.metric} under {cell.policy}, twice"
        yield from _cell(cell)
    yield ""
    yield f"{'passed' if record.passed else 'FAILED'}"


def _cell(cell: Calibrated) -> Iterator[str]:
    found = cell.relabelled
    for stream in cell.streams:
        yield from _stream(stream)
    yield (
        f"  relabelled {found.relabellings} times at {100 * found.nominal:g}%: {100 * found.rate:.2f}% verdicts"
        f" (at most {100 * found.limit:.2f}%)"
    )
    yield (
        f"  {found.campaigns} campaigns of {cell.streams[0].pairs} pairs at {100 * found.campaign_alpha:g}%:"
        f" {found.campaign_verdicts} verdicts (at most {found.most_verdicts})"
    )
    if cell.purchases:
        yield "  what a design buys (variance of the effect, blocked AAAA..BBBB = 1; larger is better)"
    for bought in cell.purchases:
        how = "measured" if bought.measured else "by relabelling"
        gains = f"{_times(bought.for_pairs):>9} a pair {_times(bought.for_time):>9} a second"
        yield f"    {bought.design:12} {gains}  {how}"
    for agreement in cell.agreements:
        yield f"  {agreement.kind} against sequential pairs, {agreement.arm}: {_agreement(agreement)}"
    yield f"  {'passed' if cell.passed else 'FAILED'}: {cell.reason}"


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
    span = f"{_percent(one.low)} to {_percent(one.high)}"
    return f"effects differ by {span}: {'believed' if one.agrees else 'NOT believed'}: {one.reason}"


def _percent(value: float | None) -> str:
    return _NOTHING if value is None else f"{100 * value:.3g}%"


def _plain(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:.2f}"


def _times(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:.3g}x"
