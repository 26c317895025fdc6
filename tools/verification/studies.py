"""Whole studies, from records to the words that a report prints, and a fault planted in each gate on the way.

A gate is what keeps a claim from being made too often: the split of alpha, Holm, e-Holm, the level of an end point, of
`analyze` and of a fleet, the estimate that must lie in its interval, a calibration that must not overlook a difference.
Each case here says what must hardly ever be claimed. Its fault takes the gate away, in the code that users run, for the
time of the check: the claim must then be seen too often, on the same streams.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest import mock

import msgspec
import numpy as np
from numpy.random import Generator

from hugewise.analysis import analysis, calibration, combining, pooling
from hugewise.external import analyze
from hugewise.external.compare import AnalysisPlan, ExternalComparison
from hugewise.external.reader import Ask
from hugewise.model.pages import PageTarget
from hugewise.model.policy import Deployment, Treatment
from hugewise.model.results import DECIDED, DIRECTIONS, Comparison
from hugewise.model.trial import Block, DeliveryThreshold
from hugewise.stats import evidence, family
from hugewise.stats import pooling as over_hosts
from hugewise.stats.end_points import EndPoint
from hugewise.stats.method import Numbers
from hugewise.stats.sequential import PairTests
from hugewise.store.records import ArmRecord, CellRecord, Opened, Run, Stamp
from hugewise.study.load import parse
from hugewise.study.study import Study
from tools.verification.block_streams import CONTRAST, pair

Fault = Callable[[], AbstractContextManager[Any]]

CELLS = 12
"""Comparisons of a study of many."""
_LOOSE = 0.1
"""Error rate of studies in which much has to be claimed wrongly once a gate is gone."""
_HOSTS = 10
_POOL = 150  # hosts that fleets are drawn from, and as many with their labels swapped


class Edge(NamedTuple):
    """What must hardly ever be said; `wrong` plays a stream, and `fault` is the change under which it is said often.

    alpha  chance of the claim that is allowed; of: share of the streams that is played
    """

    what: str
    wrong: Callable[[Generator], bool]
    fault: Fault
    planted: str
    alpha: float = 0.01
    of: float = 1.0


def study_of(
    method: str = "sequential", blocks: int = 24, more: str = "", budget: str = "", alpha: float = 0.01
) -> Study:
    """Return a study of a policy."""
    return parse(
        f'format = 1\nname = "again"\npolicies = ["base", "thp"]\nmethod = "{method}"\n'
        f"confidence = {1 - alpha}\n{more}\n"
        f'[budget]\nblocks = {blocks}\n{budget}\n[[workload]]\nname = "chase"\n',
        "again.toml",
    )


def _arm(name: str) -> ArmRecord:
    treatment = Treatment(policy=name, mechanism="system", target=PageTarget("thp", 2 << 20))
    return ArmRecord(name, treatment, 0, Deployment(note=""))


CELL = CellRecord(
    id=CONTRAST.cell,
    workload="chase",
    values={},
    metric=CONTRAST.metric,
    baseline=CONTRAST.baseline,
    delivery=DeliveryThreshold(0.95, 0.01),
    arms=(_arm(CONTRAST.baseline), _arm(CONTRAST.arm)),
)


def run_of(
    study: Study, blocks: Sequence[Block], cells: Sequence[CellRecord] = (CELL,), *, name: str = "r", **opened: Any
) -> Run:
    """Return the run of a study as it would be read from its folder."""
    first: dict[str, Any] = {"t": 1000.0, "digest": "", "settings": {}, "versions": {}, "host": {"machine": "m"}}
    record = Opened(
        run=name,
        study=study.name,
        seed_hash=name,
        mechanism="system",
        boot_id="b",
        cells=tuple(cells),
        left_out=(),
        coins=True,
        **(first | opened),
    )
    attempts = tuple(attempt for block in blocks for attempt in block.attempts)
    return Run(Path(name), (record,), study, attempts, tuple(blocks), None, None, Stamp(0, 0, 0))


def many(study: Study, arms: Numbers, baselines: Numbers, name: str = "r") -> Run:
    """Return the run of as many cells as there are rows of log-times, each a comparison of its own."""
    cells = [msgspec.structs.replace(CELL, id=f"cell {number}") for number in range(len(arms))]
    blocks = [
        _in_cell(pair(len(cells) * at + place + 1, float(arms[place, at]), float(baselines[place, at])), cell.id)
        for at in range(arms.shape[1])
        for place, cell in enumerate(cells)
    ]
    return run_of(study, blocks, cells, name=name)


def _in_cell(block: Block, cell: str) -> Block:
    attempts = tuple(msgspec.structs.replace(attempt, cell=cell) for attempt in block.attempts)
    return msgspec.structs.replace(block, cell=cell, attempts=attempts)


def comparisons(run: Run) -> list[Comparison]:
    """Return everything that the report of this run judges."""
    return [one for cell in analysis.results_of(run).cells for one in cell.judged]


def _any_direction(run: Run) -> bool:
    return any(one.verdict in DIRECTIONS for one in comparisons(run))


def _nulls(random: Generator, pairs: int, cells: int = CELLS) -> tuple[Numbers, Numbers]:
    arms, baselines = 0.02 * random.standard_normal((2, cells, pairs))
    return arms, baselines


def _no_effect(study: Study) -> Callable[[Generator], bool]:
    return lambda random: _any_direction(many(study, *_nulls(random, study.budget.blocks)))


def _stalling_alike(random: Generator) -> bool:
    """Both sides stall in a third of their runs."""
    study = study_of(blocks=60, more='end_points = ["slow"]')
    arms, baselines = _nulls(random, 60, 1)
    stalls = math.log(3) * (random.random((2, 1, 60)) < 1 / 3)
    return any(
        one.verdict in DIRECTIONS
        for one in comparisons(many(study, arms + stalls[0], baselines + stalls[1]))
        if one.end_point
    )


def _two_runs(random: Generator) -> bool:
    study = study_of(blocks=20)
    runs = [many(study, *_nulls(random, 20, 2 * CELLS), name=name) for name in ("first", "second")]
    found = combining.combined([combining.carried(run, analysis.results_of(run)) for run in runs], 1 - 3 * _LOOSE)
    return any(one.verdict in DIRECTIONS for one in found.comparisons)


def _file(random: Generator) -> bool:
    """A CSV of 60 randomised pairs."""
    times, arms_first = np.exp(0.02 * random.standard_normal((60, 2))), random.random(60) < 0.5
    rows = [
        f"{('thp', 'base')[place ^ int(not first)]},{block},{2 * block + place},{times[block, place]}"
        for block, first in enumerate(arms_first.tolist())
        for place in (0, 1)
    ]
    with TemporaryDirectory() as folder:
        path = Path(folder, "times.csv")
        path.write_text("arm,block,order,seconds\n" + "\n".join(rows) + "\n", encoding="utf-8")
        plan = AnalysisPlan(confidence=1 - _LOOSE / 2, randomised=True, budget=60, baseline="base")
        ask = Ask(value="seconds", arm_column="arm", block="block", order="order", better="lower")
        found = analyze.analyze([path], ask=ask, plan=plan)
    return any(one.verdict in DIRECTIONS for metric in found.metrics for one in metric.comparisons)


def _hosts(random: Generator) -> list[pooling.HostSummary]:
    """Hosts whose effects are normal around none, and the same hosts with their labels swapped."""
    study = study_of("fixed-n", 8)
    summaries = []
    for number, effect in enumerate((0.02 * random.standard_normal(_POOL)).tolist()):
        arms, baselines = 0.01 * random.standard_normal((2, 8)) + np.array([[effect], [0.0]])
        for name, (over, under) in {"": (arms, baselines), "'": (baselines, arms)}.items():
            blocks = [pair(at, *sides) for at, sides in enumerate(zip(over.tolist(), under.tolist(), strict=True), 1)]
            summaries.append(pooling.summary_of(run_of(study, blocks, name=f"{number}{name}")))
    return summaries


class _Fleet:
    """Fleets of one pool of hosts, which is made once."""

    def __init__(self) -> None:
        self._hosts: list[pooling.HostSummary] = []

    def __call__(self, random: Generator) -> bool:
        self._hosts = self._hosts or _hosts(np.random.default_rng(1))
        drawn = random.choice(len(self._hosts), _HOSTS, replace=False).tolist()
        measured = [pooling.MeasuredHost(str(place), "class", self._hosts[place]) for place in drawn]
        (found,) = pooling.compared(measured, {"class": 1.0}, 1 - _LOOSE, 0.005)
        return found.strata[0].verdict in DIRECTIONS


def _effect_turns(random: Generator) -> bool:
    """1% faster at first and 1% slower then, in a run that waits for a narrow interval: a verdict with an estimate that
    is not in its interval.
    """
    study = study_of(blocks=90, budget='width = "0.1%"')
    arms, baselines = 0.1 * _nulls(random, 90, 1)[0], 0.1 * _nulls(random, 90, 1)[1]
    (one,) = comparisons(many(study, arms + np.where(np.arange(90) < 30, -0.01, 0.01), baselines))
    return astray(one)


def astray(one: Comparison | ExternalComparison) -> bool:
    """Return whether there is a verdict with an estimate outside its interval."""
    inside = one.ratio is not None and (one.low or 0.0) <= one.ratio <= (one.high or math.inf)
    return one.verdict in DECIDED and not inside


def _calibrated(random: Generator) -> bool:
    """Interleaved pairs read an effect that is 1.5% more than in sequence: the interval of the difference has 0."""
    own = 0.002 * random.standard_normal((4, 60))
    host = 0.01 * random.standard_normal(60)  # both sides of an interleaved pair have it
    base, arm = np.exp(own[:2]).tolist()
    sequential = calibration.stream("sequential", base, arm, (), 1.0)
    base, arm = np.exp(own[2:] + host + [[0.0], [0.015]]).tolist()
    found = calibration.agreement("arm", sequential, calibration.stream("interleaved", base, arm, (), 1.0))
    assert found.low is not None and found.high is not None
    return found.low <= 0 <= found.high


def _whole_alpha() -> AbstractContextManager[Any]:
    split: Callable[..., Iterator[Any]] = family._sequential

    def all_of_it(study: Study, *given: Any) -> Iterator[Any]:
        return split(study, *given[:-1], 1 - study.confidence)

    return mock.patch.object(family, "_sequential", all_of_it)


def _no_holm() -> AbstractContextManager[Any]:
    return mock.patch.object(family, "holm", lambda ps, alpha: ([p <= alpha for p in ps], [alpha] * len(ps)))


def _no_e_holm() -> AbstractContextManager[Any]:
    return mock.patch.object(evidence, "adjusted", list)


def _times(owner: object, name: str, place: int, factor: float) -> Fault:
    """Return the fault that a function's argument at this place (an alpha) is so many times too large."""

    def planted() -> AbstractContextManager[Any]:
        real = getattr(owner, name)

        def looser(*given: Any) -> Any:
            return real(*given[:place], factor * given[place], *given[place + 1 :])

        return mock.patch.object(owner, name, looser)

    return planted


