"""Analysis of measurements made elsewhere: files and the formats that are refused, metrics, arms, and comparisons."""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from hugewise import reading
from hugewise.errors import UserError
from hugewise.external import readers
from hugewise.external.compare import AnalysisPlan, ArmFigures, ExternalResults, MetricResults, compare, grouped, usable
from hugewise.external.reader import Ask, DataError, Reader, Series, head_of, readable
from hugewise.model.metric import Metric
from hugewise.reading import shown
from hugewise.stats.classical import Figures, figures
from hugewise.stats.method import Integers, Numbers

_OVERLAPPING = (
    "Logs of one arm overlap in time: they are of threads of one run, or of runs beside each other, and count as one."
)
# pgbench's aggregated logs: counts, sums and sums of squares are added, the lowest and the highest latency kept.
_ADDED_UP = (
    "awk '{n[$1] += $2; s[$1] += $3; q[$1] += $4; if (!($1 in a) || $5 < a[$1]) a[$1] = $5; "
    "if ($6 > b[$1]) b[$1] = $6} END {for (t in n) print t, n[t], s[t], q[t], a[t], b[t]}' LOGS | sort -n > FILE"
)
_LARGEST = 1e100
_LONGEST = 256  # characters of a name: a file's name has fewer, and figures cut longer ones


def recognise(path: Path, known: dict[str, Reader]) -> Reader:
    """Return the reader that knows the file. Raises DataError when there is none, or more than one."""
    head = head_of(path)
    if not head.strip():
        raise DataError("the file is empty", file=path, hint="name the file that the tool wrote its results to")
    readers = [reader for reader in known.values() if reader.recognises(head)]
    if len(readers) == 1:
        return readers[0]
    if not readers:
        hint = (
            f"name it with --format, one of: {', '.join(known)}; or make a CSV of it: a header, and a row for each run"
        )
        raise DataError("its format is not known", file=path, hint=hint)
    raise DataError(
        f"it could be {' or '.join(reader.NAME for reader in readers)}", file=path, hint="name it with --format"
    )


def load(
    paths: Sequence[Path], ask: Ask, *, arms: Sequence[str] = (), name: str | None = None
) -> dict[str, list[Series]]:
    """Return all series of the files by format, labelled by `arms` (one for each file or found arm), else by the files'
    labels or names. Labels of runs are made distinct between files; blocks, sessions and slots can be shared. Raises
    DataError.
    """
    known = readers.discover()
    if name is not None and name not in known:
        raise UserError(f"--format {name}: no such format", hint=f"one of: {', '.join(known)}")
    read = []
    for path in paths:
        refuse(head_of(path), path)
        reader = known[name] if name is not None else recognise(path, known)
        series = reader.read(path, ask)
        if not any(np.isfinite(entry.values).any() for entry in series):
            raise DataError("no value in it", file=path, hint="did the tool end before it measured anything?")
        _measurable(series, path)
        for metric in dict.fromkeys(entry.metric for entry in series):
            _nameable("metric", metric.name, path, "give it a shorter name in the file")
            _nameable("unit", metric.unit, path, "give it a shorter name in the file")
        read.append((reader.NAME, path, series))
    by_label: dict[str, list[Series]] = {}
    given: dict[tuple[str, str], Path] = {}
    offset = 0
    labels = _labels([(path, series) for _, path, series in read], arms)
    for (kind, path, series), names in zip(read, labels, strict=True):
        for label in names.values():
            _nameable("arm", label, path, "name each arm, in their order: --arm base --arm thp")
        _once(given, path, names)
        top = offset
        for entry in series:
            moved = entry.run
            if moved is not None:
                top = max(top, offset + int(moved.max(initial=-1)) + 1)
                moved = moved + offset
            by_label.setdefault(kind, []).append(replace(entry, arm=names[entry.arm], run=moved))
        offset = top
    if not arms:
        _apart([entry for series in by_label.values() for entry in series])
    return {kind: _runs_of_several(series) for kind, series in by_label.items()}


