"""Settings for a program, by the findings of all pages: policy by policy its gain, its price, how it is set, and where.

    by_program({"lpc-2024-mthp": data, ...})   # a section for the overview
    in_short(data)                             # the first sentences of a page

The runs are asked policy by policy: one that compared another policy says nothing of this one. None is left out for
what it found: a verdict that not all of them have says so; what is better in some alone is not simply to be set, also
where their e-values together say it, as that is said of at least one of them; runs that decided differently leave it
open.

A setting stands under Set by e-values: the product over all runs of the question on the host (the same workload,
parameters, treatments and metric, whatever the page and the design), runs that were broken off among them. It reaches
2/(1 - confidence), as the two-sided test of a single run does, so that a run begun anew until it says "better" does not
suffice; and among all rows of these pages it is rejected by e-BH at `ERROR`, where a row that cannot be set has an
e-value of 0: what a filter leaves of the rejected ones has no such rate. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from hugewise import workloads
from hugewise.analysis.earlier import Judged, evidence_of
from hugewise.model.cause import GROWTH, POOL_GROWTH, Trade
from hugewise.model.results import DECIDED, DIRECTIONS, ArmSummary, CellResult, Comparison, Results
from hugewise.model.workload import Workload
from hugewise.report import numbers
from hugewise.report.cell_answers import (
    decided,
    exact_effect,
    memory_of,
    memory_ratio,
    memory_words,
    of_arm,
    prices_of,
)
from hugewise.report.document import Block, Line, Section, table
from hugewise.report.numbers import NOTHING
from hugewise.report.reasons import in_words
from hugewise.report.sections.answer import reach_of
from hugewise.report.sentences import arm_of, listed
from hugewise.stats import evidence
from tools.results.data import PageData
from tools.results.runs import counted, together_typical, where_in_short

Stands = Literal["set", "yours to weigh", "leave", "open"]
STANDS: tuple[Stands, ...] = ("set", "yours to weigh", "leave", "open")

_Key = tuple[tuple[str, str, str, str], object]
"""A cell, an arm, its baseline and the metric by their names; and what has to be the same."""
ERROR = 0.05
"""Share of what is said to be set that may be wrong on average, over all rows."""
_PARTS = ("end_points", "declared")
"""Parts of a cell that are judged beside its metric: the fields of `CellResult`."""


class RunFound(NamedTuple):
    """A run that judged a policy on a load; its cell has the comparisons of that policy alone."""

    results: Results
    cell: CellResult
    comparison: Comparison

    @property
    def too_few(self) -> bool:
        """True if the pairs are so few that they have no interval: such a run could decide nothing.

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
    e_value   that it is better, over all runs of the question on the host of `stood`; `evident`: it suffices, among all
              rows too
    unknown   earlier runs of the question that no page has, and whose e-values are not known; without pilots and
              screenings, which choose what is judged
    """

    runs: tuple[RunFound, ...]
    cell: CellResult
    together: str
    e_value: float = 1.0
    evident: bool = False
    unknown: tuple[str, ...] = ()

    @property
    def policy(self) -> str:
        """Name of the policy in the study: the arm."""
        return self.runs[0].comparison.arm

    @property
    def baseline(self) -> str:
        """Arm that it was compared with."""
        return self.runs[0].comparison.baseline

    @property
    def named(self) -> str:
        """The policy, with its baseline where that is not the usual one."""
        return self.policy if self.baseline == _USUAL else f"{self.policy} against {self.baseline}"

    @property
    def load(self) -> str:
        """The cell by its name."""
        return self.cell.cell

    @property
    def verdicts(self) -> Counter[str]:
        """Number of runs with each verdict, in the cell's metric."""
        return Counter(run.comparison.verdict for run in self.runs)

    @property
    def verdict(self) -> str:
        """Verdict of every run that decided, else of all together, else of the newest; `differing` where those
        differ.
        """
        found = {verdict for verdict in self.verdicts if verdict in DECIDED}
        if len(found) > 1 or (self.together and {*found, self.together} == {*DIRECTIONS}):
            return "differing"
        return next(iter(found), self.together or self.runs[0].comparison.verdict)

    @property
    def too_few(self) -> int:
        """Runs that had too few pairs to decide anything."""
        return sum(run.too_few for run in self.runs)

    @property
    def sure(self) -> bool:
        """True if every run that could have a verdict has this one."""
        return self.verdicts[self.verdict] == len(self.runs) - self.too_few

    @property
    def stands(self) -> Stands:
        """Action on the policy."""
        match self.verdict:
            case "better":
                return "set" if self.can_be_set and self.evident else "yours to weigh"
            case "equivalent":
                return "yours to weigh" if self._better_beside else "leave"
            case "worse":
                return "leave"
        return "open"

    @property
    def can_be_set(self) -> bool:
        """True if nothing is against setting it: evidence is what it takes."""
        return self.verdict == "better" and self.sure and not self.prices and not self.unknown

    @property
    def prices(self) -> Mapping[Trade, str]:
        """Prices in any of the runs, the gravest last: more memory, what is worse beside it, failures."""
        own = self.stood
        found = dict(prices_of(replace(self.cell, arms=own.cell.arms), own.comparison))
        known = memory_ratio(own.cell, own.comparison) is not None
        for run in self.runs:
            for trade, words in prices_of(run.cell, run.comparison).items():
                if not (trade == "memory" and known):
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
        """Reason for the action, in words; empty where every run finds it better, and it has no price."""
        match self.verdict:
            case "better":
                prices = "".join(self.prices.values())
                comma = "," if self._by and prices.startswith(" ") else ""
                told = f"{self._by}{comma}{prices}{self._unproven}"
                return f"better{told}" if told else ""
            case "worse":
                return "; ".join(filter(None, (f"worse{self._by}", self.beside("better"))))
            case "equivalent":
                same = f"no difference above {numbers.percent(self.runs[0].results.margin)}{self._by}"
                memory = self.prices.get("memory", "") if self._better_beside else ""
                return f"{'; '.join(filter(None, (same, self.beside('worse', 'better'))))}{memory}"
        words = {"differing": "the runs decided differently", "none": "no verdict"}.get(self.verdict, "")
        return "; ".join(filter(None, (words, self.beside("worse", "better"))))

    @property
    def _unproven(self) -> str:
        if self.unknown:
            many = len(self.unknown)
            return f", and {'an earlier run of it is' if many == 1 else f'{many} earlier runs of it are'} not published"
        return "" if self.evident else ", on too little evidence among these rows"

    @property
    def _by(self) -> str:
        """Runs behind the verdict, where not all."""
        count, many = self.verdicts[self.verdict], len(self.runs) - self.too_few
        if count and count == many:
            return ""
        if count == 0:
            return " by the runs together, which do not tell by how much"
        return f" in {count} of {many} runs{', and by them together' if self.together == self.verdict else ''}"

    def beside(self, *verdicts: str) -> str:
        """`worse in p99_us, better in fork_us and cow_bytes`: what was decided so beside the metric."""
        return ", ".join(of_arm(self.cell, self.policy, verdicts))


