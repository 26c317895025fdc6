"""What redis and memcached have in common: one server a CPU, filled anew for every attempt, and asked for its keys.

The load generator stores every key over a connection of the measured part, lets the mix run for a while, and only then
says that it is ready: what is measured begins there, on memory that is all touched (a server is one process: its page
tables do not depend on the connection, and faults in the measured part are counted). What is stored is drawn from a
fixed seed, so that every attempt of every arm starts from the same keys and values.

The mix is that of the study of mTHP on Arm servers (Linux Plumbers Conference 2024): set:get 1:10, 95% hits, values of
64 bytes on average; p99 is that of the worst instance.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Mapping

import msgspec

from hugewise import reading
from hugewise.machine import programs as at_hand
from hugewise.machine.load_generator import Load, Timed
from hugewise.machine.roles import roles
from hugewise.model.metric import Metric
from hugewise.model.policy import Treatment
from hugewise.model.scene import Outputs, Places, Reading, Scene, Server, Step
from hugewise.model.workload import Launch, Missing, Parameter
from hugewise.workloads import _memtier, _outputs, _program
from hugewise.workloads._parameters import Values, integer, number
from hugewise.workloads._staged import StagedWorkload

__all__ = ["STEP", "KeyValue", "facts", "mean_payload", "parameters", "program", "tunables"]

# By how much glibc's heap is made to grow at once: many huge pages fit.
STEP = 64 << 20

_PAYLOAD = re.compile(r"\d+:\d+(,\d+:\d+)*")
_SET_GET = re.compile(r"\d+:\d+")
_POPULARITY = re.compile(r"uniform|zipf:[0-9.]+|gauss(:[0-9.]+)?")
_LOAD = msgspec.json.Decoder(Load)
_NUMBER = re.compile(r"[0-9]{1,18}")
_EVENT = re.compile(r'^\{"ev":"load".*$', re.MULTILINE)
_ERROR = re.compile(r'^\{"ev":"error".*$', re.MULTILINE)
_OF_TIME = ("grid", "closed_loop_rate", "lowest_rate_that_failed", "rates_tried")  # of the facts


def parameters(keys: int, *own: Parameter) -> tuple[Parameter, ...]:
    """The parameters of both servers, with `keys` as the default fill, and a server's own."""
    return (
        Parameter("keys", "integer", keys, "keys that each instance holds"),
        Parameter("instances", "integer", 0, "servers, each on a CPU of its own; 0: one for each CPU that they have"),
        Parameter("mode", "text", "throughput", "throughput (closed loop), sla (the highest rate), rate, or tune"),
        Parameter("duration", "duration", "10s", "of the measured part (mode sla and tune: of each probe in it)"),
        Parameter(
            "operations",
            "integer",
            0,
            "mode throughput: so many over all instances in place of `duration`, and no `lead`; 0: for `duration`",
        ),
        Parameter("lead", "duration", "2s", "the same mix before the measured part"),
        Parameter("connections", "integer", 8, "connections to each instance"),
        Parameter("pipeline", "integer", 1, "requests that a connection may have under way"),
        Parameter("rate", "number", 0, "mode rate: operations a second over all instances, sent on time"),
        Parameter("limit", "duration", "1ms", "mode sla: what the worst instance's p99 must stay within"),
        Parameter("set_get", "text", "1:10", "sets to gets"),
        Parameter("hit_ratio", "share", 0.95, "share of the gets that ask for a key that is there"),
        Parameter("payload", "text", "16:56,64:30,128:12,1024:2", "sizes of values in bytes, each with its weight"),
        Parameter("popularity", "text", "uniform", "which keys are asked for: uniform, zipf:S, gauss or gauss:SD"),
        Parameter("seed", "integer", 1, "of the values and of the requests"),
        Parameter("verify", "flag", False, "read every key back and compare it before the measured part"),
        Parameter("client", "text", "probe", "probe (hugewise's own), or memtier (memtier_benchmark, one instance)"),
        *own,
    )


_METRICS = (
    Metric("ops_per_s", "operations/s", "higher", "operations a second over all instances (mode sla: highest rate)"),
    Metric("p50_us", "us", "lower", "median latency; above pipeline 1 that of requests which wait for each other"),
    Metric("p90_us", "us", "lower", "90th percentile of the latency"),
    Metric("p99_us", "us", "lower", "99th percentile of the latency, of the worst instance"),
    Metric("p999_us", "us", "lower", "99.9th percentile of the latency"),
    Metric("max_us", "us", "lower", "longest latency"),
    Metric("server_cpu_us", "us", "lower", "CPU time of the servers for each operation, user and system"),
    Metric("hit_ratio", "share", "neutral", "share of the gets that found their key", emulated=True),
    Metric("client_busy", "share", "neutral", "CPU time over wall time of the client's busiest thread"),
)

