"""A run's answer for readers who know no statistics: what to set, what it changes, what is still possible.

The exact words (levels, and which verdicts hold together) are those of `cell_answers`; a page has them one click below.
Pure.

What stands behind a verdict, in one paragraph: each sentence is of a fact that the run has. Pure.

Faults and walks first, then the pages, then how much other pages could still win, then what cannot be seen and why. The
words are those of docs/concepts/counters.md.
"""

from __future__ import annotations

from collections.abc import Iterator

from hugewise.model.answer import CellAnswer
from hugewise.model.cause import Cause, FaultTime, TlbCost
from hugewise.model.metric import Metric
from hugewise.model.policy import DeployedFile
from hugewise.model.results import ArmSummary, CellResult, Comparison, Results
from hugewise.quantity import format_size
from hugewise.report import numbers
from hugewise.report.cell_answers import (
    Also,
    also_judged,
    answers,
    arms_of,
    decided,
    in_exact_words,
    in_short,
    of_each,
    resting,
    selection,
    separately,
    unpriced,
)
from hugewise.report.sentences import arm_of, better_direction, listed, size_of
from hugewise.visible import printable


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


_FEW = 0.005  # of all: not worth a word


def paragraph(cause: Cause, verdict: str) -> str:
    """One paragraph; `verdict` is the word that it explains."""
    told = (
        *_split(cause, verdict),
        *_faults(cause),
        *_walks(cause),
        *_pages(cause),
        *_bound(cause),
        *_waits(cause),
        *_unseen(cause),
    )
    return " ".join(told)


def _split(cause: Cause, verdict: str) -> Iterator[str]:
    what = {"better": "gain", "worse": "loss"}.get(verdict, "difference")
    match cause.told, cause.by:
        case "neither", _:
            yield f"Neither page faults nor page walks make a {what}: {cause.why}."
        case "not told apart", _:
            would = f"; it would take {cause.would}" if cause.would else ""
            why = f": {cause.why}" if cause.why else ""
            yield f"Page faults and page walks are not told apart{why}{would}."
        case "walks", "memory touched before":
            took = max((share for share in map(_share, cause.faults, cause.cpu) if share is not None), default=0.0)
            none = f"page faults took at most {_percent(took)} of its time" if took else "it had no page faults"
            yield (
                f"The {what} is in the program itself, where page walks and cache misses are: its memory was touched "
                f"before the clock, and {none}."
            )
        case told, by:
            mostly = {
                "faults": "mostly page faults",
                "walks": "mostly page walks and cache misses, in the program itself",
                "both": "page faults as well as page walks and cache misses",
            }[told]
            spent = numbers.scale("s", [cause.saved]).text(abs(cause.saved or 0.0))
            part = f"of {spent} of CPU time {'saved' if (cause.saved or 0.0) >= 0 else 'lost'} a run"
            part += {"counters": ", by the cycles counted", "cost of a fault": ", by what a fault costs here"}.get(
                by, ""
            )
            whose = "faults are" if by == "cost of a fault" else "the kernel's time is"
            yield f"The {what} is {mostly}: {whose} {_interval(cause)} {part}."


def _interval(cause: Cause) -> str:
    share = "an unknown part" if cause.share is None else _percent(min(max(cause.share, 0.0), 1.0))
    if cause.low is None or cause.high is None or cause.by == "counters":
        return share
    return f"{share} ({_percent(max(cause.low, 0.0))} to {_percent(min(cause.high, 1.0))} at 95%, by itself)"


def _faults(cause: Cause) -> Iterator[str]:
    before, after = cause.faults
    if before.faults is None or after.faults is None or cause.by == "memory touched before":
        return
    if not before.faults and not after.faults:
        yield "There were no page faults."
        return
    counts = f"Page faults a run: {before.faults:,.0f} before, {after.faults:,.0f} after"
    times = [_took(one, cpu) for one, cpu in zip(cause.faults, cause.cpu, strict=True)]
    if all(times):
        yield f"{counts}; they took an estimated {times[0]} before and {times[1]} after."
    else:
        yield f"{counts}."


def _took(faults: FaultTime, cpu: float | None) -> str:
    if faults.typical is None or faults.low is None or faults.high is None:
        return ""
    if faults.faults == 0:
        return "nothing"
    unit = numbers.scale("s", [faults.typical])
    text = unit.text(faults.typical, (faults.high - faults.low) / 2 or None)
    share = _share(faults, cpu)
    return text if share is None else f"{text} (at most {_percent(share)} of its CPU time)"


def _share(faults: FaultTime, cpu: float | None) -> float | None:
    if faults.faults == 0:
        return 0.0
    return None if faults.high is None or not cpu else min(1.0, faults.high / cpu)


def _walks(cause: Cause) -> Iterator[str]:
    for mode, (before, after) in (("user mode", cause.user), ("the kernel", cause.kernel)):
        told = "; ".join(_counted(before, after, cause.bound.walkers))
        if told:
            yield f"In {mode}: {told}."


