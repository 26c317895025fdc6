"""Readers of attempts' outputs that several workloads share. Pure but for the reading itself.

A value in a command's output is written `NAME,DIRECTION[,UNIT]=regex:PATTERN` or `NAME,DIRECTION[,UNIT]=json:PATH`,
where DIRECTION says which is better, `lower` or `higher`, or `neutral` (never judged).

    regex   Python's re, in multi-line mode. The number is the first group, or the whole match; the last match counts,
            of stdout, or of stderr where stdout has none
    json    keys and indexes into the one JSON value on stdout: `.end.sum_sent.bits_per_second`, `.runs[0].time`,
            `[-1]["odd key"]`; a leading `$` may stand there, as in JSONPath

A log of transactions has pgbench's form (PostgreSQL documentation, pgbench, "Per-Transaction Logging"): client_id
transaction_no time(us) script_no time_epoch(s) time_us; transactions are counted from 1, and the time is that of the
transaction's end. Reports on database servers are those of sysbench 1.0.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from hugewise import reading
from hugewise.model.metric import COMMON, OPERATIONS, WALL_US, Direction, Metric
from hugewise.model.procedure import Outputs, Part, counted
from hugewise.reading import UnreadableError, figure, shown, whole
from hugewise.workloads._staged import Values

_SATURATED = 0.95  # share of the CPU time that the client can use


def only(outputs: Outputs, name: str) -> bytes:
    """Return the content of the one file of that name in the run folder. Raises ValueError when it is not there."""
    paths = list(outputs.files(re.compile(re.escape(name))))
    if len(paths) != 1:
        raise ValueError(f"{name} is missing")
    return paths[0]


def in_turns(outputs: Outputs) -> bool:
    """Return whether the attempt took turns with others, so that only parts of the measured part count."""
    return outputs.parts != (Part(outputs.begin, outputs.end),)


def cpu_us(outputs: Outputs, work: int) -> float | None:
    """Microseconds of the system's CPU time for each of `work` units; None where not counted, or none was done."""
    cpu = outputs.sut.cpu_s
    return None if cpu is None or not work else cpu * 1e6 / work


def processors(outputs: Outputs) -> int:
    """Return the number of processors that the step `cpus` (nproc) printed. Raises UnreadableError."""
    return whole(outputs.stdout("cpus"), "the number of processors that nproc says", low=1)


def saturated(outputs: Outputs, cpus: int) -> bool:
    """Return whether the client used all the time of `cpus` CPUs in the measured part, and so limited the rate."""
    cpu = outputs.client.cpu_s
    return cpu is not None and cpu > _SATURATED * cpus * thawed(outputs)


def thawed(outputs: Outputs) -> float:
    """Return seconds of the measured part in which the attempt's programs went on, wash-outs included."""
    return sum(part.end - max(part.thawed, outputs.begin) for part in outputs.parts)


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
        check_pattern(where)
    else:
        _path(where)
    description = f"{'matched by' if kind == 'regex' else 'in JSON at'} {where}"
    return Value(Metric(name, unit, _DIRECTIONS[better], description), "regex" if kind == "regex" else "json", where)


def named_in(values: Values) -> list[Value]:
    """Parse the values that a workload's parameter `values` names. Raises ValueError with the wrong one."""
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
    """Return the metrics that the values name, and the time for each of `operations`. Raises ValueError."""
    metrics = [value.metric for value in named_in(values)]
    for at, metric in enumerate(metrics):
        if metric.name == OPERATIONS:
            metrics.insert(at if metric.better == "neutral" else at + 1, WALL_US)
            break
    return tuple(metrics)


def check_pattern(pattern: str) -> None:
    """Raise ValueError where a pattern cannot be compiled."""
    # the parser counts repeats, and recurses at each "("
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
    # re warns on the terminal that `[[` may mean something else to a later Python
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return re.compile(pattern, re.MULTILINE)


def extract(value: Value, stdout: str, stderr: str) -> float:
    """Return the number. Raises ValueError with what was looked for and how the output begins."""
    with reading.patiently(f"{value.metric.name}: regex:{value.where}"):
        found = _matched(value.where, stdout, stderr) if value.kind == "regex" else _at(value.where, stdout)
    number = _number(found)
    if number is None:
        raise ValueError(f"{value.metric.name}: {value.kind}:{value.where} found {shown(found)}, which is not a number")
    return number


