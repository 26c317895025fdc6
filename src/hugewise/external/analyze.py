"""From measurements made elsewhere to results: which metrics, which arms, the figures of each, the comparisons.

Which reader knows a file of measurements, and all series of several files under one set of labels.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hugewise.errors import UserError
from hugewise.external import readers
from hugewise.external.compare import AnalysisPlan, ArmFigures, ExternalResults, MetricResults, compare, grouped, usable
from hugewise.external.reader import Ask, DataError, Reader, Series, head_of
from hugewise.model.metric import Metric
from hugewise.reading import shown
from hugewise.stats.classical import Figures, figures
from hugewise.stats.method import Integers, Numbers

_LARGEST = 1e100
_LONGEST = 256  # characters of a name: a file's name has fewer, and figures cut longer ones


def recognise(path: Path, known: dict[str, Reader]) -> Reader:
    """The reader that knows the file. Raises DataError when there is none, or more than one."""
    head = head_of(path)
    if not head.strip():
        raise DataError("the file is empty", file=path, hint="name the file that the tool wrote its results to")
    found = [reader for reader in known.values() if reader.recognises(head)]
    if len(found) == 1:
        return found[0]
    if not found:
        raise DataError("its format is not known", file=path, hint=f"name it with --format, one of: {', '.join(known)}")
    raise DataError(
        f"it could be {' or '.join(reader.NAME for reader in found)}", file=path, hint="name it with --format"
    )


def load(
    paths: Sequence[Path], ask: Ask, *, arms: Sequence[str] = (), name: str | None = None
) -> dict[str, list[Series]]:
    """All series of the files by format, labelled: by `arms` when given, else by the files' labels or their names.

    `arms` holds one label for each file, or one for each arm that is found, in the order of the files. Labels of runs
    are made distinct between files; those of blocks, sessions and slots are taken as they are, so that files can share
    them. Raises DataError.
    """
    known = readers.discover()
    if name is not None and name not in known:
        raise UserError(f"--format {name}: no such format", hint=f"one of: {', '.join(known)}")
    read = []
    for path in paths:
        reader = known[name] if name is not None else recognise(path, known)
        series = reader.read(path, ask)
        if not any(np.isfinite(one.values).any() for one in series):
            raise DataError("no value in it", file=path, hint="did the tool end before it measured anything?")
        _measurable(series, path)
        for metric in dict.fromkeys(one.metric for one in series):
            _nameable("metric", metric.name, path, "give it a shorter name in the file")
            _nameable("unit", metric.unit, path, "give it a shorter name in the file")
        read.append((reader.NAME, path, series))
    found: dict[str, list[Series]] = {}
    offset = 0
    labels = _labels([(path, series) for _, path, series in read], arms)
    for (kind, path, series), names in zip(read, labels, strict=True):
        for label in names.values():
            _nameable("arm", label, path, "name each arm, in their order: --arm base --arm thp")
        top = offset
        for one in series:
            moved = one.run
            if moved is not None:
                top = max(top, offset + int(moved.max(initial=-1)) + 1)
                moved = moved + offset
            found.setdefault(kind, []).append(replace(one, arm=names[one.arm], run=moved))
        offset = top
    return found


def _nameable(what: str, name: str, path: Path, cure: str) -> None:
    """Raise DataError where a name is longer than anything that is read, drawn or typed."""
    if len(name) > _LONGEST:
        raise DataError(
            f"the {what} {shown(name)} has a name of {len(name):,} characters: at most {_LONGEST} can be shown",
            file=path,
            hint=cure,
        )


def _measurable(series: list[Series], path: Path) -> None:
    """Squares and ratios of what is measured must be numbers too. Raises DataError."""
    for one in series:
        sizes = np.abs(one.values[np.isfinite(one.values) & (one.values != 0)])
        wrong = sizes[(sizes > _LARGEST) | (sizes < 1 / _LARGEST)]
        if len(wrong):
            raise DataError(
                f"{one.metric.name} is {wrong[0]:g}, which is no measurement",
                file=path,
                hint=f"values lie between {1 / _LARGEST:g} and {_LARGEST:g}, or are 0",
            )


def _labels(read: Sequence[tuple[Path, list[Series]]], arms: Sequence[str]) -> list[dict[str | None, str]]:
    """For each file: its own labels -> those to use."""
    own = [list(dict.fromkeys(one.arm for one in series)) for _, series in read]
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
        if any(one.own_arm for one in series):
            continue
        for label in mine.values():
            if label in seen:
                raise UserError(
                    f"{seen[label]} and {path} would both be the arm {label!r}",
                    hint="say which arm each file is: --arm base --arm thp (the same name twice merges files)",
                )
            seen[label] = path
    return labels


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
    series = [_as_asked(one, ask) for found in loaded.values() for one in found]
    names = list(dict.fromkeys(one.metric.name for one in series))
    chosen = _chosen(series, names, plan)
    merged = {name: _merged([one for one in series if one.metric.name == name]) for name in chosen}
    judged = sum(max(0, len(found) - 1) for found in merged.values())
    return ExternalResults(
        files=tuple(str(path) for path in paths),
        formats=tuple(loaded),
        confidence=plan.confidence,
        margin=plan.margin,
        randomised=plan.randomised,
        budget=plan.budget,
        metrics=tuple(_metric(found, plan, judged) for found in merged.values()),
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
    primary = [name for name in names if any(one.primary for one in series if one.metric.name == name)]
    return list(plan.metrics) or primary


def _merged(series: Sequence[Series]) -> list[Series]:
    """One series for each arm, in the order in which arms appear; several files of an arm are put one after another."""
    by_arm: dict[str, list[Series]] = {}
    for one in series:
        by_arm.setdefault(str(one.arm), []).append(one)
    return [parts[0] if len(parts) == 1 else _joined(parts) for parts in by_arm.values()]


def _joined(parts: Sequence[Series]) -> Series:
    def together(name: str) -> Any:
        found = [getattr(one, name) for one in parts]
        return None if any(one is None for one in found) else np.concatenate(found)

    failed = [np.zeros(len(one.values), np.bool_) if one.failed is None else one.failed for one in parts]
    return replace(
        parts[0],
        source=", ".join(dict.fromkeys(one.source for one in parts)),
        failed=np.concatenate(failed) if any(one.failed is not None for one in parts) else None,
        notes=tuple(dict.fromkeys(note for one in parts for note in one.notes)),
        **{name: together(name) for name in ("values", "order", "block", "session", "slot", "run")},
    )


def _metric(series: Sequence[Series], plan: AnalysisPlan, judged: int) -> MetricResults:
    names = [str(one.arm) for one in series]
    baseline = plan.baseline or names[0]
    if baseline not in names:
        raise UserError(f"--baseline {baseline}: no such arm", hint=f"one of: {', '.join(names)}")
    base = series[names.index(baseline)]
    for one in series:
        if not usable(one).any():
            raise DataError(
                f"no value of {one.metric.name} under {one.arm} is left",
                file=one.source,
                hint="all are missing or failed; choose another with --metric",
            )
    arms = tuple(_arm(one, plan.confidence) for one in series)
    alpha = (1 - plan.confidence) / max(1, judged)
    return MetricResults(
        metric=base.metric,
        baseline=baseline,
        arms=arms,
        comparisons=tuple(
            compare(one, base, (mine, arms[names.index(baseline)]), plan, alpha)
            for one, mine in zip(series, arms, strict=True)
            if one is not base
        ),
    )


def _arm(series: Series, confidence: float) -> ArmFigures:
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
    """Values to draw: all, or the first, the lowest and the highest of each of 500 stretches: no peak is lost."""
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
    """The share of the variance between sessions."""
    from hugewise.stats.sessions import components  # noqa: PLC0415

    groups = grouped(sessions, values)
    if len(groups) < 2 or all(len(group) < 2 for group in groups):
        return None
    between, within = components([group.tolist() for group in groups])
    return between / (between + within) if between + within > 0 else None
