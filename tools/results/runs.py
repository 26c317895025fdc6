"""The runs of a page: facts to make each again, which of their results stand, and what they say together. Pure.

All results of the newest run stand; results of an older run stand where no later run has them. Several runs are judged
together by their e-values (`analysis.combining`).
"""

from __future__ import annotations

import contextlib
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from hugewise import workloads
from hugewise.analysis import combining
from hugewise.errors import UserError
from hugewise.model.results import DECIDED, DIRECTIONS, CellResult, Comparison, Results
from hugewise.quantity import format_duration
from hugewise.report import numbers
from hugewise.report.document import Block, Line, Section, table
from hugewise.report.numbers import NOTHING
from hugewise.report.reasons import withheld
from hugewise.report.sentences import effect_of, listed
from hugewise.stats.evidence import TYPICAL, Combined
from hugewise.study import load
from tools.results.data import PageData, PageRun

_OLDER = "Not in the newest run"
_IN_ORDER = "sequential (one arm after the other)"
"""The design of that name, which is not the method of that name."""
_JUDGED: Mapping[str, str] = {
    "fixed-n": "judged once, from the planned blocks",
    "sequential": "judged after every pair, at an error rate that holds however long it goes on",
    "exact": "counts that are the same in every boot; else judged after every pair",
}


def facts(caption: str, runs: Iterable[tuple[Results, str]]) -> Block:
    """Each run with all that is needed to make it again; beside it the command that is derived (`derived`)."""
    rows: list[tuple[object, ...]] = []
    for found, equivalent in runs:
        rows += [
            ("run", f"{found.run}, {found.state}, {numbers.when(found.started)}"),
            ("command", _command(found, equivalent)),
            ("took", format_duration(max(found.ended - found.started, 0.0))),
            ("budget", _budget(found)),
            ("study", _study(found)),
            ("method", _method(found)),
            ("design", "; ".join(_designs(found.cells)) or NOTHING),
            ("machine", _machine(found)),
            ("seed", found.seed or NOTHING),
            ("last running hash", (found.integrity and found.integrity.hash) or NOTHING),
            ("blocks disturbed or incomplete", f"{found.blocks_disturbed}, {found.blocks_incomplete}"),
            ("memory delivered as promised", _delivered(found.cells)),
        ]
    return table(caption, ("what", "of it"), rows, 2)


def measured_cells(caption: str, runs: Iterable[Results]) -> Block:
    """Return the table of each cell's workload and parameters that are set to anything. Alike in several runs: once."""
    rows = dict.fromkeys(
        (cell.cell, cell.workload, _parameters(cell), cell.memory_age) for run in runs for cell in run.cells
    )
    return table(caption, ("cell", "workload", "parameters", "memory of the machine"), list(rows), 4)


def other_machines(runs: Sequence[Results]) -> Iterator[str]:
    """Yield a sentence, where the runs were not made on machines that say the same of themselves."""
    found = dict.fromkeys(_machine(run) for run in runs)
    if len(found) > 1:
        yield f"The runs were made on machines that differ: {'; '.join(found)}."


def decided(runs: Iterable[Results]) -> str:
    """Return how many of the comparisons of these runs were decided: `3 of 14`."""
    every = [comparison for run in runs for cell in run.cells for comparison in cell.judged]
    return f"{sum(one.verdict in DECIDED for one in every)} of {len(every)}"


def outcome(run: Results, called: str) -> str:
    """Return how many of its comparisons the run decided at which confidence, from how many attempts, and when."""
    return (
        f"{called} decided {decided([run])} comparisons at a confidence of {numbers.percent(run.confidence)}, which"
        f" they share, with a margin of equivalence of ±{numbers.percent(run.margin)}. It made"
        f" {len(run.attempts):,} attempts in {run.blocks_complete:,} complete blocks, from"
        f" {numbers.when(run.started)} on."
    )


def counted(run: Results) -> str:
    """Return the counts that emulated guests were judged by, `page_faults`: they are no speed. Empty for all other
    runs.
    """
    if run.guests is None or run.guests.accelerator != "tcg":
        return ""
    return listed(
        list(dict.fromkeys(comparison.metric for cell in run.cells for comparison in cell.judged)) or [NOTHING]
    )


