"""What hugewise's own load generator says of a key-value store: its event `load`, as metrics and facts. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

import msgspec

from hugewise import reading
from hugewise.machine.load_generator import Load, Timed
from hugewise.model.metric import Metric
from hugewise.model.sampled import Buckets
from hugewise.model.scene import Outputs, Reading

__all__ = ["ASKED", "FILL", "METRICS", "read"]

FILL = "fill"
"""The step that fills the servers where one client visits those of all arms."""
ASKED = "operations_with_wash_out"
"""The fact that says how many operations the servers' CPU time is of, where some do not count."""

_LOAD = msgspec.json.Decoder(Load)
_EVENT = re.compile(r'^\{"ev":"load".*$', re.MULTILINE)
_LEAST = {"p999_us": 10_000, "p9999_us": 100_000}  # operations, so that ten are slower
_ERROR = re.compile(r'^\{"ev":"error".*$', re.MULTILINE)
_OF_TIME = ("grid", "closed_loop_rate", "lowest_rate_that_failed", "rates_tried")  # of the facts

METRICS = (
    Metric("ops_per_s", "operations/s", "higher", "operations a second over all instances (mode sla: highest rate)"),
    Metric("p50_us", "us", "lower", "median latency; above pipeline 1 that of requests which wait for each other"),
    Metric("p90_us", "us", "lower", "90th percentile of the latency"),
    Metric("p99_us", "us", "lower", "99th percentile of the latency, of the worst instance"),
    Metric("p999_us", "us", "lower", "99.9th percentile of the latency; of 10,000 operations or more"),
    Metric("p9999_us", "us", "lower", "99.99th percentile of the latency; of 100,000 operations or more"),
    Metric("max_us", "us", "lower", "longest latency"),
    Metric("server_cpu_us", "us", "lower", "CPU time of the servers for each operation, user and system"),
    Metric("hit_ratio", "share", "neutral", "share of the gets that found their key", emulated=True),
    Metric("client_busy", "share", "neutral", "CPU time over wall time of the client's busiest thread"),
)


def _told(said: str) -> Load:
    """The event of hugewise's own load generator. Raises ValueError with what it said instead."""
    event = _EVENT.search(said)
    failure = _ERROR.search(said)
    if event is None and failure is not None:
        error = reading.json(failure[0].encode())
        raise ValueError(str(error.get("message")) if isinstance(error, dict) else reading.shown(error))
    if event is None:
        raise ValueError(f"the load generator told no result, but: {said[-300:]!r}")
    return reading.decoded(_LOAD, event[0].encode())