def _number(found: object) -> float | None:
    # `true` is no number, though Python takes it for 1.
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
        node = reading.json(stdout.encode())
    except UnreadableError as error:
        raise ValueError(f"its output cannot be read ({error}); it begins: {stdout[:_SHOWN]!r}") from None
    done = ""
    for step, key in _path(path):
        try:
            node = node[key]
        except (KeyError, IndexError, TypeError):
            there = (
                ", ".join(key[:_SHOWN] for key in list(node)[:8])
                if isinstance(node, dict)
                else f"a {type(node).__name__}"
            )
            raise ValueError(f"{path}: nothing at {step} of {done or 'the whole'} (there is: {there})") from None
        done += step
    return node


def _path(path: str) -> list[tuple[str, str | int]]:
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


QUANTILES = (0.5, 0.95, 0.99)
UNTIMED = "no transaction began and ended within one turn"
"""Reason why there is no latency although transactions count."""

_DIGIT = re.compile(rb"[0-9]")
_LARGEST = 1e15  # microseconds of 30 years
_WAITED = 2  # the number of the transaction in which a client waits for its share of work


class MeasuredPart(msgspec.Struct, frozen=True, kw_only=True):
    """The measured part of a run whose clients' first transactions are their warm-up.

    transactions   that ended in what counts of the measured part, warm-ups not counted
    between        that ended between its begin and its end, whether they count or not: what CPU time is of
    regular        the same of the whole run
    seconds        in what counts
    latency_ms     at QUANTILES, of those that count and began after their client was last thawed; empty: there is none
    mean_ms        of the same; None: there is none
    series         how many ended in each whole second of it; empty where it has several parts
    clients        how many logged anything
    warmed_s       when the last client was through its warm-up: seconds before the measured part began
    """

    transactions: int
    between: int
    regular: int
    seconds: float
    latency_ms: tuple[float, ...]
    mean_ms: float | None
    series: tuple[float, ...]
    clients: int
    warmed_s: float


def measured(
    logs: Iterable[bytes], begin: float, end: float, parts: Sequence[Part] = (), share: int = 0
) -> MeasuredPart:
    """Read the logs of a run, one of each thread, from `begin` to `end`, UTC epoch seconds.

    `parts`: the parts of that time that count, in order and disjoint (none: all of it). `share`: transactions that each
    client had to do, after its warm-up and one in which it waited; it may have idled in more. With a share, the counted
    time ends when the first client was through, as fewer clients work from then on. Raises ValueError when there is no
    log, a line is no transaction, no transaction ended in the counted time, or a client has not done its share.
    """
    tables = [_table(log) for log in logs if log.strip()]
    if not tables:
        raise ValueError("the client left no log of its transactions")
    client, number, microseconds, ended = np.concatenate(tables, axis=1)
    parts = parts or (Part(begin, end),)
    first, regular = number == 1, number > 1
    if share:
        regular = (number > _WAITED) & (number <= _WAITED + share)
        parts = _until(_first_through(client, number, ended, share), parts)
    begins, ends, thawed = np.array([(part.begin, part.end, part.thawed) for part in parts]).T
    part = np.searchsorted(begins, ended, side="right") - 1  # the last that had begun; -1: none
    inside = regular & (part >= 0) & (ended <= ends[part])
    count = int(inside.sum())
    if count == 0:
        raise ValueError(
            f"no transaction ended in the measured part: of {len(ended)} logged, {int(first.sum())} are warm-ups, and"
            f" they ended {ended.min() - begin:+.1f} to {ended.max() - begin:+.1f} s from its begin"
        )
    # One that was frozen on its way took the time of others' turns.
    whole = microseconds[inside & (ended - microseconds * 1e-6 >= thawed[part])]
    return MeasuredPart(
        transactions=count,
        between=int((regular & (ended >= begin) & (ended <= end)).sum()),
        regular=int(regular.sum()),
        seconds=counted(parts),
        latency_ms=tuple(float(value) for value in np.quantile(whole, QUANTILES) / 1e3) if whole.size else (),
        mean_ms=float(whole.mean() / 1e3) if whole.size else None,
        series=_series(ended[inside], parts[0]) if len(parts) == 1 else (),
        clients=len(np.unique(client)),
        warmed_s=float(begin - ended[first].max()) if first.any() else float("-inf"),
    )


