"""A run's answer for readers who know no statistics: what to set, what it changes, what is still possible.

The exact words (levels, and which verdicts hold together) are those of `cell_answers`; a page has them one click below.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

from hugewise.model.answer import CellAnswer
from hugewise.model.deployment import DeployedFile
from hugewise.model.metric import Metric
from hugewise.model.results import ArmSummary, CellResult, Comparison, Results
from hugewise.report import numbers
from hugewise.report.also_judged import Also, also_judged, arms_of, decided, in_exact_words, in_short, of_each
from hugewise.report.cell_answers import answers, resting, selection, separately, unpriced
from hugewise.report.sentences import arm_of, better_direction, listed, size_of
from hugewise.visible import printable

__all__ = ["caveats", "details", "headline", "in_a_line", "reach", "reach_of", "terms"]


def headline(cell: CellResult, one: CellAnswer) -> str:
    """What to set and what that changes, of the only cell of a run."""
    rests, base = resting(cell), f"`{printable(one.baseline)}`"
    if one.state == "undecided":
        where = f" in {printable(cell.metric.name)}" if one.also else ""
        open_ = f"Undecided: whether {separately(one.open, 'or')} is better than {base}{where} cannot be told yet"
        known = in_short(cell, one.open[0]) if len(one.open) == 1 else ""
        return f"{open_}; it is {known}." if known else f"{open_}."
    if one.state in ("set", "weigh") and rests is not None:
        return f"{one.what}: {_gain(cell, one, rests)}."
    return f"{_without_effects(cell, one, one.text.removesuffix('.'))}."


def _without_effects(cell: CellResult, one: CellAnswer, text: str) -> str:
    """What an answer says of its cell, without the effects of what was declared beside the metric."""
    exact = in_exact_words(cell, one.ranked)
    return text.removesuffix(f"; {exact}") if exact else text


def _gain(cell: CellResult, one: CellAnswer, rests: Comparison) -> str:
    """What is won: in the cell's metric, or where that makes no difference in the first of what was declared beside."""
    if one.trade == "better beside":
        for also in decided(cell, rests.arm, "better"):
            if size_of(also.comparison) is not None:
                return _changed(also.name, also.comparison)
    return _changed(cell.metric.name, rests)


def details(cell: CellResult, one: CellAnswer) -> Iterator[str]:
    """Below it: how often both were measured, what that leaves room for, and what the metric is."""
    rests = resting(cell)
    if rests is None or one.state == "none":
        yield from beside(cell, one)
        return
    size = size_of(rests) if one.state == "undecided" else None
    best = f"; the best estimate is {size}" if size is not None else ""
    both = f"`{printable(rests.arm)}` and `{printable(rests.baseline)}`"
    of = f"{printable(cell.metric.name)}, " if one.trade == "better beside" else ""  # the gain is told of another
    yield f"{both} both ran once in each of {_blocks(rests)}, in random order: {of}{_left(rests)}{best}."
    yield from (f"{told[0].upper()}{told[1:]}." for told in (*reach(cell, one), *_without_price(cell)))
    arm = arm_of(cell, rests.arm)
    if arm is not None and arm.judged == "setting" and arm.delivered_share is not None:
        yield (
            f"`{printable(arm.arm)}` is judged as a setting, whatever pages come of it: "
            f"{numbers.share(arm.delivered_share)} of the memory that it is about was backed as it promises."
        )
    yield _is(cell.metric)
    yield from beside(cell, one)


def beside(cell: CellResult, one: CellAnswer) -> Iterator[str]:
    """What was declared to be judged beside the cell's metric, a line for each: of the best policy first, and what is
    decided. A metric is explained where it comes first.
    """
    order, explained = ("worse", "better", "equivalent", "undecided"), set[str]()
    arms = arms_of(cell, one.ranked)
    found = [also for also in also_judged(cell) if also.comparison.verdict in order]
    for also in sorted(found, key=lambda each: (arms.index(each.comparison.arm), order.index(each.comparison.verdict))):
        new = not also.end_point and also.name not in explained
        explained.add(also.name)
        yield f"Judged beside it: {_also(also)}{f' {_is(also.metric)}' if new else ''}"


def _also(also: Also) -> str:
    """`with thp, p99_us is 61% higher than with base, which is worse (...).`"""
    one, size = also.comparison, size_of(also.comparison)
    arm, base = f"`{printable(one.arm)}`", f"`{printable(one.baseline)}`"
    if size is None:
        ends = {"undecided": "cannot be told from that", "equivalent": "differs too little to matter from that"}
        return f"with {arm}, {also.name} {ends.get(one.verdict, f'is {one.verdict} than that')} with {base}."
    ends = {"undecided": "which cannot be told from no difference yet", "equivalent": "too little to matter"}
    said = ends.get(one.verdict, f"which is {one.verdict}")
    return f"with {arm}, {also.name} is {size} than with {base}, {said} ({_left(one)})."


