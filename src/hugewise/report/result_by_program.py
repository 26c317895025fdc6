"""What to set for a program, by what all pages of results found: policy by policy its gain, its price, how it is set,
and where. Pure.

    by_program({"lpc-2024-mthp": data, ...})   # a section for the overview
    in_short(data)                             # the first sentences of a page

What stands for a policy on a load is in `result_policies`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from hugewise import workloads
from hugewise.model.results import ArmSummary
from hugewise.model.workload import Workload
from hugewise.report import numbers
from hugewise.report.answer_text import reach_of
from hugewise.report.cell_answers import exact_effect, memory_of, memory_words, of_arm
from hugewise.report.document import Block, Heading, Line, Section, table
from hugewise.report.numbers import NOTHING
from hugewise.report.result_data import PageData
from hugewise.report.result_policies import STANDS, PolicyFound, Stands, policies_of
from hugewise.report.result_runs import counted, where_in_short
from hugewise.report.sentences import arm_of, listed

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