def _counted(before: TlbCost, after: TlbCost, walkers: int | None) -> Iterator[str]:
    if before.walk_share is not None and after.walk_share is not None:
        yield (
            f"page walks were under way in at most {_percent(min(before.walk_share, 1.0))} of the cycles before, "
            f"{_percent(min(after.walk_share, 1.0))} after"
        )
    if before.busy is not None and after.busy is not None:
        them = f"its {walkers} page walkers were" if walkers != 1 else "its page walker was"
        yield f"{them} busy for {_percent(before.busy)} of the time, then {_percent(after.busy)}"
    elif before.under_way is not None and after.under_way is not None:
        yield f"{before.under_way:.3g} page walks were under way in a cycle, then {after.under_way:.3g}"
    if before.walks_pki is not None and after.walks_pki is not None:
        yield f"{before.walks_pki:,.3g} page walks per 1,000 instructions, then {after.walks_pki:,.3g}"
    elif before.walks and after.walks is not None:
        yield f"page walks changed by {numbers.change(after.walks / before.walks)}"
    if before.stlb_hits and after.stlb_hits is not None:
        yield f"hits of the second level of the TLB changed by {numbers.change(after.stlb_hits / before.stlb_hits)}"


def _pages(cause: Cause) -> Iterator[str]:
    before, after = cause.delivered
    if before is None or after is None:
        return
    large = [f"{_percent(share)} of {format_size(int(size))}" for size, share in _largest(cause) if share >= _FEW]
    what = f": {', '.join(large)}" if len(large) > 1 else ""
    aged = f", in memory that had aged before ({cause.memory_age})" if cause.memory_age else ""
    backed = f"{_percent(after)} of the memory{what}, and {_percent(before)} before{aged}"
    yield f"Pages above the base size backed {backed}."


def _largest(cause: Cause) -> Iterator[tuple[str, float]]:
    yield from sorted(cause.sizes.items(), key=lambda item: -int(item[0]))


def _bound(cause: Cause) -> Iterator[str]:
    found = cause.bound
    if found.upper is None:
        at_most = found.parts.get("kernel")
        of_faults = f", but for page faults: at most {_percent(at_most)}, all its time in the kernel" if at_most else ""
        if found.why:
            why = "" if _is_unseen(cause) else f": {found.why}"
            yield f"How much page sizes could win at most is not known{of_faults}{why}{_won(found.won)}."
        return
    parts = [f"{name} {_percent(share)}" for name, share in found.parts.items() if share >= _FEW]
    constants = "" if found.stlb_cycles is None else f"; {found.stlb_cycles:g} cycles a hit on {found.family}"
    constants += f"; its events have errata: {found.errata}" if found.errata else ""
    listed = f" ({', '.join(parts)}{constants})" if parts else ""
    if found.won is None or found.won <= 0:
        yield f"Page sizes could win at most {_percent(found.upper)} of the baseline's CPU time{listed}."
    elif found.won <= found.upper:
        yield (
            f"What page sizes can win of the baseline's CPU time is between {_percent(found.won)}, which this arm won "
            f"at least, and {_percent(found.upper)} at most{listed}."
        )
    else:
        yield (
            f"Page sizes could win at most {_percent(found.upper)} of the baseline's CPU time{listed}; this arm won at "
            f"least {_percent(found.won)}, so look for another cause as well."
        )


def _won(won: float | None) -> str:
    return f"; this arm won at least {_percent(won)}" if won is not None and won > 0 else ""


def _is_unseen(cause: Cause) -> bool:
    """Whether the reason stands below already."""
    return any(one.why == cause.bound.why for one in cause.unseen)


def _waits(cause: Cause) -> Iterator[str]:
    listed = [
        f"{after:,.0f} {what} a run (before: {before:,.0f})"
        for what, (before, after) in (
            ("waits for compaction", cause.stalls),
            ("faults that fell back to small pages", cause.fallbacks),
        )
        if before is not None and after is not None and (before or after)
    ]
    if listed:
        yield f"Of the whole machine meanwhile: {'; '.join(listed)}."
    if cause.slowest:
        beside = [f"{count} with {what}" for what, count in sorted(cause.slow_with.items(), key=lambda one: -one[1])]
        told = (
            f"fell into seconds with unusually much of this: {'; '.join(beside)}" if beside else "fell into usual ones"
        )
        yield f"Its {cause.slowest} slowest operations {told}."


def _unseen(cause: Cause) -> Iterator[str]:
    if cause.unseen:
        yield f"Not seen: {'; '.join(f'{one.what} ({one.why})' for one in cause.unseen)}."


def _percent(share: float) -> str:
    """`38%`, `0.4%`, `<0.1%`."""
    if 0 < share < 0.001:
        return "<0.1%"
    return f"{100 * share:.1f}%" if share < 0.095 and round(100 * share, 1) % 1 else f"{100 * share:.0f}%"
