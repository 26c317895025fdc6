"""The answer, first in every report: what to set for which cells, and a panel for each, its best setting first.

Above it stands what a reader who knows no statistics asks: what to set, what that changes, what is still possible. What
stands behind a verdict is a paragraph of facts that the run has, in the words of docs/concepts/counters.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from hugewise.analysis.changes import overall
from hugewise.model.cause import AnswerState, Cause, CellAnswer, FaultTime, TlbCost
from hugewise.model.metric import Metric
from hugewise.model.policy import DeployedFile
from hugewise.model.results import VERDICTS, ArmSummary, CellResult, Comparison, Results
from hugewise.quantity import format_size
from hugewise.report import document as doc
from hugewise.report import numbers
from hugewise.report.cell_answers import (
    SameAnswer,
    also_judged,
    answers,
    joined,
    joint_confidence,
    memory_of,
    not_compared,
    of_each,
    price,
    ranked,
    resting,
    selection,
)
from hugewise.report.document import Table, table
from hugewise.report.figures.effects import narrowed, overview
from hugewise.report.figures.theme import colours
from hugewise.report.numbers import NOTHING
from hugewise.report.sections.over_time import ageing_remarks, remarks
from hugewise.report.sentences import (
    LEGEND_TITLE,
    arm_of,
    better_direction,
    change_of,
    findings,
    legend,
    listed,
    metric_line,
    sentence,
)
from hugewise.visible import printable

CAPTION = "Over the programs of a set"


def programs_table(results: Results) -> Table | None:
    """Return per set and arm the mean ratio with its interval, and no verdict; None without sets."""
    rows = []
    for mean in overall(results.cells):
        remarks = [mean.reason] if mean.reason else []
        if mean.lacking:
            remarks.insert(0, f"without {', '.join(mean.lacking)}, which cannot take the policy")
        row = (
            mean.name,
            mean.arm,
            f"{mean.metric} against {mean.baseline}",
            change_of(mean.ratio, mean.low, mean.high),
            NOTHING if mean.confidence is None else f"at least {numbers.percent(mean.confidence)}",
            len(mean.programs),
            "; ".join(remarks) or NOTHING,
        )
        rows.append(row)
    head = ("set", "policy", "metric", "change of the geometric mean (interval)", "confidence", "programs", "remark")
    return table(CAPTION, head, rows, 3) if rows else None


# How an answer is marked: never by its colour alone.
MARKS: dict[AnswerState, str] = {
    "set": "better",
    "weigh": "better",
    "leave": "equivalent",
    "undecided": "undecided",
    "none": "none",
}


def tally(results: Results) -> tuple[tuple[str, int], ...]:
    """Return how often each verdict was given, over all that was judged."""
    counts: Counter[str] = Counter(comparison.verdict for cell in results.cells for comparison in cell.judged)
    return tuple((verdict, counts[verdict]) for verdict in VERDICTS if verdict in counts)


def top(results: Results) -> Iterator[doc.Block]:
    """Yield the blocks at the top of a report: of one cell a line for each fact, of several cells a line for each."""
    several = answers(results)
    cells = dict(zip((answer.cell for answer in several), results.cells, strict=True))
    for same in joined(several):
        if len(several) == 1:
            (alone,) = same.answers
            title, parts = alone.what, list(_parts(cells[alone.cell], alone))
            if alone.state == "undecided":
                question, _, parts[0] = parts[0].partition("; ")
                title = f"{title}: {question}."
            yield doc.Headline(MARKS[same.state], title, tuple(map(_capital, parts)))
        else:
            lines = tuple(f"{one.cell}: {'; '.join(_parts(cells[one.cell], one))}." for one in same.answers)
            yield doc.Headline(MARKS[same.state], _headed(same), lines)
    yield from (doc.Line(line, quiet=True) for line in (*terms(results), *caveats(results)))


def _parts(cell: CellResult, one: CellAnswer) -> Iterator[str]:
    yield from filter(None, (one.found, *reach(cell, one), of_each(cell, one.ranked), price(one)))


def _headed(same: SameAnswer) -> str:
    many = len(same.answers)
    return f"{same.heading} ({many} cell{'' if many == 1 else 's'})"


def _capital(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def answer(results: Results) -> doc.Section:
    """Every effect of the run, a panel for each cell, and what its verdicts do and do not say. `top` stands above."""
    found = answers(results)
    nothing = doc.Verdicts((doc.Verdict("none", "Nothing was compared in this cell."),))
    blocks: list[doc.Block] = [*doc.some(_overview(results))]
    blocks += [
        doc.Bundle(
            "card",
            (
                doc.Heading(f"{number}. {cell.cell}", link=f"cell-{number}"),
                doc.Line(metric_line(cell.metric), quiet=True),
                *(() if len(found) == 1 else (doc.Headline(MARKS[of.state], of.text),)),
                _verdicts(results, cell) if cell.comparisons else nothing,
                *_judged_beside(results, cell),
                *_notes(of, cell),
            ),
        )
        for number, (of, cell) in enumerate(zip(found, results.cells, strict=True), 1)
    ]
    if not results.cells:
        blocks.append(doc.Line("No cell was measured."))
    chosen = selection(results) if any(one.state in ("set", "weigh") for one in found) else ""
    shared = tuple(filter(None, (joint_confidence(results), chosen)))
    if lines := legend(results):
        points = (doc.Points(lines), *((doc.Points(shared),) if shared else ()))
        blocks.append(doc.Bundle("legend", (doc.Heading(LEGEND_TITLE), *points)))
    shown = (*blocks, *doc.some(programs_table(results)))
    return doc.Section("The answer, cell by cell", shown, key="answer", nav="Answer")


def _notes(of: CellAnswer, cell: CellResult) -> Iterator[doc.Note]:
    yield from map(doc.Note, filter(None, (not_compared(of),)))
    yield from map(doc.Note, (*ageing_remarks(cell), *remarks(cell)))


def _verdicts(results: Results, cell: CellResult) -> doc.Verdicts:
    return doc.Verdicts(
        tuple(
            doc.Verdict(
                comparison.verdict,
                sentence(comparison, cell.metric, results.margin),
                arm=comparison.arm,
                findings=tuple(findings(comparison)),
                facts=_memory(arm_of(cell, comparison.arm), arm_of(cell, comparison.baseline)),
                cause=_cause(cell, comparison),
            )
            for comparison in ranked(cell)
        )
    )


def _others(results: Results, cell: CellResult) -> Iterator[doc.Verdict]:
    for also in also_judged(cell):
        said = sentence(also.comparison, also.metric, results.margin)
        named = f"{also.end_point or also.name}: {said}"
        yield doc.Verdict(also.comparison.verdict, named, arm=also.comparison.arm)


def _judged_beside(results: Results, cell: CellResult) -> Iterator[doc.Block]:
    if found := tuple(_others(results, cell)):
        yield doc.Line("Declared before the run to be judged beside it, on the same attempts:", quiet=True)
        yield doc.Verdicts(found)


def _cause(cell: CellResult, comparison: Comparison) -> str:
    found = next(
        (cause for cause in cell.causes if (cause.arm, cause.baseline) == (comparison.arm, comparison.baseline)), None
    )
    return "" if found is None or comparison.verdict == "none" else " ".join(evidence(found, comparison.verdict))


def _memory(arm: ArmSummary | None, base: ArmSummary | None) -> tuple[tuple[str, str], ...]:
    kinds: tuple[tuple[str, Callable[[ArmSummary | None], int | None]], ...] = (("memory at most", memory_of),)
    if _pool(arm) or _pool(base):
        kinds = (("memory with pool", memory_of), ("of it a pool", _pool))
    sizes = ((name, of(arm), of(base)) for name, of in kinds)
    return tuple((name, f"{numbers.size(mine)} (baseline {numbers.size(its)})") for name, mine, its in sizes)


def _pool(arm: ArmSummary | None) -> int | None:
    return None if arm is None else arm.pool_bytes


def _overview(results: Results) -> doc.Figure | None:
    spec = overview(results, colours(results))
    caption = (
        "Every effect: how much each policy changes against its baseline. Mark: the best estimate, its shape tells the "
        "verdict; line: what the measurements leave room for; grey band: changes too small to matter by the study."
    )
    text = "Every effect of the run with its interval and the margin band."
    return doc.Figure("overview", "overview", text, spec, caption, narrowed(spec)) if spec else None


def reach(cell: CellResult, one: CellAnswer) -> Iterator[str]:
    """Yield the processes affected by the setting, and what the program needs for it."""
    arm = arm_of(cell, one.setting or "")
    if one.state in ("set", "weigh") and arm is not None:
        yield from reach_of(arm)


def reach_of(arm: ArmSummary) -> Iterator[str]:
    """Yield the processes affected by the arm's setting, and what the program needs for it, where known."""
    files = () if arm.deployment is None else arm.deployment.files
    now = [file for file in files if file.scope == "host-now"]
    pools = [file for file in now if file.sets and all("/hugepages/" in path for path in file.sets)]
    servers = [file for file in files if file.scope == "server"]
    commands = () if arm.deployment is None else arm.deployment.commands()
    exports = [line.removeprefix("export ") for line in commands if line.startswith("export ")]
    texts = []
    if len(now) > len(pools):
        texts.append("the setting reaches every program of the host")
    elif now:
        texts.append("a pool is reserved on the host for programs that ask for it")
    if servers:
        texts.append(f"the server is told by {listed([_lines(file) for file in servers])}")
    if exports:
        texts.append(f"the program is started with {listed([f'`{printable(export)}`' for export in exports])}")
    if texts:
        yield ", and ".join(texts)