class _LooseEndPoint(EndPoint):
    def __init__(self, *given: Any, alpha: float, **more: Any) -> None:
        super().__init__(*given, alpha=20 * alpha, **more)


def _loose_end_points() -> AbstractContextManager[Any]:
    return mock.patch.object(family, "EndPoint", _LooseEndPoint)


def no_fit() -> AbstractContextManager[Any]:
    return mock.patch.object(PairTests, "fits", lambda *_: True)


def _overlooked() -> AbstractContextManager[Any]:
    ends = calibration._welch

    def blind(*given: Any) -> tuple[float, float]:
        low, high = ends(*given)
        return (low - high) / 2, (high - low) / 2

    return mock.patch.object(calibration, "_welch", blind)


EDGES: tuple[Edge, ...] = (
    Edge(
        f"a study of {CELLS} comparisons, no effect",
        _no_effect(study_of(blocks=20, alpha=_LOOSE)),
        _whole_alpha,
        "no split of alpha",
        _LOOSE,
        of=0.2,
    ),
    Edge(
        f"fixed-n, {CELLS} comparisons, no effect",
        _no_effect(study_of("fixed-n", 14, alpha=_LOOSE)),
        _no_holm,
        "no Holm",
        _LOOSE,
        of=0.2,
    ),
    Edge("end point slow: both stall in a third of runs", _stalling_alike, _loose_end_points, "at 20 alpha"),
    Edge(
        f"combine, {2 * CELLS} comparisons of two runs, no effect",
        _two_runs,
        _no_e_holm,
        "no e-Holm",
        3 * _LOOSE,
        of=0.2,
    ),
    Edge("analyze, 60 pairs, no effect", _file, _times(analyze, "compare", 4, 10), "at 10 alpha", _LOOSE / 2, of=0.4),
    Edge(
        f"fleet of {_HOSTS} hosts, effects around none",
        _Fleet(),
        _times(over_hosts, "held", 2, 5),
        "at 5 alpha",
        _LOOSE,
        of=0.4,
    ),
    Edge("an effect that turns: estimate outside its interval", _effect_turns, no_fit, "no look at it", of=0.1),
    Edge("calibration: turns read an effect 1.5% larger", _calibrated, _overlooked, "difference ignored", of=0.4),
)