def _once(given: dict[tuple[str, str], Path], path: Path, names: dict[str | None, str]) -> None:
    with readable(path, "check the name and its permissions"):
        digest = reading.sha256(path)
    for label in names.values():
        if (first := given.setdefault((label, digest), path)) is not path:
            raise DataError(
                f"it holds the same as {first}, for the arm {label!r} too: the runs would count twice",
                file=path,
                hint="give each file of an arm once",
            )


def _span(entry: Series) -> tuple[float, float] | None:
    known = entry.epoch and entry.order is not None and len(entry.order)
    return (float(entry.order.min()), float(entry.order.max())) if known and entry.order is not None else None


def _apart(series: list[Series]) -> None:
    spans = sorted((span, entry.source) for entry in series if (span := _span(entry)) is not None)
    for ((_, until), first), ((start, _), second) in itertools.pairwise(spans):
        if start <= until and first != second:
            raise UserError(
                f"{first} and {second} overlap in time: are they logs of threads of one run (-j), or of two arms?",
                hint="say which arm each file is of: --arm base --arm base ... (the same name twice merges files)",
            )


def _runs_of_several(series: list[Series]) -> list[Series]:
    spans: dict[tuple[str | None, str], list[tuple[float, float, int]]] = {}
    for place, entry in enumerate(series):
        if (span := _span(entry)) is not None:
            spans.setdefault((entry.arm, entry.metric.name), []).append((*span, place))
    found = list(series)
    for of_arm in spans.values():
        end, first = -math.inf, -1
        for start, until, place in sorted(of_arm):
            entry = series[place]
            if start > end:
                first = place
            elif entry.metric.better == "higher":
                raise DataError(
                    f"its times overlap with those of {series[first].source}: each has the rate of some threads",
                    file=entry.source,
                    hint=f"add up their counts: {_ADDED_UP}",
                )
            else:
                shared = found[first].run
                assert shared is not None
                found[place] = replace(
                    entry, run=np.full(len(entry.values), shared[0]), notes=(*entry.notes, _OVERLAPPING)
                )
            end = max(end, until)
    return found


def _nameable(what: str, name: str, path: Path, cure: str) -> None:
    if len(name) > _LONGEST:
        raise DataError(
            f"the {what} {shown(name)} has a name of {len(name):,} characters: at most {_LONGEST} can be shown",
            file=path,
            hint=cure,
        )


def _measurable(series: list[Series], path: Path) -> None:
    # squares and ratios of the values must be finite, too
    for entry in series:
        sizes = np.abs(entry.values[np.isfinite(entry.values) & (entry.values != 0)])
        wrong = sizes[(sizes > _LARGEST) | (sizes < 1 / _LARGEST)]
        if len(wrong):
            raise DataError(
                f"{entry.metric.name} is {wrong[0]:g}, which is no measurement",
                file=path,
                hint=f"values lie between {1 / _LARGEST:g} and {_LARGEST:g}, or are 0",
            )


def _labels(read: Sequence[tuple[Path, list[Series]]], arms: Sequence[str]) -> list[dict[str | None, str]]:
    own = [list(dict.fromkeys(entry.arm for entry in series)) for _, series in read]
    total = sum(len(labels) for labels in own)
    if arms and len(arms) == total:
        given = iter(arms)
        return [{label: next(given) for label in labels} for labels in own]
    if arms:
        listed = ", ".join(label[:_LONGEST] for labels in own for label in labels if label is not None)
        raise UserError(
            f"--arm is given {len(arms)} times for {len(read)} files with {total} arms",
            hint="give one --arm for each file, in their order"
            if total == len(read)
            else f"give one --arm for each arm, in their order: {listed}",
        )
    labels = [
        {label: path.stem if label is None else label for label in mine}
        for (path, _), mine in zip(read, own, strict=True)
    ]
    seen: dict[str, Path] = {}
    for (path, series), mine in zip(read, labels, strict=True):
        if any(entry.own_arm for entry in series):
            continue
        for label in mine.values():
            if label in seen:
                raise UserError(
                    f"{seen[label]} and {path} would both be the arm {label!r}",
                    hint="say which arm each file is: --arm base --arm thp (the same name twice merges files)",
                )
            seen[label] = path
    return labels


