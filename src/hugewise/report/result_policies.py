"""What each policy did to each load of a page, over all runs that judged it there. Pure.

    for one in policies_of(data):
        one.policy, one.load, one.stands, one.why     # thp, memcached, "set", ""

The runs are asked policy by policy: one that compared another policy says nothing of this one. None is left out for
what it found: a verdict that not all of them have says so; what is better in some alone is not simply to be set, also
where their e-values together say it, as that is said of at least one of them; runs that decided differently leave it
open.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from hugewise.model.answer import Trade
from hugewise.model.results import CellResult, Comparison, Results
from hugewise.report import numbers
from hugewise.report.cell_answers import decided, of_arm_decided, prices_of
from hugewise.report.result_data import PageData
from hugewise.report.result_runs import DECIDED, counted
from hugewise.report.result_together import together_typical
from hugewise.report.sentences import arm_of

Stands = Literal["set", "yours to weigh", "leave", "open"]
STANDS: tuple[Stands, ...] = ("set", "yours to weigh", "leave", "open")

_Key = tuple[tuple[str, str, str, str], object]
"""A cell, an arm, its baseline and the metric by their names; and what has to be the same."""
_PARTS = ("end_points", "declared")
"""What is judged of a cell beside its metric: the fields of `CellResult`."""


class RunFound(NamedTuple):
    """A run that judged a policy on a load; its cell has the comparisons of that policy alone."""

    results: Results
    cell: CellResult
    comparison: Comparison

    @property
    def too_few(self) -> bool:
        """Whether its pairs are so few that they have no interval: whatever it found, it could decide nothing.

        What has none for another reason (failures on both sides, every pair the same) is a result as any other.
        """
        one = self.comparison
        failures = one.failures_arm + one.failures_baseline + one.unstarted_arm + one.unstarted_baseline
        bounded = one.low is not None or one.high is not None
        return one.verdict == "undecided" and not (bounded or failures or one.constant)


class PolicyFound(NamedTuple):
    """A policy on a load, by all runs that judged it in the cell's metric against one baseline.

    runs      the newest first
    cell      of the newest; beside the metric it has what any of the runs judged: where several did, what was worse
              before what was better, then what is newest
    together  what their e-values decide: better or worse; empty where they do not, or there is but one run
    """

    runs: tuple[RunFound, ...]
    cell: CellResult
    together: str

    @property
    def policy(self) -> str:
        """Its name in the study: the arm."""
        return self.runs[0].comparison.arm

    @property
    def baseline(self) -> str:
        """What it was compared with."""
        return self.runs[0].comparison.baseline

    @property
    def load(self) -> str:
        """The cell by its name."""
        return self.cell.cell

    @property
    def verdicts(self) -> Counter[str]:
        """How many runs have each, in the cell's metric."""
        return Counter(run.comparison.verdict for run in self.runs)

    @property
    def verdict(self) -> str:
        """That of every run that decided, else of all together, else of the newest; `differing` where those differ."""
        found = {verdict for verdict in self.verdicts if verdict in DECIDED}
        if len(found) > 1 or (self.together and {*found, self.together} == {"better", "worse"}):
            return "differing"
        return next(iter(found), self.together or self.runs[0].comparison.verdict)

    @property
    def too_few(self) -> int:
        """Runs that had too few pairs to decide anything."""
        return sum(run.too_few for run in self.runs)

    @property
    def sure(self) -> bool:
        """Whether every run that could have a verdict has this one."""
        return self.verdicts[self.verdict] == len(self.runs) - self.too_few

    @property
    def stands(self) -> Stands:
        """What is to be done with it."""
        match self.verdict:
            case "better":
                return "set" if self.sure and not self.prices else "yours to weigh"
            case "equivalent":
                return "yours to weigh" if self._better_beside else "leave"
            case "worse":
                return "leave"
        return "open"

    @property
    def prices(self) -> Mapping[Trade, str]:
        """What it costs in any of the runs, the gravest last: more memory, what is worse beside it, failures."""
        own = self.stood
        found = dict(prices_of(replace(self.cell, arms=own.cell.arms), own.comparison))
        for run in self.runs:
            for trade, words in prices_of(run.cell, run.comparison).items():
                found.setdefault(trade, f"{words} in another run")
        order: tuple[Trade, ...] = ("memory", "worse beside", "failures")
        return {trade: found[trade] for trade in order if trade in found}

    @property
    def stood(self) -> RunFound:
        """The run that shows the verdict: the newest that has it, else the newest of enough pairs for any."""
        having = [run for run in self.runs if run.comparison.verdict == self.verdict]
        return next(iter((*having, *(run for run in self.runs if not run.too_few), *self.runs)))

    @property
    def _better_beside(self) -> bool:
        return bool(decided(self.cell, self.policy, "better")) and not self.prices.keys() - {"memory"}

    @property
    def why(self) -> str:
        """Why that is to be done, in words; empty where every run says that it is better, and it has no price."""
        match self.verdict:
            case "better":
                prices = "".join(self.prices.values())
                comma = "," if self._by and prices else ""
                return f"better{self._by}{comma}{prices}" if self._by or prices else ""
            case "worse":
                return "; ".join(filter(None, (f"worse{self._by}", self.beside("better"))))
            case "equivalent":
                same = f"no difference above {numbers.percent(self.runs[0].results.margin)}{self._by}"
                memory = self.prices.get("memory", "") if self._better_beside else ""
                return f"{'; '.join(filter(None, (same, self.beside('worse', 'better'))))}{memory}"
        words = {"differing": "the runs decided differently", "none": "no verdict"}.get(self.verdict, "")
        return "; ".join(filter(None, (words, self.beside("worse", "better"))))

    @property
    def _by(self) -> str:
        """By which of the runs, where not by every one."""
        count, many = self.verdicts[self.verdict], len(self.runs) - self.too_few
        if count and count == many:
            return ""
        if count == 0:
            return " by the runs together, which do not tell by how much"
        return f" in {count} of {many} runs{', and by them together' if self.together == self.verdict else ''}"

    def beside(self, *verdicts: str) -> str:
        """`worse in p99_us, better in fork_us and cow_bytes`: what was decided so beside the metric."""
        return of_arm_decided(self.cell, self.policy, *verdicts)