def read(outputs: Outputs) -> Reading:
    """What hugewise's own load generator said. In turns it has filled the servers before, in a step of its own."""
    load = _told(outputs.stdout())
    turns = None if load.timed is None else load.timed.turns
    stored = load.stored if turns is None else _told(outputs.stdout(FILL)).stored
    facts: dict[str, str | int | float] = {"connections": load.connections, "pipeline": load.pipeline}
    if stored is not None:
        facts |= {"stored_hash": stored.hash, "stored_bytes": stored.bytes, "keys": stored.keys}
    if turns is not None:
        facts |= {"turns": turns.count, "slice_operations": turns.slice_operations, ASKED: turns.operations}
    if load.tuning is not None:
        best = next(
            point
            for point in load.tuning.points
            if (point.connections, point.pipeline) == (load.tuning.connections, load.tuning.pipeline)
        )
        grid = [f"{each.connections}x{each.pipeline}: {each.rate:.0f}/s" for each in load.tuning.points]
        facts |= {"connections": best.connections, "pipeline": best.pipeline, "grid": ", ".join(grid)}
        metrics: dict[str, float | None] = {"ops_per_s": best.rate, "p99_us": best.p99_ns / 1e3}
        metrics["client_busy"] = best.busy
        why = "a pilot over a grid of connections and pipelines: only the chosen point is told"
        return Reading(metrics=metrics, absent=_others(metrics, why), facts=facts, of_time=_OF_TIME)
    timed = load.timed
    if timed is None:
        raise ValueError(f"the load generator told no timed phase, but: {outputs.stdout()[-300:]!r}")
    metrics, absent = _latencies(timed)
    metrics |= {"ops_per_s": timed.achieved_rate, "client_busy": timed.client.busy}
    metrics["hit_ratio"] = timed.hits / timed.gets if timed.gets else None
    facts |= {"operations": timed.operations, "lost_keys": timed.lost}
    if timed.sequence is not None:
        facts["sequence_hash"] = timed.sequence
    if load.search is not None:
        found = load.search
        facts |= {"closed_loop_rate": found.capacity, "rates_tried": len(found.steps)}
        if found.failed is not None:
            facts["lowest_rate_that_failed"] = found.failed
        metrics["ops_per_s"] = found.rate
        if found.rate is None:
            metrics = dict.fromkeys(metrics)
            absent = dict.fromkeys(metrics, f"at no rate was p99 within {found.limit_ns / 1e6:g} ms")
    return Reading(
        metrics={name: value for name, value in metrics.items() if value is not None},
        absent=absent,
        series=tuple(map(float, timed.per_second)) if load.search is None and turns is None else (),
        facts=facts,
        marks=(*_pace(timed), *_lost(timed)),
        of_time=(*_OF_TIME, *_pace(timed)),
    )


def _latencies(timed: Timed) -> tuple[dict[str, float | None], dict[str, str]]:
    """Quantiles in microseconds, or why there are none."""
    names = ("p50_us", "p90_us", "p99_us", "p999_us", "p9999_us", "max_us")
    if timed.latency is None or timed.worst is None:
        return dict.fromkeys(names), dict.fromkeys(names, "no operation was answered")
    all_ = timed.latency
    found: dict[str, float | None] = {
        "p50_us": all_.p50_ns / 1e3,
        "p90_us": all_.p90_ns / 1e3,
        "p99_us": timed.worst.p99_ns / 1e3,
        "p999_us": all_.p999_ns / 1e3 if all_.count >= _LEAST["p999_us"] else None,
        "p9999_us": _quantile(timed.buckets, 0.9999) if all_.count >= _LEAST["p9999_us"] else None,
        "max_us": all_.max_ns / 1e3,
    }
    few = f"of {all_.count:,} operations, too few are slower: it takes"
    why = {name: f"{few} {least:,}" for name, least in _LEAST.items()}
    if timed.buckets is None:
        why["p9999_us"] = "the probe did not tell its whole histogram"
    return found, {name: why[name] for name, value in found.items() if value is None}


def _quantile(buckets: Buckets | None, share: float) -> float | None:
    """The smallest value with at least this share of the operations at or below it, in microseconds."""
    if buckets is None:
        return None
    wanted, seen = math.ceil(share * sum(buckets.counts) - 1e-9), 0
    for up_to, count in zip(buckets.up_to_ns, buckets.counts, strict=True):
        seen += count
        if seen >= wanted:
            return up_to / 1e3
    return None


def _pace(timed: Timed) -> Iterable[str]:
    """What makes the figures those of something else than the servers."""
    if timed.client.saturated:
        yield f"the client was busy for {timed.client.busy:.0%} of the time: it may be what was measured"
    if timed.rate_met is False and timed.asked_rate is not None:
        yield f"{timed.achieved_rate:,.0f} operations/s were reached of {timed.asked_rate:,.0f} asked for"


def _lost(timed: Timed) -> Iterable[str]:
    if timed.lost:
        yield f"{timed.lost:,} gets missed a key that had been stored: the server evicted it"


def _others(metrics: Mapping[str, object], why: str) -> dict[str, str]:
    return {metric.name: why for metric in METRICS if metric.name not in metrics}
