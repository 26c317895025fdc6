"""What to set for a program, by what all pages of results found: policy by policy its gain, its price, how it is set,
and where. Pure.

    by_program({"lpc-2024-mthp": data, ...})   # a section for the overview
    in_short(data)                             # the first sentences of a page

What stands for a policy on a load is below.

What each policy did to each load of a page, over all runs that judged it there. Pure.

    for one in policies_of(data):
        one.policy, one.load, one.stands, one.why     # thp, memcached, "set", ""

The runs are asked policy by policy: one that compared another policy says nothing of this one. None is left out for
what it found: a verdict that not all of them have says so; what is better in some alone is not simply to be set, also
where their e-values together say it, as that is said of at least one of them; runs that decided differently leave it
open.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from hugewise import workloads
from hugewise.model.answer import Trade
from hugewise.model.results import ArmSummary, CellResult, Comparison, Results
from hugewise.model.workload import Workload
from hugewise.report import numbers
from hugewise.report.answer_text import reach_of
from hugewise.report.cell_answers import (
    decided,
    exact_effect,
    memory_of,
    memory_words,
    of_arm,
    of_arm_decided,
    prices_of,
)
from hugewise.report.document import Block, Heading, Line, Section, table
from hugewise.report.numbers import NOTHING
from hugewise.report.sentences import arm_of, listed
from tools.results.data import PageData
from tools.results.runs import DECIDED, counted, together_typical, where_in_short

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


_SAID = (
    "What was found of each program that was measured, on the machine that its row names: another may find"
    " otherwise (hugewise advise asks yours). Set is what was better, at no price that was seen; yours to weigh what"
    " was better at one, or in some of the runs alone (those of too few pairs for any verdict do not count); leave"
    " what was worse or made no difference; open what the runs did not decide, or decided differently. Memory is the"
    " most that was used: a pool counts whole, used or not, and base pages as they were touched. The size of a pool"
    " is that of the load here: yours follows from the program's own memory. Settings of the whole host exclude one"
    " another: what is set for one program is set for all."
)
_HEAD = (
    *("load", "policy", "what to do", "found in its metric", "judged beside it", "memory", "how it is set"),
    *("runs", "where", "page"),
)
_DO: Mapping[Stands, str] = {
    "set": "Set it",
    "yours to weigh": "Yours to weigh",
    "leave": "Leave it",
    "open": "Open",
}
_OLDER = "; an older run: "
_SHOWN = 3
"""So many runs of a policy are shown with their effects."""


class _Placed(NamedTuple):
    """A policy on a load, and the page that has it."""

    page: str
    found: PolicyFound


def by_program(found: Mapping[str, PageData]) -> Iterator[Section]:
    """A section with all programs in a table, those first for which something is to be set, and the probe's own loads
    last; then each program with a row for each policy on each of its loads.

    Emulated guests count and measure no speed: their pages are named, and have no row. No section without pages.
    """
    if not found:
        return
    known = workloads.discover()
    every = [_Placed(page, one) for page, data in found.items() for one in policies_of(data)]
    every.sort(key=lambda one: (_of_the_probe(known.get(one.found.cell.workload)), STANDS.index(one.found.stands)))
    programs: dict[str, list[_Placed]] = {}
    for one in every:
        programs.setdefault(one.found.cell.workload, []).append(one)
    head = ("program", *STANDS)
    rows = [_in_a_row(_short_title(name, known.get(name)), several) for name, several in programs.items()]
    blocks: list[Block] = [Line(_SAID), *map(Line, _baselines(every)), table("the programs", head, rows, len(head))]
    for name, several in programs.items():
        of_each = table(f"{name}, policy by policy", _HEAD, map(_row, several), len(_HEAD), linked=(len(_HEAD) - 1,))
        blocks += [Heading(_title(name, known.get(name))), of_each]
    if emulated := [f"{name}.md" for name, data in found.items() if all(counted(run.results) for run in data.runs)]:
        blocks.append(Line(f"In emulated guests, where counts were measured and no speed: {listed(emulated)}."))
    yield Section("By program", tuple(blocks))


def in_short(data: PageData) -> Iterator[str]:
    """What the runs of a page say to set, at which price, what to leave, and what they leave open: a sentence each."""
    every = list(policies_of(data))
    several = len({one.baseline for one in every}) > 1
    for stands in STANDS:
        told = [_in_a_sentence(one, several) for one in every if one.stands == stands]
        if told:
            yield f"{stands[0].upper()}{stands[1:]}: {'; '.join(told)}."


def _of_the_probe(known: Workload | None) -> bool:
    """Whether it is no program of anybody's, but a load that the probe makes itself."""
    return hasattr(known, "subcommand")


def _title(name: str, known: Workload | None) -> str:
    """`pgbench: PostgreSQL under pgbench`: who looks for a program knows its name, and not that of a workload."""
    return name if known is None else f"{name}: {known.description.removeprefix(f'{name}: ')}"


def _short_title(name: str, known: Workload | None) -> str:
    """As much of it as names the program; the workload alone where that is its name."""
    if known is None or _of_the_probe(known):
        return name
    program = re.split(r"[,(:]", known.description)[0].strip()
    return name if program == name else f"{name}: {program}"


