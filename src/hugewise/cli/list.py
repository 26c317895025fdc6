"""Plain listings for the terminal: the plan of a dry run, and what there is to choose from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rich.table import Table

import hugewise
from hugewise import policies, published, workloads
from hugewise.console import TextConsole
from hugewise.errors import StudyError
from hugewise.host.local_host import LocalHost
from hugewise.model.design import ESTIMANDS
from hugewise.model.host import ClientHost
from hugewise.model.metric import COMMON
from hugewise.model.pages import PageSizes
from hugewise.model.policy import mechanism as mechanism_of
from hugewise.model.trial import draw_order, labels, new_seed
from hugewise.plan.plan import Plan
from hugewise.quantity import format_duration
from hugewise.study import load
from hugewise.study.study import Study

_BESIDE = 40  # columns of a dry run's table beside the cell's name


def show_plan(study: Study, client: ClientHost | None, seed: bytes | None, results: Path) -> None:
    """Print cells, arms, budget and time, what is left out, why the budget decides nothing, and one example order under
    a seed that no run uses. `results` is the folder of earlier runs. Raises UserError.
    """
    from hugewise.analysis import budget, earlier  # noqa: PLC0415  (numpy, which listings do without)

    plan = hugewise.make_plan(study, client=client)
    console = TextConsole()
    table = _table("cell", "metric", "arms (baseline first)")
    table.columns[0].no_wrap = True  # names for --only stay in one piece, which sets the least width
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
    for line in _time(study, plan, results):
        console.print(line, soft_wrap=True)
    for line in plan.first:
        console.print(f"first: {line}", soft_wrap=True)
    if (why := budget.too_small(study, plan.cells, results)) is not None:
        console.print(why, soft_wrap=True)
    example = seed or new_seed()
    note = "shown only; no run uses it" if seed is None else "shown only; a run uses it if --seed gives it again"
    console.print(f"\nexample orders under the seed {example.hex()} ({note}):", soft_wrap=True)
    for number, cell in enumerate(plan.cells, 1):
        order = draw_order(example, number, labels([arm.name for arm in cell.arms], cell.copies), cell=cell.id)
        console.print(f"  block {number} ({cell.id}): {', '.join(trial.arm for trial in order)}", soft_wrap=True)


def _budget(study: Study, comparisons: int | None) -> str:
    """Return how much a run measures, and how many comparisons share its error rate; None: nothing is claimed."""
    most = "" if study.method == "fixed-n" else "at most "
    time = "" if study.budget.time is None else f", at most {format_duration(study.budget.time)} in all"
    if comparisons is None:
        claim = "claims nothing"
    else:
        sure = f"{study.confidence * 100:.10g}%"
        claim = f"one comparison at {sure}" if comparisons == 1 else f"{comparisons} comparisons, together at {sure}"
    return f"budget: {most}{study.budget.blocks} pairs of each comparison{time}; {claim} ({study.method})"


def _time(study: Study, plan: Plan, results: Path) -> Iterator[str]:
    """Yield how long a run takes, by earlier runs or by the declared parts; where neither tells, and the study has no
    time budget, the number of its attempts.
    """
    from hugewise.analysis import budget  # noqa: PLC0415

    blocks, limit = study.budget.blocks, study.budget.time
    found = budget.measured(study, plan.cells, results) or budget.declared(plan.cells)
    if found.seconds:
        whole = format_duration(found.seconds * blocks)
        yield f"time: {whole} for {blocks} pairs of each comparison"
        yield f"  a round of all cells {found.source}"
    elif limit is None:
        attempts = blocks * sum(len(cell.arms) for cell in plan.cells)
        boots = "" if study.guest is None else ", most with a boot of a guest"
        yield f"time: not known before a first run (--blocks 2): {attempts:,} attempts{boots}"


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
            found = load.load(path)
            yield _shown(path), found.question
        except StudyError as error:
            yield _shown(path), f"cannot be read: {error.message}"


def _published() -> Iterator[Sequence[str]]:
    for name in published.names():
        found = published.load(name)
        yield name, f"{found.source.title} ({found.source.publisher}, {found.source.date})"


def _folders() -> Iterable[Path]:
    """Return the folders of studies: below the folder of the call, and those that come with hugewise."""
    return (Path("studies"), load.folder())


def _shown(path: Path) -> str:
    """Return the name by which `hugewise run` takes the study here."""
    if path.is_relative_to(Path.cwd()):
        return str(path.relative_to(Path.cwd()))
    return path.stem if path.parent == load.folder().resolve() else str(path)
