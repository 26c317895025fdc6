"""`hugewise calibrate`: A/A streams on this host, in every design that it can have, and what they show.

Every stream is a run like any other (results/calibration/runs/...): the same conductor, coin and proofs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from hugewise.analysis import calibration
from hugewise.analysis.calibration import Agreement, Relabelled, Stream
from hugewise.errors import HugewiseError, UserError
from hugewise.host.local_host import LocalHost
from hugewise.host.lock import HostLock
from hugewise.model import trial
from hugewise.model.design import Kind
from hugewise.model.host import Host
from hugewise.model.metric import Metric
from hugewise.plan.arms import Arm
from hugewise.plan.plan import Cell, Plan
from hugewise.session import feasibility, progress, session
from hugewise.stats.method import Contrast
from hugewise.stats.pairs import Pairs
from hugewise.store.records import Run
from hugewise.study.load import parse
from hugewise.study.study import Study
from hugewise.study.tables import PolicyUse
from hugewise.study.workload import cell_of

if TYPE_CHECKING:
    from hugewise.guests.resources import GuestResources


FOLDER = "calibration"
_LABELS = ("label-a", "label-b")
_FEWEST = 12

# Default study: a loop of about 100 ms in the first cache, under the present settings.
STUDY = """
format = 1
name = "host"
policies = ["as-is", { name = "again", from = "as-is", environment = { HUGEWISE_AGAIN = "1" } }]

[[workload]]
name = "spin"
metric = "loop_cpu_s"
timeout = "60s"
"""


class _Values(NamedTuple):
    """Values of one comparison's pairs: both sides, all values in their order in time, seconds for a pair."""

    first: list[float]
    second: list[float]
    in_time: list[float]
    seconds: float


class _Pairing(NamedTuple):
    """The run that is one stream, and whose pairs are in it."""

    run: Run
    arm: str
    baseline: str