class _Placed(NamedTuple):
    """A policy on a load, and the page that has it."""

    page: str
    found: PolicyFound


def policies_of(pages: Mapping[str, PageData]) -> list[_Placed]:
    """Return every policy on every load that a run of these pages compared, with the evidence of all runs of its
    question. Runs in emulated guests count, and measure no speed: they are left out.

    Runs of a cell with other parameters, and of a policy with another treatment, are not of the same.
    """
    asked: dict[_Question, dict[str, Judged]] = {}
    for results in (run.results for data in pages.values() for run in data.runs):
        for cell in results.cells:
            for one in cell.comparisons:
                asked.setdefault(_question(results, cell, one), {})[results.run] = Judged(results, cell, one)
    rows = []
    for page, data in pages.items():
        for policy in _of_page(data):
            stood = policy.stood
            judged = tuple(asked[_question(stood.results, stood.cell, stood.comparison)].values())
            every = evidence_of(judged)
            better = every.larger if judged[0].higher_is_better else every.smaller
            rows.append(_Placed(page, policy._replace(e_value=better, unknown=every.unknown)))
    values = [row.found.e_value for row in rows]
    may_be_set = [row.found.can_be_set and _by_itself(row.found) for row in rows]
    rejected = evidence.e_bh(values, ERROR)
    to_set = evidence.e_bh([value if may else 0.0 for value, may in zip(values, may_be_set, strict=True)], ERROR)
    return [
        row._replace(
            found=row.found._replace(evident=_by_itself(row.found) and (of if row.found.can_be_set else among))
        )
        for row, among, of in zip(rows, rejected, to_set, strict=True)
    ]