def _in_a_row(program: str, several: Sequence[_Placed]) -> tuple[str, ...]:
    """A program with its policies, each in the column of what is to be done with it, by as much of its load, baseline,
    metric and page as tells it from the others.
    """
    loads = len({one.found.load for one in several}) > 1
    baselines = len({one.found.baseline for one in several}) > 1
    alike = Counter(_names(one.found) for one in several)
    metrics = Counter((*_names(one.found), one.found.cell.metric.name) for one in several)
    columns: dict[Stands, list[str]] = {stands: [] for stands in STANDS}
    for page, one in several:
        words = [one.load] if loads else []
        same = metrics[*_names(one), one.cell.metric.name]
        words += [f"by {one.cell.metric.name}"] if alike[_names(one)] > same else []
        words += [f"in {page}"] if same > 1 else []
        told = "; ".join(filter(None, (", ".join(words), one.why)))
        name = f"{one.policy} against {one.baseline}" if baselines else one.policy
        columns[one.stands].append(f"{name} ({told})" if told else name)
    return (program, *("; ".join(columns[stands]) or NOTHING for stands in STANDS))


def _names(one: PolicyFound) -> tuple[str, str, str]:
    return one.load, one.policy, one.baseline


def _row(placed: _Placed) -> tuple[str, ...]:
    one = placed.found
    told = (
        f"{one.load} ({', '.join(one.cell.stand_ins)})" if one.cell.stand_ins else one.load,
        f"{one.policy} against {one.baseline}",
        ": ".join(filter(None, (_DO[one.stands], one.why or ("undecided" if one.stands == "open" else "")))),
        _by_each_run(one),
        of_arm(one.cell, one.policy) or NOTHING,
        _memory(one),
        _how(one),
        _runs(one),
        _where(one),
        f"{placed.page}.md",
    )
    return tuple(text.replace("`", "") for text in told)


def _by_each_run(one: PolicyFound) -> str:
    """The effect by each run; of a setting, how much of the memory got its pages; why there is no verdict."""
    told = [_OLDER.join(exact_effect(run.cell, run.comparison) for run in one.runs[:_SHOWN])]
    if len(one.runs) > _SHOWN:
        told.append(f"and by {len(one.runs) - _SHOWN} more, on the page")
    newest = one.runs[0].comparison
    if one.verdict == "none" and newest.reason:
        told.append(newest.reason.rstrip("."))
    arm = arm_of(one.cell, one.policy)
    share = "" if arm is None or arm.judged != "setting" else numbers.share(arm.delivered_share)
    if share not in {"", "100%"}:
        told.append(f"judged as a setting, of whose pages {share} were delivered")
    return "; ".join(told)


def _memory(one: PolicyFound) -> str:
    """By each run that is shown and knows it."""
    told = []
    for run in one.runs[:_SHOWN]:
        arm, base = arm_of(run.cell, one.policy), arm_of(run.cell, one.baseline)
        after = memory_of(arm)
        if arm is not None and after is not None:
            told.append(memory_words(after, memory_of(base), arm.pool_bytes))
    return _OLDER.join(dict.fromkeys(told)) or NOTHING


def _how(one: PolicyFound) -> str:
    """Of what may be set: the commands, and whom that reaches."""
    if one.stands not in {"set", "yours to weigh"}:
        return NOTHING
    for arm in (arm_of(run.cell, one.policy) for run in one.runs):
        if arm is not None and arm.deployment is not None:
            reached = (f"{told[0].upper()}{told[1:]}" for told in reach_of(arm))
            return ". ".join(filter(None, (_commands(arm), *reached))) or NOTHING
    return NOTHING


def _commands(arm: ArmSummary) -> str:
    """What is typed, without the program itself; empty where it is not known."""
    lines = () if arm.deployment is None else arm.deployment.commands()
    return "; ".join(line for line in lines if not line.startswith("exec "))


def _runs(one: PolicyFound) -> str:
    """`better in 1 of 2 runs, undecided in 1; together better`, of those that judged this policy."""
    many, counts = len(one.runs), one.verdicts
    counts["undecided"] -= one.too_few
    counts["too few pairs for a verdict"] = one.too_few
    (first, count), *others = ((verdict, count) for verdict, count in counts.most_common() if count)
    told = f"{_verdict(first)} in {count} of {many} run{'' if many == 1 else 's'}"
    told = ", ".join([told, *(f"{_verdict(verdict)} in {count}" for verdict, count in others)])
    return f"{told}; together {one.together}" if one.together else told


def _verdict(verdict: str) -> str:
    return {"none": "no verdict", "equivalent": "no difference"}.get(verdict, verdict)


def _where(one: PolicyFound) -> str:
    """The machine of the newest run, and those of others."""
    own, *others = dict.fromkeys(where_in_short(run.results) for run in one.runs)
    return "; older runs ".join([own, ", ".join(others)]) if others else own


def _baselines(every: Sequence[_Placed]) -> Iterator[str]:
    """What the policies were compared with, and how that is set."""
    found: dict[tuple[str, str], list[str]] = {}
    for page, one in every:
        base = arm_of(one.cell, one.baseline)
        if base is not None:
            of = f"{one.cell.workload} ({page}.md)"
            found.setdefault((base.arm, _commands(base) or base.treatment), []).append(of)
    for (name, how), programs in found.items():
        yield f"Compared with {name}, of {listed(sorted({*programs}))}, which is: {how}."


def _in_a_sentence(one: PolicyFound, baselines: bool) -> str:
    """`hugetlb-1g on select-only, tps +16% (+4% to +32%), 11 pairs at 99% (better for 27% more memory)`: of what is not
    open with the effect by the run that shows it.
    """
    against, run = f" against {one.baseline}" if baselines else "", one.stood
    older = "" if run is one.runs[0] else " by an older run"
    effect = "" if one.stands == "open" else f", {exact_effect(run.cell, run.comparison)}{older}"
    return f"{one.policy}{against} on {one.load}{effect}{f' ({one.why})' if one.why else ''}"
