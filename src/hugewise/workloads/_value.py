"""Numbers in what a command said: by regular expression, or by a path into JSON. Pure.

A value is written `NAME,DIRECTION[,UNIT]=regex:PATTERN` or `NAME,DIRECTION[,UNIT]=json:PATH`, where DIRECTION says
which is better, `lower` or `higher`, or `neutral` (never judged).

    regex   Python's re, in multi-line mode. The number is the first group, or the whole match; the last match counts,
            of stdout, or of stderr where stdout has none
    json    keys and indexes into the one JSON value on stdout: `.end.sum_sent.bits_per_second`, `.runs[0].time`,
            `[-1]["odd key"]`; a leading `$` may stand there, as in JSONPath
"""

from __future__ import annotations

import re
import warnings
from typing import Any, Literal

import msgspec

from hugewise import reading
from hugewise.model.metric import COMMON, OPERATIONS, WALL_US, Direction, Metric
from hugewise.reading import UnreadableError, shown
from hugewise.workloads._parameters import Values

__all__ = ["EXAMPLE", "Value", "extract", "metrics_of", "named_in", "parse"]

EXAMPLE = "rate,higher,MiB/s=regex:([0-9.]+) MiB/s"

_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_DIRECTIONS: dict[str, Direction] = {"lower": "lower", "higher": "higher", "neutral": "neutral"}
_TAKEN = {metric.name for metric in (*COMMON, WALL_US)}
_STEP = re.compile(r"""\.(?P<key>[A-Za-z_][\w-]*)|\[(?P<index>-?\d{1,18})\]|\[(?P<quoted>"(?:[^"\\]|\\.)*")\]""")
_SHOWN = 200  # characters of an output that an error shows


class Value(msgspec.Struct, frozen=True):
    """A metric, and where its number is found."""

    metric: Metric
    kind: Literal["regex", "json"]
    where: str


def parse(text: str) -> Value:
    """Read a value as it is written. Raises ValueError, with how it is written."""
    head, found, rest = text.partition("=")
    kind, _, where = rest.partition(":")
    words = [word.strip() for word in head.split(",", 2)]
    if not found or kind not in ("regex", "json") or not where or len(words) < 2:
        raise ValueError(f"write NAME,DIRECTION,UNIT=regex:PATTERN or ...=json:PATH, for example {EXAMPLE!r}")
    name, better, unit = words[0], words[1], words[2] if len(words) > 2 else ""
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"the name {name!r} is not of small letters, digits and _ (at most 40)")
    if name in _TAKEN:
        raise ValueError(f"every attempt has a metric {name} of its own: choose another name")
    if better not in _DIRECTIONS:
        raise ValueError(f"{better!r} says not which direction is good: lower, higher or neutral")
    if kind == "regex":
        _check_pattern(where)
    else:
        _path(where)
    description = f"{'matched by' if kind == 'regex' else 'in JSON at'} {where}"
    return Value(Metric(name, unit, _DIRECTIONS[better], description), "regex" if kind == "regex" else "json", where)


def named_in(values: Values) -> list[Value]:
    """Those that a workload's parameter `values` names. Raises ValueError, which names the one that is wrong."""
    given = values.get("values", ())
    assert isinstance(given, tuple)
    found: list[Value] = []
    for text in given:
        try:
            value = parse(text)
        except ValueError as error:
            raise ValueError(f"{text!r}: {error}") from None
        if value.metric.name in {other.metric.name for other in found}:
            raise ValueError(f"{text!r}: there is a value {value.metric.name} already")
        found.append(value)
    return found


def metrics_of(values: Values) -> tuple[Metric, ...]:
    """The metrics that the values name; beside `operations` the time for each, which is judged where these are not.

    Raises ValueError, which names the one that is wrong.
    """
    found = [value.metric for value in named_in(values)]
    for at, metric in enumerate(found):
        if metric.name == OPERATIONS:
            found.insert(at if metric.better == "neutral" else at + 1, WALL_US)
            break
    return tuple(found)


def _check_pattern(pattern: str) -> None:
    """Raises ValueError where Python's `re` takes it for none: it also counts repeats, and calls itself at each (."""
    cure = "write a simpler one"
    try:
        with reading.patiently("reading the pattern"):
            _compiled(pattern)
    except re.error as error:
        raise ValueError(f"{shown(pattern)} is not a regular expression: {error}") from None
    except OverflowError:
        raise ValueError(f"{shown(pattern)} repeats more often than a pattern can: {cure}") from None
    except RecursionError:
        raise ValueError(f"{shown(pattern)} is nested too deeply: {cure}") from None


def _compiled(pattern: str) -> re.Pattern[str]:
    """In multi-line mode. Of `[[` re warns that it may mean something else to a later Python, on the terminal."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return re.compile(pattern, re.MULTILINE)


def extract(value: Value, stdout: str, stderr: str) -> float:
    """The number. Raises ValueError with what was looked for and how the output begins."""
    with reading.patiently(f"{value.metric.name}: regex:{value.where}"):
        found = _matched(value.where, stdout, stderr) if value.kind == "regex" else _at(value.where, stdout)
    number = _number(found)
    if number is None:
        raise ValueError(f"{value.metric.name}: {value.kind}:{value.where} found {shown(found)}, which is not a number")
    return number


def _number(found: object) -> float | None:
    """Finite numbers, also where they are written as text; `true` is none, though Python takes it for 1."""
    try:
        return reading.figure(found) if isinstance(found, str) else reading.number(found)
    except UnreadableError:
        return None


def _matched(pattern: str, stdout: str, stderr: str) -> str:
    for said in (stdout, stderr):
        last = None
        for last in _compiled(pattern).finditer(said):  # noqa: B007  (the last one)
            pass
        if last is not None:
            return (last[1] if last.re.groups else last[0]) or ""
    shown = stdout if stdout.strip() else stderr
    raise ValueError(f"nothing in its output matches {pattern!r}; it begins: {shown[:_SHOWN]!r}")


def _at(path: str, stdout: str) -> Any:
    try:
        found = reading.json(stdout.encode())
    except UnreadableError as error:
        raise ValueError(f"its output cannot be read ({error}); it begins: {stdout[:_SHOWN]!r}") from None
    done = ""
    for step, key in _path(path):
        try:
            found = found[key]
        except (KeyError, IndexError, TypeError):
            there = (
                ", ".join(key[:_SHOWN] for key in list(found)[:8])
                if isinstance(found, dict)
                else f"a {type(found).__name__}"
            )
            raise ValueError(f"{path}: nothing at {step} of {done or 'the whole'} (there is: {there})") from None
        done += step
    return found


def _path(path: str) -> list[tuple[str, str | int]]:
    """The steps of a path: as written, and as key or index. Raises ValueError."""
    steps: list[tuple[str, str | int]] = []
    at = 1 if path.startswith("$") else 0
    while at < len(path):
        step = _STEP.match(path, at)
        if step is None:
            raise ValueError(f"{path!r} is not a path of .key and [index] steps: {path[at:]!r} is neither")
        if step["index"] is not None:
            steps.append((step[0], int(step["index"])))
        else:
            steps.append((step[0], step["key"] or str(reading.json(step["quoted"].encode()))))
        at = step.end()
    return steps
