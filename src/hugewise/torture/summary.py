"""What a torture found, counted: how many, what was not as promised, and how often that can be at most."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TextIO

import msgspec
from rich import box
from rich.table import Table

from hugewise.console import TextConsole
from hugewise.torture.findings import Ordeal, TortureRecord

__all__ = ["KindSummary", "TortureReport", "at_most", "show", "summarise"]

_MOST = 110


class KindSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The cases of one kind. `at_most`: 95% upper bound of the share of cases that break a promise."""

    kind: str
    what: str
    planned: int
    done: int
    kills: int
    recovery_kills: int
    turned: int
    differing: int
    resumed: int
    kept: int
    lost: int
    repeated: int
    broken: int
    at_most: float | None


class TortureReport(msgspec.Struct, frozen=True, kw_only=True):
    """The whole: `report.json` of a torture's folder."""

    begun: TortureRecord
    kinds: tuple[KindSummary, ...]
    total: KindSummary
    faults: Mapping[str, list[str]]
    seconds: float
    written: float

    @property
    def passed(self) -> bool:
        """Whether every promise held in every case that was done; not where none of them can be done here."""
        return not self.faults and self.total.planned > 0


def at_most(failures: int, n: int) -> float | None:
    """The exact one-sided 95% upper bound of a rate with so many failures of n (Clopper and Pearson, 1934); with none
    it is 1 - 0.05^(1/n), the rule of three. None where nothing was tried.
    """
    if n == 0:
        return None
    if failures == 0:
        return float(1 - 0.05 ** (1 / n))
    if failures == n:
        return 1.0
    from scipy.stats import beta  # noqa: PLC0415  (a second that only a broken promise costs)

    return float(beta.ppf(0.95, failures + 1, n - failures))


def summarise(
    begun: TortureRecord, planned: Mapping[str, int], what: Mapping[str, str], done: Mapping[str, Ordeal]
) -> TortureReport:
    """Count what was found, by kind and over all."""
    kinds = []
    planned = {kind: number for kind, number in planned.items() if number and kind not in begun.left_out}
    for kind, number in planned.items():
        kinds.append(_counted(kind, what[kind], number, [one for one in done.values() if one.kind == kind]))
    wanted = [one for one in done.values() if one.kind in planned]
    return TortureReport(
        begun=begun,
        kinds=tuple(kinds),
        total=_counted("all", "", sum(planned.values()), wanted),
        faults={one.name: one.faults for one in wanted if one.faults},
        seconds=sum(one.seconds for one in wanted),
        written=time.time(),
    )


def _counted(kind: str, what: str, planned: int, cases: Iterable[Ordeal]) -> KindSummary:
    cases = list(cases)
    return KindSummary(
        kind=kind,
        what=what,
        planned=planned,
        done=len(cases),
        kills=sum(one.kills for one in cases),
        recovery_kills=sum(one.recovery_kills for one in cases),
        turned=sum(one.turned > 0 for one in cases),
        differing=sum(bool(one.differences) for one in cases),
        resumed=sum(one.resumed for one in cases),
        kept=sum(one.kept for one in cases),
        lost=sum(len(one.lost) for one in cases),
        repeated=sum(len(one.repeated) for one in cases),
        broken=sum(bool(one.broken) for one in cases),
        at_most=at_most(sum(bool(one.faults) for one in cases), len(cases)),
    )


def show(report: TortureReport, file: TextIO | None = None) -> None:
    """Print it: a table with a row a kind, and below it each promise that was broken."""
    console = TextConsole(file)
    width = min(console.width, _MOST)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), width=width)
    heads = ("cases", "kills", "turned", "differ", "resumed", "lost", "twice", "broken", "at most")
    table.add_column("", no_wrap=True)
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for one in (*report.kinds, report.total):
        table.add_row(one.kind, *_cells(one))
    console.print(table, width=width)
    for line in _lines(report):
        console.print(line, soft_wrap=True)


def _cells(one: KindSummary) -> Iterator[str]:
    yield str(one.done) if one.done == one.planned else f"{one.done}/{one.planned}"
    yield f"{one.kills}+{one.recovery_kills}" if one.recovery_kills else str(one.kills)
    for number in (one.turned, one.differing, one.resumed):
        yield str(number)
    yield f"{one.lost} of {one.kept}"
    yield str(one.repeated)
    yield str(one.broken)
    yield "-" if one.at_most is None else f"{100 * one.at_most:.2g}%"


def _lines(report: TortureReport) -> Iterator[str]:
    begun = report.begun
    for one in report.kinds:
        yield f"{one.kind}: {one.what}"
    yield "kills: of runs + of what put the machine back; turned: cases that left something to be put back"
    yield "differ: cases in which it was not; lost: of the accepted attempts that runs had when they were resumed"
    yield "at most: 95% upper bound of the share of cases that break a promise (exact, by Clopper and Pearson)"
    for kind, reason in begun.left_out.items():
        yield f"not tortured here: {kind}: {reason}"
    for name, faults in report.faults.items():
        yield f"{name}: {faults[0]}" + (f" (and {len(faults) - 1} more)" if len(faults) > 1 else "")
        yield f"  again: hugewise torture --seed {begun.seed} --case {name}"
    outcome = f"{len(report.faults)} cases with a BROKEN promise" if report.faults else "every promise held"
    if report.total.done == 0:
        outcome = "NOTHING was tested"
    yield (
        f"{report.total.done} of {report.total.planned} cases in {report.seconds / 60:.0f} min, {outcome}"
        f" (seed {begun.seed}, {begun.machine}, {begun.cpus} CPUs, Linux {begun.kernel}, hugewise {begun.version})"
    )