class _Refused(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pattern: str
    name: str
    cure: str


@functools.cache
def _refused() -> list[_Refused]:
    data = resources.files(__package__).joinpath("refused.toml").read_bytes()
    return msgspec.toml.decode(data, type=dict[str, list[_Refused]])["output"]


def refuse(head: bytes, path: Path) -> None:
    """Raise DataError where the file is the output of a tool that is not read in this form."""
    text = head.decode("utf-8-sig", "replace").replace("\r\n", "\n")
    for one in _refused():
        if re.search(one.pattern, text, re.MULTILINE) is not None:
            raise DataError(f"it is {one.name}", file=path, hint=one.cure)


_FIGURE_POINTS = 1500


def analyze(
    paths: Sequence[Path | str],
    *,
    arms: Sequence[str] = (),
    ask: Ask | None = None,
    plan: AnalysisPlan | None = None,
    format_: str | None = None,
) -> ExternalResults:
    """Read the files and say what they show. Raises UserError and DataError."""
    ask, plan = ask or Ask(), plan or AnalysisPlan()
    loaded = load([Path(path) for path in paths], ask, arms=arms, name=format_)
    series = [_as_asked(entry, ask) for group in loaded.values() for entry in group]
    names = list(dict.fromkeys(entry.metric.name for entry in series))
    chosen = _chosen(series, names, plan)
    merged = {name: _merged([entry for entry in series if entry.metric.name == name]) for name in chosen}
    judged = sum(max(0, len(group) - 1) for group in merged.values())
    return ExternalResults(
        files=tuple(str(path) for path in paths),
        formats=tuple(loaded),
        confidence=plan.confidence,
        margin=plan.margin,
        randomised=plan.randomised,
        budget=plan.budget,
        metrics=tuple(_metric(group, plan, judged, declared=ask.better is not None) for group in merged.values()),
        others=tuple(name for name in names if name not in chosen),
    )


def _as_asked(series: Series, ask: Ask) -> Series:
    told = series.metric
    metric = Metric(told.name, ask.unit or told.unit, ask.better or told.better, told.description)
    return replace(series, metric=metric)


def _chosen(series: Sequence[Series], names: Sequence[str], plan: AnalysisPlan) -> list[str]:
    for name in plan.metrics:
        if name not in names:
            raise UserError(f"--metric {name}: not in these files", hint=f"one of: {', '.join(names)}")
    primary = [name for name in names if any(entry.primary for entry in series if entry.metric.name == name)]
    return list(plan.metrics) or primary


def _merged(series: Sequence[Series]) -> list[Series]:
    by_arm: dict[str, list[Series]] = {}
    known: dict[tuple[str, str], tuple[str, str]] = {}
    for entry in series:
        if entry.metric.unit != series[0].metric.unit:
            raise DataError(
                f"{entry.metric.name} is in {entry.metric.unit or 'no unit'}, and in {series[0].source} in "
                f"{series[0].metric.unit or 'no unit'}",
                file=entry.source,
                hint="write both files in one unit",
            )
        by_arm.setdefault(str(entry.arm), []).append(entry)
        for name, value in entry.settings.items():
            other, first = known.setdefault((str(entry.arm), name), (value, entry.source))
            if other != value:
                raise DataError(
                    f"its runs have {name} {shown(value)}, those of {first} {shown(other)}: both are of the arm "
                    f"{entry.arm!r}",
                    file=entry.source,
                    hint="give each an arm of its own (--arm few --arm many), or leave one out",
                )
    return [parts[0] if len(parts) == 1 else _joined(parts) for parts in by_arm.values()]


def _unlike(entry: Series, base: Series) -> Series:
    said = tuple(
        f"The runs of {entry.arm} have {name} {shown(value)}, those of {base.arm} {shown(base.settings[name])}: the"
        f" arms differ in {name}, too."
        for name, value in entry.settings.items()
        if base.settings.get(name, value) != value
    )
    return replace(entry, notes=(*entry.notes, *said))


def _joined(parts: Sequence[Series]) -> Series:
    def together(name: str) -> Any:
        arrays = [getattr(array, name) for array in parts]
        return None if any(array is None for array in arrays) else np.concatenate(arrays)

    failed = [np.zeros(len(part.values), np.bool_) if part.failed is None else part.failed for part in parts]
    return replace(
        parts[0],
        source=", ".join(dict.fromkeys(part.source for part in parts)),
        failed=np.concatenate(failed) if any(part.failed is not None for part in parts) else None,
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
        **{name: together(name) for name in ("values", "order", "block", "session", "slot", "run")},
    )


def _metric(series: Sequence[Series], plan: AnalysisPlan, judged: int, *, declared: bool) -> MetricResults:
    names = [str(entry.arm) for entry in series]
    baseline = plan.baseline or names[0]
    if baseline not in names:
        raise UserError(f"--baseline {baseline}: no such arm", hint=f"one of: {', '.join(names)}")
    base = series[names.index(baseline)]
    if len(series) > 1 and base.metric.better == "neutral" and not declared:
        raise UserError(
            f"whether more or less of {shown(base.metric.name)} is better is not known",
            hint="say it: --better lower, --better higher, or --better neutral to compare without a judgement",
        )
    for entry in series:
        if not usable(entry).any():
            raise DataError(
                f"no value of {entry.metric.name} under {entry.arm} is left",
                file=entry.source,
                hint="all are missing or failed; choose another with --metric",
            )
    arms = tuple(arm_figures(_unlike(entry, base), plan.confidence) for entry in series)
    alpha = (1 - plan.confidence) / max(1, judged)
    return MetricResults(
        metric=base.metric,
        baseline=baseline,
        arms=arms,
        comparisons=tuple(
            compare(entry, base, (mine, arms[names.index(baseline)]), plan, alpha)
            for entry, mine in zip(series, arms, strict=True)
            if entry is not base
        ),
    )


def arm_figures(series: Series, confidence: float) -> ArmFigures:
    """Return the figures of an arm."""
    good = usable(series)
    values = series.values[good]
    order_known = series.order is not None
    if series.order is not None and (np.diff(series.order) < 0).any():
        values = values[np.argsort(series.order[good], kind="stable")]
    runs = None if series.run is None else len(np.unique(series.run))
    return ArmFigures(
        arm=str(series.arm),
        sources=tuple(series.source.split(", ")),
        missing=int((~np.isfinite(series.values)).sum()),
        failed=0 if series.failed is None else int(series.failed.sum()),
        order_known=order_known,
        runs=runs,
        figures=figures(values, confidence, ordered_in_time=order_known),
        run_means=_run_means(series, good, confidence),
        session_share=None if series.session is None else _between(series.session[good], series.values[good]),
        sampled=_sampled(values),
        notes=series.notes,
    )


def _sampled(values: Numbers) -> tuple[tuple[int, float], ...]:
    n = len(values)
    if n <= _FIGURE_POINTS:
        return tuple(enumerate(values.tolist()))
    cuts = np.linspace(0, n, _FIGURE_POINTS // 3 + 1).astype(np.int64).tolist()
    places: set[int] = set()
    for start, end in itertools.pairwise(cuts):
        part = values[start:end]
        places |= {start, start + int(part.argmin()), start + int(part.argmax())}
    return tuple((place, float(values[place])) for place in sorted(places))


def _run_means(series: Series, good: NDArray[np.bool_], confidence: float) -> Figures | None:
    if series.run is None:
        return None
    groups = grouped(series.run[good], series.values[good])
    if len(groups) < 2 or all(len(group) == 1 for group in groups):
        return None
    return figures(np.array([group.mean() for group in groups]), confidence, ordered_in_time=False)


def _between(sessions: Integers, values: Numbers) -> float | None:
    from hugewise.stats.sessions import components  # noqa: PLC0415

    groups = grouped(sessions, values)
    if len(groups) < 2 or all(len(group) < 2 for group in groups):
        return None
    between, within = components([group.tolist() for group in groups])
    return between / (between + within) if between + within > 0 else None