def older_title(run: Results) -> str:
    """Return the title of the section with results that no later run has."""
    return f"{_OLDER}: the run of {numbers.when(run.started)}"


def older_cells(runs: Iterable[tuple[Results, Sequence[str]]]) -> Iterator[str]:
    """Yield a sentence on the cells whose figures are of these runs, the newest first, and where they stand; of each
    run what it has, in words.
    """
    texts = [f"{listed(names)} of the run of {numbers.when(run.started)}" for run, names in runs if names]
    if texts:
        yield f"The sections “{_OLDER}” have the figures that older runs alone have: {'; '.join(texts)}."


def delivered(comparison: Comparison) -> str:
    """Return the share of memory that had the promised pages; below all of it, whether the setting was judged whatever
    it was.

    `4.3%, as a setting`.
    """
    told = numbers.share(comparison.delivered_share)
    less = comparison.delivered_share is not None and told != "100%"
    return f"{told}, as a setting" if less and comparison.judged == "setting" else told


def _command(results: Results, equivalent: str) -> str:
    if results.command:  # runs that were made before it was kept have none
        return _by_name(results)
    if equivalent:
        return f"{equivalent} (derived from what was measured: the run kept no command)"
    return "the run kept none"


def _by_name(results: Results) -> str:
    """Return the command that was kept. Of a path a page keeps the file's name alone (`data.without_paths`), which
    finds nothing anywhere: a study that comes with hugewise goes by its own.
    """
    file = f"{results.study}.toml"
    if file not in results.command or results.study not in load.names():
        return shlex.join(results.command)
    words = [results.study if word == file else word for word in results.command]
    return f"{shlex.join(words)} (the run named the file {file})"


def _method(results: Results) -> str:
    """Return the method of judgement: not the design, of which one has the name of a method."""
    method = results.options.get("method")
    if not isinstance(method, str):
        return NOTHING
    return f"{method}: {_JUDGED[method]}" if method in _JUDGED else method


def _budget(results: Results) -> str:
    known = results.options.get("budget")
    if not isinstance(known, Mapping) or "blocks" not in known:
        return NOTHING
    time, width = known.get("time"), known.get("width")
    parts = [
        f"{known['blocks']:,} blocks of each cell at most",
        f"{format_duration(time)} in all" if time is not None else "no limit of time",
        f"to a width of {numbers.percent(width)}" if width is not None else "",
    ]
    return ", ".join(filter(None, parts))


