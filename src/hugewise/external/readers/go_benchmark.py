"""Go's benchmark text (`go test -bench . -count 20`), the input of benchstat: one value for each -count.

Format: golang.org/design/14313-benchmark-format: lines of benchmarks, of their configuration (`pkg: ...`), and of
units (`Unit ops/sec better=higher`). benchstat's own output holds medians, not the values.
"""

from __future__ import annotations

import re
from pathlib import Path

from hugewise.external.reader import Ask, DataError, Rows, Series, readable, text_of, unit_and_direction
from hugewise.model.metric import Direction, Metric
from hugewise.reading import figure, shown

NAME = "go-benchmark"

_BENCHSTAT = re.compile(r"sec/op\s+(vs base|CI|,)|,sec/op,CI|old time/op\s+new time/op|│\s+sec/op", re.MULTILINE)
_CURE = "give the output of: go test -run=- -bench=. -count=20"
_NOTE = (
    "The values of one go test are taken one after the other by one process, each a mean over its iterations: they "
    "share its memory layout, and the spread within them is averaged away."
)
_SETTING = re.compile(r"([a-z][^\sA-Z:]*):(?:[ \t]+(.*))?")
_UNIT = re.compile(r"Unit\s+(\S+)\s+(.*)")
_MACHINE = ("pkg", "goos", "goarch", "cpu")
_KNOWN: dict[str, Direction] = {"sec/op": "lower", "B/s": "higher", "B/op": "lower", "allocs/op": "lower"}


def recognises(head: bytes) -> bool:
    """Benchmark lines, or a table of benchstat (which is refused with the cure)."""
    text = head.decode("utf-8", "replace")
    return any(map(_words, text.splitlines()[:200])) or _BENCHSTAT.search(text) is not None


def read(path: Path, ask: Ask) -> list[Series]:
    """Return a series for each benchmark and unit."""
    del ask  # the file says it all
    gathered = Rows(path)
    setting: dict[str, str] = {}
    found: list[tuple[int, list[str], dict[str, str]]] = []
    better: dict[str, Direction] = {}
    text = text_of(path)
    for number, line in enumerate(text.splitlines(), 1):
        if (match := _UNIT.fullmatch(line)) is not None:
            _declared(better, match, path, number)
        elif (match := _SETTING.fullmatch(line)) is not None:
            setting = {**setting, match[1]: (match[2] or "").strip()}
        elif line.startswith("Benchmark"):
            words = _words(line)
            if words:
                found.append((number, words, setting))
            elif len(line.split()) > 1:  # not a name alone, which is printed before a benchmark that logs
                gathered.leave("the benchmark prints between its name and its result; benchstat passes it over too")
    if not found:
        hint = "benchstat's tables hold medians; " + _CURE if _BENCHSTAT.search(text) else _CURE
        raise DataError("no values of single runs", file=path, hint=hint)
    varied = _varied(found)
    counts: dict[str, int] = {}
    for number, words, settings in found:
        told_apart = ((key, settings.get(key, "")) for key in varied[words[0]])
        prefix = "".join(f"{value} " if key == "pkg" else f"{key}={value} " for key, value in told_apart)
        name = prefix + words[0].removeprefix("Benchmark")
        if len(set(words[3::2])) < len(words[3::2]):
            raise DataError(
                f"Benchmark{name} has a unit twice in one result", file=path, where=f"line {number}", hint=_CURE
            )
        for value, unit in zip(words[2::2], words[3::2], strict=True):
            with readable(path, _CURE, f"line {number}"):
                value_found = figure(value, f"the figure before {shown(unit)}")
            tidy = _tidy(unit)
            direction = better.get(tidy) or _KNOWN.get(tidy) or unit_and_direction(unit)[1]
            metric = Metric(f"{name} {unit}", unit, direction, f"{unit} of Benchmark{name}, each a mean")
            counts[metric.name] = counts.get(metric.name, -1) + 1
            same = {key: value for key, value in settings.items() if key in _MACHINE and key not in varied[words[0]]}
            gathered.add(metric, value_found, line=number, run=counts[metric.name], settings=same)
    gathered.note(_NOTE)
    units = [unit for _, words, _ in found for unit in words[3::2]]
    first = "ns/op" if "ns/op" in units else units[0]
    return gathered.series(primary=lambda name: name.endswith(f" {first}"), cure=_CURE)


def _declared(better: dict[str, Direction], match: re.Match[str], path: Path, number: int) -> None:
    unit = _tidy(match[1])
    for pair in match[2].split():
        key, _, value = pair.partition("=")
        if key != "better" or value not in ("higher", "lower"):
            continue
        if better.get(unit, value) != value:
            raise DataError(
                f"better={value} of the unit {shown(match[1])}, which was better={better[unit]} before",
                file=path,
                where=f"line {number}",
                hint="leave one of the two Unit lines in a copy of the file",
            )
        better[unit] = "higher" if value == "higher" else "lower"


def _varied(found: list[tuple[int, list[str], dict[str, str]]]) -> dict[str, list[str]]:
    seen: dict[str, list[dict[str, str]]] = {}
    for _, words, settings in found:
        seen.setdefault(words[0], []).append(settings)
    return {
        name: [
            key
            for key in dict.fromkeys(key for one in of_name for key in one)
            if len({one.get(key) for one in of_name}) > 1
        ]
        for name, of_name in seen.items()
    }


def _tidy(unit: str) -> str:
    return re.sub(r"^ns(?=/|$)|(?<=-)ns(?=/|$)", "sec", unit.replace("MB/s", "B/s"))


def _words(line: str) -> list[str]:
    words = line.split()
    paired = len(words) >= 4 and len(words) % 2 == 0
    return words if paired and line.startswith("Benchmark") and words[1].isdecimal() else []