def policies_of(data: PageData) -> Iterator[PolicyFound]:
    """Every policy on every load that a run of the page compared. Runs in emulated guests count, and measure no speed:
    they are left out.

    Runs of a cell with other parameters, and of a policy with another treatment, are not of the same.
    """
    together = {(one.cell, one.arm, one.baseline, one.metric): one.verdict for one in together_typical(data)}
    found: dict[_Key, list[RunFound]] = {}
    for results in (one.results for one in data.runs if not counted(one.results)):
        for cell in results.cells:
            for one in cell.comparisons:
                alone = RunFound(results, _alone(cell, one), one)
                found.setdefault(_key(cell, one), []).append(alone)
    for (names, _), several in found.items():
        verdict = together.get(names, "") if len(several) > 1 else ""
        cell = replace(several[0].cell, **_beside([run.cell for run in several]))
        yield PolicyFound(tuple(several), cell, verdict if verdict in {"better", "worse"} else "")


def _key(cell: CellResult, one: Comparison) -> _Key:
    arms = (arm_of(cell, name) for name in (one.arm, one.baseline))
    treatments = tuple("" if arm is None else arm.treatment for arm in arms)
    same = (cell.workload, msgspec.json.encode(cell.parameters, order="deterministic"), cell.memory_age, treatments)
    return (cell.cell, one.arm, one.baseline, one.metric), same


def _alone(cell: CellResult, one: Comparison) -> CellResult:
    """The cell with the comparisons of one policy against one baseline."""
    of = {
        part: tuple(each for each in getattr(cell, part) if (each.arm, each.baseline) == (one.arm, one.baseline))
        for part in _PARTS
    }
    return replace(cell, comparisons=(one,), causes=(), **of)


def _beside(cells: Sequence[CellResult]) -> dict[str, object]:
    """What the runs judged beside the metric, the newest first: of each metric and end point one."""
    order = ("worse", "better", "equivalent")
    told: dict[str, object] = {"also": tuple({one.name: one for cell in reversed(cells) for one in cell.also}.values())}
    for part in _PARTS:
        found: dict[tuple[str, str], list[Comparison]] = {}
        for one in (one for cell in cells for one in getattr(cell, part)):
            found.setdefault((one.metric, one.estimand), []).append(one)
        told[part] = tuple(
            next((one for verdict in order for one in every if one.verdict == verdict), every[0])
            for every in found.values()
        )
    return told