def _designs(cells: Sequence[CellResult]) -> Iterator[str]:
    """Each design with its cells, as their estimands have it; of one that has to be calibrated, whether it was."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for cell in cells:
        if cell.comparisons:
            found[_design(cell)].append(cell.cell)
    for words, names in found.items():
        yield f"{words}: {', '.join(names)}"


def _design(cell: CellResult) -> str:
    kind = next((one.design for one in cell.comparisons if one.design != "sequential"), None)
    if kind is None:
        return _IN_ORDER
    return f"{kind}, {_calibrated(cell)}" if kind in ("duet", "resident") else kind


def _calibrated(cell: CellResult) -> str:
    # without a good calibration such a design gives no verdict
    if any(withheld(comparison.reason, "calibration") for comparison in cell.comparisons):
        return "without a calibration that is good, and so without verdicts"
    return "which a calibration on that host allowed: it had found there what sequential pairs find"


def _study(results: Results) -> str:
    scale = results.options.get("scale")
    return f"{results.study}, as its run has it{f', at the scale {scale}' if scale else ''}"


def _host(results: Results, kind: str, name: str) -> object:
    known = results.host.get(kind)
    return known.get(name) if isinstance(known, Mapping) else None


def _cpus(results: Results) -> str | None:
    count = _host(results, "cpu", "count")
    return f"{count} CPUs" if count else None


def _machine(results: Results) -> str:
    total, kernel = _host(results, "memory", "total_bytes"), _host(results, "kernel", "release")
    family, number = _host(results, "cpu", "family"), _host(results, "cpu", "model_number")
    parts = [
        _host(results, "cpu", "model"),
        f"family {family}, model {number}" if family and number else None,
        _cpus(results),
        numbers.size(total) if isinstance(total, int) else None,
        f"kernel {kernel}" if kernel else None,
    ]
    return ", ".join(str(part) for part in parts if part) or NOTHING


def machine_in_short(results: Results) -> str:
    """`AMD EPYC, 2 CPUs`; empty parts are left out, and of nothing it says so."""
    parts = [_host(results, "cpu", "model"), _cpus(results)]
    return ", ".join(str(part) for part in parts if part) or "machine not told"


def where_in_short(results: Results) -> str:
    """Return the place: `on AMD EPYC, 2 CPUs`, `in guests under KVM on AMD EPYC, 2 CPUs`."""
    guests = "" if results.guests is None else "in guests under KVM "
    return f"{'in guests emulated ' if counted(results) else guests}on {machine_in_short(results)}"


def _delivered(cells: Sequence[CellResult]) -> str:
    told = []
    for judged, words in (("backing", "over the arms"), ("setting", "over those judged as settings")):
        arms = [arm for cell in cells for arm in cell.arms if arm.judged == judged]
        shares = [arm.delivered_share for arm in arms if arm.delivered_share is not None]
        ends = dict.fromkeys(numbers.share(end(shares)) for end in (min, max)) if shares else {}
        told += [f"{' to '.join(ends)} {words}"] if ends else []
    return "; ".join(told) or NOTHING


def _parameters(cell: CellResult) -> str:
    """`keys 7200000, memory 1.12 GiB, duration 10 s`, without those that are empty, 0 or off."""
    known = workloads.discover().get(cell.workload)
    types = {} if known is None else {one.name: one.type for one in known.parameters}

    def value(name: str, found: object) -> str:
        if isinstance(found, list | tuple):
            return " ".join(map(str, found))
        if isinstance(found, int | float) and not isinstance(found, bool):
            match types.get(name):
                case "size":
                    return numbers.size(found)
                case "duration":
                    return f"{found:g} s"
                case _:
                    return f"{found:,}" if isinstance(found, int) else f"{found:g}"
        return "on" if found is True else str(found)

    return ", ".join(f"{name} {value(name, found)}" for name, found in cell.parameters.items() if found) or NOTHING


Key = tuple[str, str, str, str]
"""A cell, what of it (its metric, an end point, a metric beside it), an arm and a metric."""


def standing(data: PageData) -> Iterator[tuple[PageRun, Results]]:
    """Each run with those of its results that stand: a cell that no later run has, and of one that a later run
    measured with other arms (`--arms`) or metrics the comparisons that only this run has.
    """
    cells, seen = set[str](), set[Key]()
    for run in data.runs:
        found = [_unseen(cell, seen) for cell in run.results.cells]
        left = tuple(cell for cell in found if cell.cell not in cells or cell.judged)
        cells |= {cell.cell for cell in run.results.cells}
        seen |= {key for cell in run.results.cells for key, _ in _keyed(cell)}
        if left:
            yield run, replace(run.results, cells=left)


def newer_cells(data: PageData, run: PageRun) -> frozenset[str]:
    """Return the cells that a later run has."""
    place = next(place for place, one in enumerate(data.runs) if one is run)
    return frozenset(cell.cell for run in data.runs[:place] for cell in run.results.cells)


def labels(results: Results, newer: frozenset[str]) -> list[str]:
    """The cells by name; those of which a later run has a part with the arms that it has not: `build (thp)`."""
    return [
        f"{cell.cell} ({', '.join(dict.fromkeys(comparison.arm for comparison in cell.judged))})"
        if cell.cell in newer
        else cell.cell
        for cell in results.cells
    ]


def _keyed(cell: CellResult) -> Iterator[tuple[Key, Comparison]]:
    for what in ("comparisons", "end_points", "declared"):
        for one in getattr(cell, what):
            yield (cell.cell, what, one.arm, one.metric), one


def _unseen(cell: CellResult, seen: set[Key]) -> CellResult:
    if not any(key in seen for key, _ in _keyed(cell)):
        return cell

    def left(what: str) -> tuple[Comparison, ...]:
        return tuple(one for key, one in _keyed(cell) if key[1] == what and key not in seen)

    return replace(
        cell, comparisons=left("comparisons"), end_points=left("end_points"), declared=left("declared"), causes=()
    )


TOGETHER = "The runs together"


def combined_of(data: PageData) -> tuple[Combined, ...]:
    """Return the results of several runs together; empty for a single one. Raises UserError where they cannot be put
    together.
    """
    sources = [run.evidence for run in data.runs if run.evidence is not None]
    return combining.combined(sources, data.runs[0].results.confidence).comparisons if len(sources) > 1 else ()


def together_typical(data: PageData) -> list[Combined]:
    """Return the typical ratios of several runs together; none where they cannot be put together, which the section
    says.
    """
    with contextlib.suppress(UserError):
        return [one for one in combined_of(data) if one.end_point == TYPICAL]
    return []


def decided_together(data: PageData) -> str:
    """Return how many comparisons the runs decide together: `1 of 9`; empty where no comparison is in several runs."""
    return _counted(together_typical(data))


def _counted(every: Sequence[Combined]) -> str:
    return f"{sum(one.verdict in DIRECTIONS for one in every)} of {len(every)}" if every else ""


def together_sentence(data: PageData) -> str:
    """Return what the runs decide together, beside each one's results; empty where no comparison is in several."""
    every = together_typical(data)
    if not every:
        return ""
    named = [one for one in every if one.verdict in DIRECTIONS]
    text = "; ".join(f"{one.cell}, {one.arm}: {one.metric} {one.verdict}" for one in named)
    decide = f"The runs together decide {_counted(every)} comparisons that several of them have"
    return f"{decide}{f' ({text})' if text else ''}."