def _by_itself(policy: PolicyFound) -> bool:
    return policy.e_value >= 2 / (1 - policy.stood.results.confidence)


_Question = tuple[object, ...]


def _question(results: Results, cell: CellResult, comparison: Comparison) -> _Question:
    host = results.host.get("machine") or results.host.get("name")
    _, same = _key(cell, comparison)
    return host, results.mechanism, results.guests is None, same, comparison.metric


def _of_page(data: PageData) -> Iterator[PolicyFound]:
    """Yield the policies of a page. Where the parameters of a load or the treatment of an arm have changed, the newest
    stand: an earlier form of the study asked another question.
    """
    together = {(one.cell, one.arm, one.baseline, one.metric): one.verdict for one in together_typical(data)}
    found: dict[_Key, list[RunFound]] = {}
    for results in (run.results for run in data.runs if not counted(run.results)):
        for cell in results.cells:
            for one in cell.comparisons:
                alone = RunFound(results, _alone(cell, one), one)
                found.setdefault(_key(cell, one), []).append(alone)
    newest: dict[tuple[str, str, str, str], _Key] = {}
    for key in found:  # the newest run comes first
        newest.setdefault(key[0], key)
    for names, key in newest.items():
        several = found[key]
        verdict = together.get(names, "") if len(several) > 1 else ""
        cell = replace(several[0].cell, **_beside([run.cell for run in several]))
        yield PolicyFound(tuple(several), cell, verdict if verdict in DIRECTIONS else "")


def _key(cell: CellResult, comparison: Comparison) -> _Key:
    arms = (arm_of(cell, name) for name in (comparison.arm, comparison.baseline))
    treatments = tuple("" if arm is None else arm.treatment for arm in arms)
    same = (cell.workload, msgspec.json.encode(cell.parameters, order="deterministic"), cell.memory_age, treatments)
    return (cell.cell, comparison.arm, comparison.baseline, comparison.metric), same


def _alone(cell: CellResult, comparison: Comparison) -> CellResult:
    """Return the cell with the comparisons of one policy against one baseline."""
    of = {
        part: tuple(
            each for each in getattr(cell, part) if (each.arm, each.baseline) == (comparison.arm, comparison.baseline)
        )
        for part in _PARTS
    }
    return replace(cell, comparisons=(comparison,), causes=(), **of)


def _beside(cells: Sequence[CellResult]) -> dict[str, object]:
    """Return the results beside the metric, the newest first: one for each metric and end point."""
    order = ("worse", "better", "equivalent")
    told: dict[str, object] = {"also": tuple({one.name: one for cell in reversed(cells) for one in cell.also}.values())}
    for part in _PARTS:
        found: dict[tuple[str, str], list[Comparison]] = {}
        for one in (one for cell in cells for one in getattr(cell, part)):
            found.setdefault((one.metric, one.end_point), []).append(one)
        told[part] = tuple(
            next((one for verdict in order for one in every if one.verdict == verdict), every[0])
            for every in found.values()
        )
    return told