def _lines(file: DeployedFile) -> str:
    """`disable-thp no`: what a server's own configuration gets."""
    texts = [line.strip() for line in file.content.splitlines()]
    return ", ".join(f"`{printable(line)}`" for line in texts if line and line[0] not in "#;[")


def terms(results: Results) -> Iterator[str]:
    """Yield the terms of the answers: cells and blocks, and each metric."""
    judged = [cell for cell in results.cells if resting(cell) is not None]
    often = {1: "once", 2: "twice"}.get(max((cell.copies for cell in results.cells), default=1), "several times")
    ran = f"{'every policy ran' if _all_together(results) else 'each policy ran at most'} {often}, in random order."
    if len(results.cells) > 1:
        yield f"A cell is a workload with its parameters. In each of its blocks {ran}"
    elif judged:
        yield f"In each block {ran}"
    told = [metric for cell in judged for metric in (cell.metric, *(also.metric for also in also_judged(cell)))]
    metrics = {metric.name: metric for metric in told}
    if metrics:
        yield " ".join(map(_is, metrics.values()))


def _all_together(results: Results) -> bool:
    blocks: dict[tuple[str, int], set[str]] = {}
    for one in results.attempts:
        blocks.setdefault((one.cell, one.block), set()).add(one.arm)
    whole = {cell.cell: {arm.arm for arm in cell.arms} for cell in results.cells}
    together = {cell for (cell, _), ran in blocks.items() if ran >= whole.get(cell, set())}
    return together == {cell for cell, _ in blocks}