def _first_through(
    client: NDArray[np.float64], number: NDArray[np.float64], ended: NDArray[np.float64], share: int
) -> float:
    last = number == _WAITED + share
    if lazy := sorted(set(client.tolist()) - set(client[last].tolist())):
        done = max(0, int(number[client == lazy[0]].max()) - _WAITED)
        raise ValueError(f"client {lazy[0]:g} has done {done} of its {share} transactions")
    return float(ended[last].min())


def _until(moment: float, parts: Sequence[Part]) -> tuple[Part, ...]:
    ended = tuple(msgspec.structs.replace(part, end=min(part.end, moment)) for part in parts if part.begin < moment)
    if not ended:
        raise ValueError("a client had done its share before anything counted: give it more transactions")
    return ended


def _series(ended: NDArray[np.float64], part: Part) -> tuple[float, ...]:
    seconds = max(1, round(part.end - part.begin))
    bins = np.bincount(np.floor(ended - part.begin).astype(np.int64), minlength=seconds)
    return tuple(float(each) for each in bins[:seconds])


def _table(log: bytes) -> NDArray[np.float64]:
    if not log.isascii() or _DIGIT.search(log) is None:  # blanks that are none in ASCII would be a log without rows
        raise ValueError(
            "the log of transactions holds a line that is no transaction: it is no ASCII text with numbers"
        )
    try:
        rows = np.loadtxt(io.BytesIO(log), usecols=(0, 1, 2, 4, 5), ndmin=2, dtype=np.float64, comments=None)
    except (ValueError, IndexError, OverflowError) as error:
        raise ValueError(f"the log of transactions holds a line that is no transaction: {error}") from None
    if not ((rows >= 0) & (rows < _LARGEST)).all():
        raise ValueError("the log of transactions holds a line whose numbers are none of a transaction")
    client, number, microseconds, seconds, parts = rows.T
    return np.stack([client, number, microseconds, seconds + parts * 1e-6])


_SECOND = re.compile(r"^\[ \d+s \] thds: \d+ tps: ([\d.]+) qps: [\d.]+ ", re.MULTILINE)
_TRANSACTIONS = re.compile(r"^ +transactions: +(\d+) +\(", re.MULTILINE)
_QUERIES = re.compile(r"^ +queries: +(\d+) +\(", re.MULTILINE)
_ERRORS = re.compile(r"^ +ignored errors: +(\d+) +\(", re.MULTILINE)
_RECONNECTS = re.compile(r"^ +reconnects: +(\d+) +\(", re.MULTILINE)
_TIME = re.compile(r"^ +total time: +([\d.]+)s$", re.MULTILINE)
_AVERAGE = re.compile(r"^ +avg: +([\d.]+)$", re.MULTILINE)
_QUANTILE = re.compile(r"^ +\d+th percentile: +([\d.]+)$", re.MULTILINE)


class OltpRun(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run: counts, seconds, milliseconds of a transaction, and `series`: transactions in each second."""

    transactions: int
    queries: int
    errors: int
    reconnects: int
    time_s: float
    average_ms: float
    quantile_ms: float
    series: tuple[float, ...]


def read(said: str) -> OltpRun:
    """Parse the report of a run. Raises ValueError naming the first line that is not there."""

    def one(pattern: re.Pattern[str], what: str) -> re.Match[str]:
        match = pattern.search(said)
        if match is None:
            raise ValueError(f"sysbench's report has no {what}: {said.strip()[-300:]!r}")
        return match

    def count(pattern: re.Pattern[str], what: str) -> int:
        return whole(one(pattern, what)[1], what)

    time = figure(one(_TIME, "total time")[1], "the total time")
    if time == 0:
        raise ValueError("sysbench's report says that the run took no time")
    return OltpRun(
        transactions=count(_TRANSACTIONS, "transactions"),
        queries=count(_QUERIES, "queries"),
        errors=count(_ERRORS, "ignored errors"),
        reconnects=count(_RECONNECTS, "reconnects"),
        time_s=time,
        average_ms=figure(one(_AVERAGE, "average latency")[1], "the average latency"),
        quantile_ms=figure(one(_QUANTILE, "percentile")[1], "the percentile"),
        series=tuple(figure(match[1], "tps") for match in _SECOND.finditer(said)),
    )