_TOOLS = "/usr/share/memcached/scripts"  # where Debian puts memcached's own


def program(name: str) -> str:
    """The path of a program; its bare name where there is none."""
    return _program.find(name, _TOOLS) or name


def mean_payload(values: Values) -> float:
    """Bytes of a value on average."""
    pairs = [tuple(map(int, pair.split(":"))) for pair in str(values["payload"]).split(",")]
    return sum(size * weight for size, weight in pairs) / max(1, sum(weight for _, weight in pairs))


def tunables(treatment: Treatment, *own: str) -> dict[str, str]:
    """GLIBC_TUNABLES with the treatment's and a server's own: the variable is a single list."""
    given = treatment.environment.get("GLIBC_TUNABLES", "")
    joined = ":".join(each for each in (given, *own) if each)
    return {"GLIBC_TUNABLES": joined} if joined else {}


def facts(said: Mapping[str, str], names: Iterable[str]) -> dict[str, str | int | float]:
    """Those of what a server told of itself that are there, numbers as such."""
    found = {name: said[name] for name in names if name in said}
    return {name: int(value) if _NUMBER.fullmatch(value) else value for name, value in found.items()}


class KeyValue(StagedWorkload):
    """A server that is filled and asked. A subclass gives names, its command, how much it takes, and what it says."""

    name: str
    description: str
    parameters: tuple[Parameter, ...]
    clients = True
    metrics: tuple[Metric, ...] = _METRICS
    delivered_share = 0.9
    choices: tuple[tuple[str, Collection[str]], ...] = (
        ("mode", ("throughput", "sla", "rate", "tune")),
        ("client", ("probe", "memtier")),
    )
    least = (("keys", 1), ("instances", 0), ("connections", 1), ("pipeline", 1), ("seed", 0))
    positive = ("duration",)

    def refuses(self, treatment: Treatment, values: Values) -> str | None:
        """Values that cannot be."""
        if (reason := super().refuses(treatment, values)) is not None:
            return reason
        for name, form, example in (
            ("payload", _PAYLOAD, "16:56,64:30"),
            ("set_get", _SET_GET, "1:10"),
            ("popularity", _POPULARITY, "uniform or zipf:0.99"),
        ):
            if form.fullmatch(str(values[name])) is None:
                return f"{name} = {values[name]!r} is not as in {example}"
        if values["operations"] and (values["mode"] != "throughput" or values["client"] != "probe"):
            return 'operations are counted in mode = "throughput" by client = "probe": elsewhere, name a duration'
        mode = values["mode"]
        if mode == "rate" and number(values, "rate") <= 0:
            return "mode rate needs rate = OPERATIONS A SECOND"
        if mode == "sla" and (integer(values, "pipeline") != 1 or number(values, "limit") <= 0):
            return "mode sla is judged per operation: pipeline = 1, and a limit above 0"
        return _memtier.refuses(values) if values["client"] == "memtier" else None

    def missing(self, values: Values) -> tuple[Missing, ...]:
        """The server and what it is asked with."""
        lacking = [
            Missing(f"{name}: no such program", package)
            for name, package in self.programs
            if _program.find(name, _TOOLS) is None
        ]
        if values["client"] == "memtier" and _program.find(_memtier.PROGRAM) is None:
            lacking.append(Missing(f"{_memtier.PROGRAM}: no such program on PATH; Debian has no package of it"))
        return tuple(lacking)

    def instances(self, values: Values) -> int:
        """How many servers there are: as given, or one for each CPU that the system under test has by default."""
        given = integer(values, "instances")
        return given or len(roles(True, None, None, list(range(at_hand.cpus())))[0])

    # -- what a subclass says

    def server(self, number: int, treatment: Treatment, values: Values, places: Places) -> Server:
        """The server with this number."""
        raise NotImplementedError

    def beside(self, values: Values, places: Places) -> tuple[Step, ...]:
        """What is done when the measured part has begun."""
        return ()

    def ask(self, number: int, places: Places) -> tuple[str, ...]:
        """The command by which a server tells how it is."""
        raise NotImplementedError

    def told(self, said: list[str], values: Values) -> Reading:
        """Facts and metrics from what each server told at the end."""
        raise NotImplementedError

    # -- the attempt

    def scene(self, treatment: Treatment, values: Values, places: Places) -> Scene:
        """The servers, each on its CPU; the client that fills them, waits at the gate, and asks."""
        count = integer(values, "instances") or len(places.sut)
        servers = tuple(self.server(number, treatment, values, places) for number in range(count))
        after = tuple(
            Step(name=f"told-{number}", argv=self.ask(number, places), timeout=60.0) for number in range(count)
        )
        if values["client"] == "memtier":
            return Scene(
                servers=servers,
                warm=_memtier.fill(self.name, self.socket(places, 0), values, places),
                timed=_memtier.launch(self.name, self.socket(places, 0), values, places),
                beside=self.beside(values, places),
                after=after,
            )
        return Scene(
            servers=servers,
            timed=Launch(argv=self._load(values, places, count), micro=True, proof="live"),
            gate=True,
            beside=self.beside(values, places),
            after=after,
        )

    def socket(self, places: Places, number: int) -> str:
        """Where a server listens."""
        return f"{places.run}/{self.name}-{number}"

    def cpu(self, places: Places, number: int) -> tuple[int, ...]:
        """The one CPU of a server; with more servers than CPUs they share them in turn."""
        return (places.sut[number % len(places.sut)],)

    def _load(self, values: Values, places: Places, count: int) -> tuple[str, ...]:
        argv = ["load", "--protocol", self.name]
        for number_ in range(count):
            argv += ["--server", f"unix:{self.socket(places, number_)}"]
        argv += ["--cpus", ",".join(map(str, places.client))]
        for name in ("connections", "pipeline", "keys", "popularity", "set_get", "hit_ratio", "payload", "seed"):
            argv += [f"--{name.replace('_', '-')}", str(values[name])]
        argv += ["--preload", *(["--touch"] if values["verify"] else [])]
        if values["operations"]:  # a lead is as much work as there is time for
            return (*argv, "--operations", str(values["operations"]))
        argv += ["--lead", f"{number(values, 'lead'):g}", "--duration", f"{number(values, 'duration'):g}"]
        match values["mode"]:
            case "rate":
                argv += ["--rate", f"{number(values, 'rate'):g}"]
            case "sla":
                argv += ["--sla", f"p99:{number(values, 'limit') * 1e6:g}us"]
            case "tune":
                argv += ["--tune"]
        return tuple(argv)

    def read(self, outputs: Outputs, values: Values) -> Reading:
        """What the client measured, beside what the servers used and told."""
        every = (outputs.stdout(f"told-{number}") for number in itertools.count())
        told = self.told(list(itertools.takewhile(bool, every)), values)
        read = _memtier.read(outputs) if values["client"] == "memtier" else _probe(outputs)
        operations, fixed = read.facts.get("operations"), integer(values, "operations")
        undone = f"{operations} operations were done of {fixed}" if fixed and operations != fixed else None
        metrics, absent = dict(read.metrics), dict(read.absent)
        if values["mode"] in ("sla", "tune"):
            absent["server_cpu_us"] = "the measured part holds many rates: CPU time of one of them is not known"
        elif outputs.sut.cpu_s is None:
            absent["server_cpu_us"] = "the servers' CPU time was not counted"
        elif isinstance(operations, int) and operations:
            metrics["server_cpu_us"] = _outputs.cpu_us(outputs, operations)
        return Reading(
            metrics=metrics | dict(told.metrics),
            absent=absent | dict(told.absent),
            series=read.series,
            facts=dict(told.facts) | dict(read.facts),
            problem=read.problem or told.problem or undone,
            marks=(*read.marks, *told.marks),
            of_time=read.of_time,
        )