def in_a_line(cell: CellResult, one: CellAnswer) -> str:
    """The effect on one of several cells, below what to set for them: in brackets what is possible, and blocks."""
    rests, known = resting(cell), of_each(cell, one.ranked)
    if rests is None or one.state in ("leave", "none"):
        return "; ".join(filter(None, (_without_effects(cell, one, one.found), known)))
    shown = f"{_changed(cell.metric.name, rests)} ({_left(rests)}; {_blocks(rests)})"
    if one.state == "undecided":
        shown = f"whether {separately(one.open, 'or')} is better cannot be told yet; `{printable(rests.arm)}`: {shown}"
    elif one.trade == "better beside":
        shown = f"{_gain(cell, one, rests)}; {shown}"
    return "; ".join((shown, *reach(cell, one), *_without_price(cell), *filter(None, (known,))))


def reach(cell: CellResult, one: CellAnswer) -> Iterator[str]:
    """Whom what is to be set reaches, and what the program needs for it."""
    arm = arm_of(cell, one.setting or "")
    if one.state in ("set", "weigh") and arm is not None:
        yield from reach_of(arm)


def reach_of(arm: ArmSummary) -> Iterator[str]:
    """Whom the arm's setting reaches, and what the program needs for it, in a sentence; none where it is not known."""
    files = () if arm.deployment is None else arm.deployment.files
    now = [file for file in files if file.scope == "host-now"]
    pools = [file for file in now if file.sets and all("/hugepages/" in path for path in file.sets)]
    servers = [file for file in files if file.scope == "server"]
    commands = () if arm.deployment is None else arm.deployment.commands()
    exports = [line.removeprefix("export ") for line in commands if line.startswith("export ")]
    told = []
    if len(now) > len(pools):
        told.append("it is set for every program of the host")
    elif now:
        told.append("a pool is reserved on the host, which programs take that ask for it")
    if servers:
        told.append(f"the server is told by {listed([_lines(file) for file in servers])}")
    if exports:
        told.append(f"the program is started with {listed([f'`{printable(each)}`' for each in exports])}")
    if told:
        yield ", and ".join(told)


def _lines(file: DeployedFile) -> str:
    """`disable-thp no`: what a server's own configuration gets."""
    said = [line.strip() for line in file.content.splitlines()]
    return ", ".join(f"`{printable(line)}`" for line in said if line and line[0] not in "#;[")


def _without_price(cell: CellResult) -> Iterator[str]:
    for one in unpriced(cell)[:1]:
        found = f"{_changed(cell.metric.name, one)} ({_left(one)})"
        yield f"without that price, `{printable(one.arm)}` is better too: {found}"


def terms(results: Results) -> Iterator[str]:
    """What stands in the answers of several cells: cells and blocks, and each metric."""
    yield "A cell is a workload with its parameters. In each of its blocks every policy ran once, in random order."
    judged = [cell for cell in results.cells if resting(cell) is not None]
    told = [metric for cell in judged for metric in (cell.metric, *(one.metric for one in also_judged(cell)))]
    metrics = {metric.name: metric for metric in told}
    if metrics:
        yield " ".join(map(_is, metrics.values()))


def _is(metric: Metric) -> str:
    """`tps is in transactions/s, higher is better: transactions a second.`"""
    told = f": {metric.description.rstrip('.')}" if metric.description else ""
    return printable(f"{metric.name} is in {metric.unit}, {better_direction(metric)}{told}.")


def caveats(results: Results) -> Iterator[str]:
    """What a reader has to know of all answers together."""
    found = answers(results)
    if any(one.state != "none" for one in found):
        wrong = numbers.percent(1 - results.confidence)
        yield (
            f"The chance that any verdict of this run on its policies is wrong is at most {wrong}. That is said of "
            "this machine and this run: other machines and other days were not measured."
        )
    if any(one.state in ("set", "weigh") for one in found) and selection(results):
        yield (
            "The best of several policies was chosen by the same measurements that judge it, so expect a little less "
            "of it than the estimate says (hugewise advise tries it again in a run of its own)."
        )


def _changed(metric: str, one: Comparison) -> str:
    """`latency_ns is 40.0% lower than with base`."""
    size, name = size_of(one), printable(metric)
    if size is None:
        return f"so many runs failed that {name} has no size to compare"
    return f"{name} is {size} than with `{printable(one.baseline)}`"


def _blocks(one: Comparison) -> str:
    blocks = f"{one.n} block{'' if one.n == 1 else 's'}"
    return blocks if one.final else f"{blocks} so far, of {one.planned} planned"


def _left(one: Comparison) -> str:
    """What the measurements leave room for."""
    if one.constant:
        return "each time with the same difference"
    room = numbers.room(one.ratio, one.low, one.high)
    return f"what was measured leaves room for {room}" if room else "too little to say how far off the estimate may be"