def told_together(data: PageData) -> Iterator[Section]:
    """Several runs judged together."""
    try:
        found = combined_of(data)
    except UserError as error:
        yield Section(TOGETHER, (Line(f"The runs cannot be put together: {error.message}."),))
        return
    if not found:
        return
    rows = [
        (
            *(one.cell, one.arm, one.baseline, one.metric, one.end_point, _changes(one, data)),
            *(_pairs(one), _e(one), one.verdict),
        )
        for one in found
    ]
    head = (
        *("cell", "policy", "baseline", "metric", "end point", "change (interval) by run"),
        *("pairs by run", "e-value, adjusted", "verdict"),
    )
    text = (
        "The e-values say whether and in which direction in at least one of the runs; not how much. By how much stands"
        " run by run, the newest first."
    )
    yield Section(TOGETHER, (Line(text), table("e-values multiplied over runs", head, rows, 6)))


def _changes(combined: Combined, data: PageData) -> str:
    """Return the result of each run by itself, and its verdict where it had one."""
    if combined.end_point != TYPICAL:
        return NOTHING
    found = {run.results.run: run.results for run in data.runs}
    return "; ".join(_change(combined, found.get(part.run)) for part in combined.parts)


def _change(combined: Combined, results: Results | None) -> str:
    cells = () if results is None else results.cells
    for each in (
        comparison for cell in cells if cell.cell == combined.cell for comparison in (*cell.comparisons, *cell.declared)
    ):
        if (each.arm, each.baseline, each.metric) == (combined.arm, combined.baseline, combined.metric):
            return f"{effect_of(each)}{f', {each.verdict}' if each.verdict in DECIDED else ''}"
    return NOTHING


def _pairs(combined: Combined) -> str:
    return " + ".join(str(part.pairs) for part in combined.parts)


def _e(combined: Combined) -> str:
    if combined.direction == "refused" or combined.adjusted is None:
        return NOTHING
    return f"{combined.adjusted:,.0f}" if combined.adjusted >= 100 else f"{combined.adjusted:.3g}"