class CalibratedMetric(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one metric of a cell, `policy` under both labels, and whether they pass, with the reason."""

    cell: str
    metric: str
    policy: str
    streams: tuple[Stream, ...]
    relabelled: Relabelled
    agreements: tuple[Agreement, ...]
    passed: bool
    reason: str


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """A calibration of this host.

    planted  the share by which one label's work was larger
    folder   the folder of all calibration runs
    runs     the folder of each run of this calibration
    """

    host: str
    planted: float
    folder: Path
    runs: tuple[Path, ...]
    metrics: tuple[CalibratedMetric, ...]

    @property
    def passed(self) -> bool:
        """True if every metric passed."""
        return all(metric.passed for metric in self.metrics)


@dataclass
class _Measured:
    """All streams of a cell: of the baseline under both labels by design, and of every arm beside it by design.

    design   the one that would give the verdicts
    """

    design: Kind
    streams: dict[Kind, _Pairing]
    arms: list[tuple[Arm, Mapping[Kind, _Pairing]]] = field(default_factory=list)


def calibrate(
    study: Study | None,
    results: Path,
    *,
    pairs: int = 60,
    planted: float = 0.0,
    seed: bytes | None = None,
    listener: progress.Listener = lambda _: None,
    anyway: bool = False,
    command: Sequence[str] = (),
) -> Calibration:
    """Measure A/A streams of every cell of `study` (or of a loop in the first cache); return what they show of each
    metric that is judged.

    The baseline's policy stands under both labels. `planted` (a share) makes the second label's work larger by as much:
    really, where the workload is `spin`; by its measured values where it is another. `command`: the command line that
    asked, which the runs keep. Raises UserError, HugewiseError.
    """
    if pairs < _FEWEST:
        raise UserError(f"{pairs} pairs are too few to calibrate with", hint=f"take {_FEWEST} or more")
    asked = study or parse(STUDY, "the built-in calibration")
    seed = seed or trial.new_seed()
    guests = feasibility.provide(asked, lambda text: listener(progress.Message(text)))
    folder = results / FOLDER / "runs"
    session.must_be_trusted(results)
    lock = session.host_lock(listener, anyway=anyway)
    bench = _Bench(asked, folder, pairs, planted, seed, listener, LocalHost(), guests, lock, tuple(command))
    with lock:  # no other run between two streams
        metrics = tuple(one for cell in bench.plan(asked).cells for one in _calibrated(bench, cell))
    if not metrics:
        raise UserError(f"nothing of {asked.name} can run here", hint="see: hugewise doctor")
    return Calibration(host=bench.host.name, planted=planted, folder=folder, runs=tuple(bench.runs), metrics=metrics)


@dataclass
class _Bench:
    study: Study
    folder: Path
    pairs: int
    planted: float
    seed: bytes
    listener: progress.Listener
    host: Host
    guests: GuestResources | None
    lock: HostLock
    command: tuple[str, ...] = ()
    runs: list[Path] = field(default_factory=list)

    def plan(self, study: Study) -> Plan:
        """Plan the study as the calibrated study runs."""
        return feasibility.make_plan(study, self.host, self.guests)

    def run(self, study: Study) -> Run:
        """Run one stream, with a seed of its own that follows from the calibration's."""
        seed = bytes(a ^ b for a, b in zip(self.seed, len(self.runs).to_bytes(16), strict=True))
        folder = session.run(
            study,
            self.folder,
            seed=seed,
            listener=self.listener,
            calibrating=True,
            lock=self.lock,
            command=self.command,
        )
        self.runs.append(folder.path)
        return folder.read()


def _calibrated(bench: _Bench, cell: Cell) -> Iterator[CalibratedMetric]:
    study = bench.study
    # The design that verdicts would use: the study's own, or the one that a study may choose by itself.
    design: Kind = "sequential" if study.design.kind == "sequential" else "interleaved"
    first = _aa(bench, cell, "sequential")
    if first is None or _values(first, cell.metric) is None:
        raise HugewiseError(
            f"{cell.id}: no pairs under {cell.baseline}: {cell.metric.name} was absent, or the attempts failed",
            hint=f"see the attempts in {bench.runs[-1]}",
        )
    measured = _Measured(design, {"sequential": first})
    if study.guest is None and (bench.planted == 0 or design == "interleaved"):
        found = _aa(bench, cell, "interleaved")
        if found is not None:
            measured.streams["interleaved"] = found
    if design == "interleaved" and bench.planted == 0:
        measured.arms.extend(_beside_the_baseline(bench, cell))
    for metric in (cell.metric, *cell.also):
        if _values(first, metric) is None:
            bench.listener(progress.Message(f"{cell.id}: {metric.name} has too few values to be calibrated"))
        else:
            yield _of_metric(bench, cell, metric, measured)


def _of_metric(bench: _Bench, cell: Cell, metric: Metric, measured: _Measured) -> CalibratedMetric:
    really = cell.workload.name == "spin"
    factor = 1.0 if really else 1 + bench.planted
    values = {kind: found for kind, one in measured.streams.items() if (found := _values(one, metric)) is not None}
    streams = [
        calibration.stream(kind, one.first, [value * factor for value in one.second], one.in_time, one.seconds)
        for kind, one in values.items()
    ]
    judged = next((each for each in streams if each.kind == measured.design == "interleaved"), streams[0])
    relabelled = calibration.relabelled(judged.differences, int.from_bytes(bench.seed[:8]))
    passed, reason = _judge(judged, relabelled, bench.planted)
    return CalibratedMetric(
        cell=cell.id,
        metric=metric.name,
        policy=cell.baseline,
        streams=tuple(streams),
        relabelled=relabelled,
        agreements=tuple(_agreements(metric, measured)),
        passed=passed,
        reason=reason,
    )


def _judge(stream: Stream, relabelled: Relabelled, planted: float) -> tuple[bool, str]:
    if relabelled.rate > relabelled.limit:
        return False, f"{100 * relabelled.rate:.2g}% of relabelled streams end in a verdict at 5%"
    if relabelled.campaign_verdicts > relabelled.most_verdicts:
        return False, f"{relabelled.campaign_verdicts} of 100 relabelled campaigns end in a verdict at 20%"
    if planted == 0:
        if stream.verdict:
            return False, "the same under both labels was called different"
        return True, "the same under both labels is not called different, nor is it after relabelling too often"
    if stream.verdict != 1:
        return False, f"the planted effect of {100 * planted:g}% was not found in {stream.pairs} pairs"
    return True, f"the planted effect of {100 * planted:g}% was found"


def _aa(bench: _Bench, cell: Cell, kind: Kind) -> _Pairing | None:
    use = next(each for each in bench.study.policies if each.name == cell.baseline)
    more: Mapping[str, Any] = {}
    if bench.planted and cell.workload.name == "spin":
        iterations = cell.values["iterations"]
        assert isinstance(iterations, int)
        more = {"iterations": round(iterations * (1 + bench.planted))}
    first, second = (
        msgspec.structs.replace(
            use,
            name=label,
            source=use.registered,
            # Labels of equal length: the size of the environment moves the stack.
            environment={**use.environment, "HUGEWISE_LABEL": label},
            judged="backing",
        )
        for label in _LABELS
    )
    second = msgspec.structs.replace(second, parameters={**use.parameters, **more})
    return _stream(bench, cell, first, second, kind)


def _beside_the_baseline(bench: _Bench, cell: Cell) -> Iterator[tuple[Arm, Mapping[Kind, _Pairing]]]:
    uses = {use.name: use for use in bench.study.policies}
    kinds: tuple[Kind, Kind] = ("sequential", "interleaved")
    for arm in cell.arms:
        if arm.name != cell.baseline:
            made = {kind: _stream(bench, cell, uses[cell.baseline], uses[arm.name], kind) for kind in kinds}
            yield arm, {kind: one for kind, one in made.items() if one is not None}


def _agreements(metric: Metric, measured: _Measured) -> Iterator[Agreement]:
    for arm, streams in measured.arms:
        found = {
            kind: calibration.stream(kind, *values)
            for kind, one in streams.items()
            if (values := _values(one, metric)) is not None
        }
        if len(found) == 2:
            yield calibration.agreement(arm.name, found["sequential"], found["interleaved"])


def _stream(bench: _Bench, cell: Cell, baseline: PolicyUse, arm: PolicyUse, kind: Kind) -> _Pairing | None:
    study = bench.study
    use = cell_of([use.called for use in study.workload], cell.id)
    assert use is not None
    ways: dict[str, Any] = {"memory_age": (cell.memory_age,)}  # a factor of the study has the cell's own level
    if study.guest is not None:
        ways["concurrency"] = ("together" if cell.together else "alone",)
    study = msgspec.structs.replace(
        study,
        policies=(baseline, arm),
        baseline=baseline.name,
        method="fixed-n",
        end_points=(),
        budget=msgspec.structs.replace(study.budget, blocks=bench.pairs, time=None, width=None),
        design=msgspec.structs.replace(study.design, kind=kind),
        workload=(msgspec.structs.replace(study.workload[use], policies=None, parameters=dict(cell.values), **ways),),
        cells=(),
        whole=None if study.guest is None else study.whole or study,  # all streams in one image
        file="",
    )
    if not bench.plan(study).cells:
        return None
    return _Pairing(bench.run(study), arm.name, baseline.name)


def _values(measured: _Pairing, metric: Metric) -> _Values | None:
    """Return the pairs of a stream on one metric; None where there are too few."""
    run, cell = measured.run, measured.run.opened.cells[0].id
    pairs, in_time, seconds = (
        Pairs(Contrast(cell, measured.arm, measured.baseline, metric, proof_demanded=False)),
        [],
        [],
    )
    for block in run.blocks:
        taken = pairs.take(block)
        if not taken or any(None in (pair.arm, pair.baseline) for pair in taken):
            continue
        counted = sorted((a for a in block.attempts if a.state == "accepted"), key=lambda a: (a.started, a.order))
        in_time += [value for a in counted if (value := a.metrics.get(metric.name)) is not None]
        seconds.append(max(a.ended for a in counted) - min(a.started for a in counted))
    whole = [(one.baseline, one.arm) for one in pairs.everything if one.arm is not None and one.baseline is not None]
    if len(whole) < _FEWEST // 2:
        return None
    return _Values([first for first, _ in whole], [second for _, second in whole], in_time, fmean(seconds))
