"""Findings, a file a case, so that a killed torture goes on with the cases that are left. `TortureReport` counts
them, with the broken promises and a bound on their frequency.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TextIO, TypeVar

import msgspec
from rich import box
from rich.table import Table

from hugewise.console import TextConsole
from hugewise.errors import UserError
from hugewise.files import own, storing, write_whole

T = TypeVar("T")


class Draws:
    """Random draws of one case, each by its name: the same for the same seed, whatever is drawn besides."""

    def __init__(self, seed: int, case: str) -> None:
        self._of = f"{seed}:{case}"

    def share(self, what: str) -> float:
        """Uniform from 0 to 1."""
        digest = hashlib.sha256(f"{self._of}:{what}".encode()).digest()
        return int.from_bytes(digest[:6], "big") / (1 << 48)

    def between(self, what: str, low: float, high: float) -> float:
        return low + (high - low) * self.share(what)

    def one_of(self, what: str, of: Sequence[T]) -> T:
        """Return one of the items, each as likely."""
        return of[int(self.share(what) * len(of))]


class FaultCase(msgspec.Struct, kw_only=True):
    """One case and what became of it.

    name         its kind and number: with the seed, all that was drawn of it
    did          what was done, in words
    kills        runs that were killed, and of the recoveries after them
    turned       what the machine had that it had not before, when the run had ended and before anything was put back
    differences  what was still not as before when it had been put back: none, as promised
    resumed      whether the run was resumed
    kept         accepted attempts that it had before
    lost, repeated   of these: none, as promised
    broken       other promises that did not hold
    seconds      that it took
    """

    name: str
    did: str = ""
    kills: int = 0
    recovery_kills: int = 0
    turned: int = 0
    differences: list[str] = []
    resumed: bool = False
    kept: int = 0
    lost: list[str] = []
    repeated: list[str] = []
    broken: list[str] = []
    seconds: float = 0.0
    ended: float = 0.0

    @property
    def kind(self) -> str:
        return self.name.rpartition("-")[0]

    @property
    def faults(self) -> list[str]:
        """Every promise that it broke, in words."""
        return [*self.differences, *self.lost, *self.repeated, *self.broken]


class TortureRecord(msgspec.Struct, kw_only=True):
    """The torture that a folder holds. `lives`: seconds that an untouched run of each kind takes here."""

    seed: int
    machine: str
    kernel: str
    version: str
    cpus: int
    root: bool
    lives: dict[str, float] = {}
    left_out: dict[str, str] = {}


class Findings:
    """The folder of a torture: `torture.json`, `cases/NAME.json`, and `broken/NAME/` with all that such a case left."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        here = TortureRecord(
            seed=seed,
            machine=platform.node(),
            kernel=platform.release(),
            version=metadata.version("hugewise"),
            cpus=os.cpu_count() or 1,
            root=os.geteuid() == 0,
        )
        with storing(str(folder), hint="name another folder with --results"):
            own(folder, f"--results {folder.parent}")
            (folder / "cases").mkdir(parents=True, exist_ok=True)
            (folder / "broken").mkdir(exist_ok=True)
        self._path = folder / "torture.json"
        self.begun = here
        if self._path.exists():
            self.begun = msgspec.json.decode(self._path.read_bytes(), type=TortureRecord)
            self._check(here)

    def _check(self, here: TortureRecord) -> None:
        for name in ("seed", "machine", "kernel", "version", "root"):
            was, now = getattr(self.begun, name), getattr(here, name)
            if was != now:
                raise UserError(
                    f"{self.folder} has a torture of another {name} ({was}; here {now})",
                    hint="name another folder with --results, or another --seed",
                )

    def note(self) -> None:
        """Keep what is known of the whole."""
        _write(self._path, msgspec.json.format(msgspec.json.encode(self.begun), indent=1))

    def report(self, counted: object) -> None:
        """Keep what was counted."""
        _write(self.folder / "report.json", msgspec.json.format(msgspec.json.encode(counted), indent=1))

    def all(self) -> dict[str, FaultCase]:
        """Return the cases that are done, by name."""
        paths = sorted((self.folder / "cases").glob("[!.]*.json"))
        return {path.stem: msgspec.json.decode(path.read_bytes(), type=FaultCase) for path in paths}

    def keep(self, finding: FaultCase, work: Path) -> None:
        """Store a finished case; its folder `work` stays only where a promise was broken."""
        if finding.faults:
            kept = self.folder / "broken" / finding.name
            shutil.rmtree(kept, ignore_errors=True)
            work.rename(kept)
        _write(
            self.folder / "cases" / f"{finding.name}.json", msgspec.json.format(msgspec.json.encode(finding), indent=1)
        )


def _write(path: Path, content: bytes) -> None:
    with storing(str(path), hint="free space, and call it again: it goes on with what is left"):
        write_whole(path, content)


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
        """True if every promise held in every case that was done; False where no case can be done here."""
        return not self.faults and self.total.planned > 0


def at_most(failures: int, n: int) -> float | None:
    """Return the exact one-sided 95% upper bound of a rate with so many failures of n (Clopper and Pearson, 1934); with
    none it is 1 - 0.05^(1/n), the rule of three. None where nothing was tried.
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
    begun: TortureRecord, planned: Mapping[str, int], what: Mapping[str, str], done: Mapping[str, FaultCase]
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


def _counted(kind: str, what: str, planned: int, cases: Iterable[FaultCase]) -> KindSummary:
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
        yield f"  again: python -m tools.torture --seed {begun.seed} --case {name}"
    outcome = f"{len(report.faults)} cases with a BROKEN promise" if report.faults else "every promise held"
    if report.total.done == 0:
        outcome = "NOTHING was tested"
    yield (
        f"{report.total.done} of {report.total.planned} cases in {report.seconds / 60:.0f} min, {outcome}"
        f" (seed {begun.seed}, {begun.machine}, {begun.cpus} CPUs, Linux {begun.kernel}, hugewise {begun.version})"
    )