_SAID = (
    "The answers hold on the machine of the run: hugewise advise measures yours. Each"
    f" setting is compared with base pages (base) unless another is named. Set: the setting was better, took at most"
    f" {numbers.percent(GROWTH)} more memory ({numbers.percent(POOL_GROWTH)} with a pool), and nothing else that was"
    " judged was worse. Yours to weigh: the setting was better, but it has a price, or only some runs show it, or the"
    " evidence of all runs is too weak. Leave: the setting was worse or made no difference. Open: the runs did not"
    " decide, or decided differently."
)
_DETAILS = (
    "Memory is the most that was used: a pool counts whole, used or not, and base pages as they were touched. The size"
    " of a pool is that of the load here: yours follows from the program's own memory. Settings of the whole host"
    " exclude one another: a setting for one program is a setting for all."
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
_USUAL = "base"
"""Baseline that is not named: the lead of the programs says so."""
_MANY_TIMES = 1_000_000
_SHOWN = 3
"""Number of runs of a policy that are shown with their effects."""


def in_a_table(pages: Mapping[str, PageData]) -> Iterator[Section]:
    """Yield a section with all programs in a table, those first for which something is to be set, and the probe's own
    loads last. No section without pages.
    """
    if not pages:
        return
    known, programs = _programs(pages)
    head = ("program", *STANDS)
    rows = [_in_a_row(_title(name, known.get(name)), several) for name, several in programs.items()]
    every = [one for several in programs.values() for one in several]
    blocks: list[Block] = [Line(_SAID), Line(_rests_on(every)), table("the programs", head, rows, len(head))]
    if emulated := [f"{name}.md" for name, data in pages.items() if all(counted(run.results) for run in data.runs)]:
        blocks.append(Line(f"In emulated guests, where counts were measured and no speed: {listed(emulated)}."))
    yield Section("The programs", tuple(blocks))


def by_program(pages: Mapping[str, PageData]) -> Iterator[Section]:
    """Yield a section with the arms that others are compared with, and one of each program with a row for each policy
    on each of its loads.

    Emulated guests count and measure no speed: they have no row. No section without pages.
    """
    if not pages:
        return
    known, programs = _programs(pages)
    baselines = tuple(map(Line, _baselines([one for several in programs.values() for one in several])))
    yield Section("What policies are compared with", (Line(_DETAILS), *baselines))
    for name, several in programs.items():
        rows = table(f"{name}, policy by policy", _HEAD, map(_row, several), len(_HEAD), linked=(len(_HEAD) - 1,))
        yield Section(_title(name, known.get(name)), (rows,))


def _programs(pages: Mapping[str, PageData]) -> tuple[Mapping[str, Workload], dict[str, list[_Placed]]]:
    known = workloads.discover()
    every = policies_of(pages)
    every.sort(key=lambda one: (_of_the_probe(known.get(one.found.cell.workload)), STANDS.index(one.found.stands)))
    programs: dict[str, list[_Placed]] = {}
    for one in every:
        programs.setdefault(one.found.cell.workload, []).append(one)
    return known, programs


def in_short(data: PageData) -> Iterator[str]:
    """Yield what the runs of a page say to set, at which price, what to leave, and what they leave open: a sentence
    each.
    """
    rows = policies_of({"": data})
    every = [row.found for row in rows]
    for stands in STANDS:
        told = [_in_a_sentence(one) for one in every if one.stands == stands]
        if told:
            yield f"{stands[0].upper()}{stands[1:]}: {'; '.join(told)}."
    if any(one.verdict == "better" for one in every):
        yield _rests_on(rows)


def _rests_on(rows: Sequence[_Placed]) -> str:
    number = "1 row" if len(rows) == 1 else f"{len(rows)} rows"
    return (
        "A setting stands under Set only on strong evidence: the product of the e-values of all runs of its question on"
        f" its host, with those that were broken off. On average at most {numbers.percent(ERROR)} of the settings under"
        f" Set are wrong, over {number} (e-BH)."
    )


def _of_the_probe(known: Workload | None) -> bool:
    """Return whether it is a load that the probe makes itself, and no real program."""
    return hasattr(known, "subcommand")


def _title(name: str, known: Workload | None) -> str:
    """`pgbench: PostgreSQL under pgbench`: who looks for a program knows its name, and not that of a workload."""
    return name if known is None else f"{name}: {known.description.removeprefix(f'{name}: ')}"


def _in_a_row(program: str, several: Sequence[_Placed]) -> tuple[str, ...]:
    """Return a program with its policies, each in the column of what is to be done with it: as much of its load,
    baseline, metric and page as tells it from the others, and the change where it was decided.
    """
    loads = len({one.found.load for one in several}) > 1
    alike = Counter(_names(one.found) for one in several)
    metrics = Counter((*_names(one.found), one.found.cell.metric.name) for one in several)
    columns: dict[Stands, dict[str, list[str]]] = {stands: {} for stands in STANDS}
    for page, one in several:
        words = [one.load] if loads else []
        same = metrics[*_names(one), one.cell.metric.name]
        effect = _change(one.stood) if one.stands != "open" and one.stood.comparison.verdict == one.verdict else ""
        words += [f"by {one.cell.metric.name}"] if not effect and alike[_names(one)] > same else []
        words += [f"in {page}"] if same > 1 else []
        text = "; ".join(filter(None, (" ".join(words), effect, one.why)))
        columns[one.stands].setdefault(one.named, []).append(text)
    return (program, *("; ".join(_of_each(columns[stands], stands == "open")) or NOTHING for stands in STANDS))


def _of_each(policies: Mapping[str, Sequence[str]], together: bool) -> Iterator[str]:
    """Yield `thp (redis; ops_per_s +10.6%)` for each load of a policy; `together`: loads of which nothing more is said
    are one text.
    """
    for name, texts in policies.items():
        alone = [text for text in texts if ";" not in text] if together else []
        joined = [", ".join(alone)] if alone else []
        for text in (*joined, *(text for text in texts if text not in alone)):
            yield f"{name} ({text})" if text else name


def _change(run: RunFound) -> str:
    """`ops_per_s +10.6%`: to the digits of its interval."""
    one = run.comparison
    return f"{run.cell.metric.name} {numbers.point(one.ratio, one.low, one.high)}"


def _names(policy: PolicyFound) -> tuple[str, str, str]:
    return policy.load, policy.policy, policy.baseline


def _row(placed: _Placed) -> tuple[str, ...]:
    one = placed.found
    told = (
        f"{one.load} ({', '.join(one.cell.stand_ins)})" if one.cell.stand_ins else one.load,
        f"{one.policy} against {one.baseline}",
        ": ".join(filter(None, (_DO[one.stands], one.why or ("undecided" if one.stands == "open" else "")))),
        _by_each_run(one),
        ", ".join(of_arm(one.cell, one.policy, effects=True)) or NOTHING,
        _memory(one),
        _how(one),
        _runs(one),
        _where(one),
        f"{placed.page}.md",
    )
    return tuple(text.replace("`", "") for text in told)


def _by_each_run(policy: PolicyFound) -> str:
    """The effect by each run; of a setting, how much of the memory got its pages; why there is no verdict."""
    texts = [_OLDER.join(exact_effect(run.cell, run.comparison) for run in policy.runs[:_SHOWN])]
    if len(policy.runs) > _SHOWN:
        texts.append(f"and by {len(policy.runs) - _SHOWN} more, on the page")
    newest = policy.runs[0].comparison
    if policy.verdict == "none" and newest.reason:
        texts.append(in_words(newest.reason).rstrip("."))
    arm = arm_of(policy.cell, policy.policy)
    share = "" if arm is None or arm.judged != "setting" else numbers.share(arm.delivered_share)
    if share not in {"", "100%"}:
        texts.append(f"{share} of the memory got its pages")
    return "; ".join(texts)


def _memory(policy: PolicyFound) -> str:
    """Return the memory by each run that is shown and knows it."""
    told = []
    for run in policy.runs[:_SHOWN]:
        arm, base = arm_of(run.cell, policy.policy), arm_of(run.cell, policy.baseline)
        after = memory_of(arm)
        if arm is not None and after is not None:
            told.append(memory_words(after, memory_of(base), arm.pool_bytes))
    return _OLDER.join(dict.fromkeys(told)) or NOTHING


def _how(policy: PolicyFound) -> str:
    """Return, for a policy that may be set, the commands, and the processes that they affect."""
    if policy.stands not in {"set", "yours to weigh"}:
        return NOTHING
    for arm in (arm_of(run.cell, policy.policy) for run in policy.runs):
        if arm is not None and arm.deployment is not None:
            reached = (f"{told[0].upper()}{told[1:]}" for told in reach_of(arm))
            return ". ".join(filter(None, (_commands(arm), *reached))) or NOTHING
    return NOTHING


def _commands(arm: ArmSummary) -> str:
    """Return the commands without the program itself; empty where they are not known."""
    lines = () if arm.deployment is None else arm.deployment.commands()
    return "; ".join(line for line in lines if not line.startswith("exec "))


def _runs(policy: PolicyFound) -> str:
    """`better in 1 of 2 runs, undecided in 1; together better`, of those that judged this policy."""
    many, counts = len(policy.runs), policy.verdicts
    counts["undecided"] -= policy.too_few
    counts["too few pairs for a verdict"] = policy.too_few
    (first, count), *others = ((verdict, count) for verdict, count in counts.most_common() if count)
    text = f"{_verdict(first)} in {count} of {many} run{'' if many == 1 else 's'}"
    text = ", ".join([text, *(f"{_verdict(verdict)} in {count}" for verdict, count in others)])
    told = f"{text}; together {policy.together}" if policy.together else text
    value = numbers.times(policy.e_value) if policy.e_value < _MANY_TIMES else "over 1,000,000"
    return f"{told}; e-value {value}" if policy.verdict == "better" else told


def _verdict(verdict: str) -> str:
    return {"none": "no verdict", "equivalent": "no difference"}.get(verdict, verdict)


def _where(policy: PolicyFound) -> str:
    """Return the machine of the newest run, and those of others."""
    own, *others = dict.fromkeys(where_in_short(run.results) for run in policy.runs)
    return "; older runs ".join([own, ", ".join(others)]) if others else own


def _baselines(every: Sequence[_Placed]) -> Iterator[str]:
    """Yield the baselines of the policies, and how they are set."""
    found: dict[tuple[str, str], list[str]] = {}
    for page, one in every:
        base = arm_of(one.cell, one.baseline)
        if base is not None:
            of = f"{one.cell.workload} ({page}.md)"
            found.setdefault((base.arm, _commands(base) or base.treatment), []).append(of)
    for (name, how), programs in found.items():
        yield f"Compared with {name}, of {listed(sorted({*programs}))}, which is: {how}."


def _in_a_sentence(policy: PolicyFound) -> str:
    """`hugetlb-1g on select-only, tps +16% (+4% to +32%), 11 pairs at 99% (better for 27% more memory)`: of what is not
    open with the effect by the run that shows it.
    """
    run = policy.stood
    older = "" if run is policy.runs[0] else " by an older run"
    effect = "" if policy.stands == "open" else f", {exact_effect(run.cell, run.comparison)}{older}"
    return f"{policy.named} on {policy.load}{effect}{f' ({policy.why})' if policy.why else ''}"