def _is(metric: Metric) -> str:
    """`tps is in transactions/s, higher is better: transactions a second.`"""
    text = f": {metric.description.rstrip('.')}" if metric.description else ""
    return printable(f"{metric.name} is in {metric.unit}, {better_direction(metric)}{text}.")


def caveats(results: Results) -> Iterator[str]:
    """Yield what a reader has to know of all answers together."""
    found = answers(results)
    if any(one.state != "none" for one in found):
        wrong = numbers.percent(1 - results.confidence)
        yield (
            f"The chance that any verdict of this run on its policies is wrong is at most {wrong}. The chance is "
            "that of this machine and this run: other machines and other days were not measured."
        )
    if any(one.state in ("set", "weigh") for one in found) and selection(results):
        yield (
            "The best of several policies was chosen by the same measurements that judge it, so expect a little less "
            "of it than the estimate says (hugewise advise tries it again in a run of its own)."
        )


_FEW = 0.005  # of all: not worth a word


def evidence(cause: Cause, verdict: str) -> tuple[str, ...]:
    """Return the sentences of the paragraph that explains the word `verdict`."""
    return (
        *_split(cause, verdict),
        *_faults(cause),
        *_walks(cause),
        *_pages(cause),
        *_bound(cause),
        *_waits(cause),
        *_unseen(cause),
    )


def _split(cause: Cause, verdict: str) -> Iterator[str]:
    what = {"better": "gain", "worse": "loss"}.get(verdict, "difference")
    match cause.told, cause.by:
        case "neither", _:
            yield f"Neither page faults nor page walks make a {what}: {cause.why}."
        case "not told apart", _:
            would = f"; to tell them apart needs {cause.would}" if cause.would else ""
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
        text = "; ".join(_counted(before, after, cause.bound.walkers))
        if text:
            yield f"In {mode}: {text}."


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
    return any(quantity.why == cause.bound.why for quantity in cause.unseen)


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
        text = (
            f"fell into seconds with unusually much of this: {'; '.join(beside)}" if beside else "fell into usual ones"
        )
        yield f"Its {cause.slowest} slowest operations {text}."


def _unseen(cause: Cause) -> Iterator[str]:
    if cause.unseen:
        yield f"Not seen: {'; '.join(f'{quantity.what} ({quantity.why})' for quantity in cause.unseen)}."


def _percent(share: float) -> str:
    """`38%`, `0.4%`, `<0.1%`."""
    if 0 < share < 0.001:
        return "<0.1%"
    return f"{100 * share:.1f}%" if share < 0.095 and round(100 * share, 1) % 1 else f"{100 * share:.0f}%"