def _probe(outputs: Outputs) -> Reading:
    """What hugewise's own load generator said."""
    said = outputs.stdout()
    event = _EVENT.search(said)
    failure = _ERROR.search(said)
    if event is None and failure is not None:
        said = reading.json(failure[0].encode())
        raise ValueError(str(said.get("message")) if isinstance(said, dict) else reading.shown(said))
    if event is None:
        raise ValueError(f"the load generator told no result, but: {said[-300:]!r}")
    load = reading.decoded(_LOAD, event[0].encode())
    facts: dict[str, str | int | float] = {"connections": load.connections, "pipeline": load.pipeline}
    if load.stored is not None:
        facts |= {"stored_hash": load.stored.hash, "stored_bytes": load.stored.bytes, "keys": load.stored.keys}
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
        raise ValueError(f"the load generator told no timed phase, but: {event[0][:300]!r}")
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
        series=tuple(map(float, timed.per_second)) if load.search is None else (),
        facts=facts,
        marks=(*_pace(timed), *_lost(timed)),
        of_time=(*_OF_TIME, *_pace(timed)),
    )


def _latencies(timed: Timed) -> tuple[dict[str, float | None], dict[str, str]]:
    """Quantiles in microseconds, or why there are none."""
    names = ("p50_us", "p90_us", "p99_us", "p999_us", "max_us")
    if timed.latency is None or timed.worst is None:
        return dict.fromkeys(names), dict.fromkeys(names, "no operation was answered")
    all_ = timed.latency
    found = (all_.p50_ns, all_.p90_ns, timed.worst.p99_ns, all_.p999_ns, all_.max_ns)
    return {name: value / 1e3 for name, value in zip(names, found, strict=True)}, {}


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
    return {metric.name: why for metric in _METRICS if metric.name not in metrics}
