"""Common parts of redis and memcached: one server a CPU, filled anew for every attempt, then asked for its keys.

hugewise's own load generator stores every key over a connection of the measured part, lets the mix run for a while, and
only then says that it is ready: what is measured begins there, on memory that is all touched (a server is one process:
its page tables do not depend on the connection, and faults in the measured part are counted). What is stored is drawn
from a fixed seed, so that every attempt of every arm starts from the same keys and values.

The mix is that of the study of mTHP on Arm servers (Linux Plumbers Conference 2024): set:get 1:10, 95% hits, values of
64 bytes on average; p99 is that of the worst instance.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from hugewise import reading
from hugewise.machine import programs as at_hand
from hugewise.machine.machine import roles
from hugewise.machine.probe import Load, Timed
from hugewise.model.metric import Metric
from hugewise.model.over_time import Buckets
from hugewise.model.policy import Treatment
from hugewise.model.procedure import Outputs, Places, Procedure, Reading, RemoteEndpoint, Server, Step, Write
from hugewise.model.workload import Launch, Missing, Parameter
from hugewise.workloads import _outputs, _staged
from hugewise.workloads._staged import PartedWorkload, Values, float_value, integer

FILL = "fill"
"""The step that fills the servers where one client visits those of all arms."""
ASKED = "operations_with_wash_out"
"""The fact that says how many operations the servers' CPU time is of, where some do not count."""

_LOAD = msgspec.json.Decoder(Load)
_EVENT = re.compile(r'^\{"ev":"load".*$', re.MULTILINE)
_LEAST = {"p999_us": 10_000, "p9999_us": 100_000}  # operations, so that ten are slower
_ERROR = re.compile(r'^\{"ev":"error".*$', re.MULTILINE)
_OF_TIME = ("closed_loop_rate", "lowest_rate_that_failed", "rates_tried")  # facts that depend on time

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
    event = _EVENT.search(said)
    failure = _ERROR.search(said)
    if event is None and failure is not None:
        error = reading.json(failure[0].encode())
        raise ValueError(str(error.get("message")) if isinstance(error, dict) else reading.shown(error))
    if event is None:
        raise ValueError(f"the load generator told no result, but: {said[-300:]!r}")
    return reading.decoded(_LOAD, event[0].encode())


def read_load(outputs: Outputs) -> Reading:
    """Read the report of hugewise's own load generator. In turns a step before has filled the servers."""
    load = _told(outputs.stdout())
    turns = None if load.timed is None else load.timed.turns
    stored = load.stored if turns is None else _told(outputs.stdout(FILL)).stored
    facts: dict[str, str | int | float] = {"connections": load.connections, "pipeline": load.pipeline}
    if stored is not None:
        facts |= {"stored_hash": stored.hash, "stored_bytes": stored.bytes, "keys": stored.keys}
    if turns is not None:
        facts |= {"turns": turns.count, "slice_operations": turns.slice_operations, ASKED: turns.operations}
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
        search = load.search
        facts |= {"closed_loop_rate": search.capacity, "rates_tried": len(search.steps)}
        if search.failed is not None:
            facts["lowest_rate_that_failed"] = search.failed
        metrics["ops_per_s"] = search.rate
        if search.rate is None:
            metrics = dict.fromkeys(metrics)
            absent = dict.fromkeys(metrics, f"at no rate was p99 within {search.limit_ns / 1e6:g} ms")
    return Reading(
        metrics={name: value for name, value in metrics.items() if value is not None},
        absent=absent,
        series=tuple(map(float, timed.per_second)) if load.search is None and turns is None else (),
        facts=facts,
        marks=(*_pace(timed), *_lost(timed)),
        of_time=(*_OF_TIME, *_pace(timed)),
    )


def _latencies(timed: Timed) -> tuple[dict[str, float | None], dict[str, str]]:
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
    if buckets is None:
        return None
    wanted, seen = math.ceil(share * sum(buckets.counts) - 1e-9), 0
    for up_to, count in zip(buckets.up_to_ns, buckets.counts, strict=True):
        seen += count
        if seen >= wanted:
            return up_to / 1e3
    return None


def _pace(timed: Timed) -> Iterable[str]:
    if timed.client.saturated:
        yield f"the client was busy for {timed.client.busy:.0%} of the time: it may be what was measured"
    if timed.rate_met is False and timed.asked_rate is not None:
        yield f"{timed.achieved_rate:,.0f} operations/s were reached of {timed.asked_rate:,.0f} asked for"


def _lost(timed: Timed) -> Iterable[str]:
    if timed.lost:
        yield f"{timed.lost:,} gets missed a key that had been stored: the server evicted it"


GUARD = "guard"
"""The file in which a load generator elsewhere has the servers' password."""

# Step by which glibc's heap grows: many huge pages fit.
STEP = 64 << 20

_PAYLOAD = re.compile(r"\d+:\d+(,\d+:\d+)*")
_SET_GET = re.compile(r"\d+:\d+")
_POPULARITY = re.compile(r"uniform|zipf:[0-9.]+|gauss(:[0-9.]+)?")
_NUMBER = re.compile(r"[0-9]{1,18}")
_PATIENCE = 3600.0
_NOT_IN_TURNS = {
    "sla": "searches a rate with probes of a whole duration each",
    "rate": "sends requests on time, and has none to send them in while others have their turn",
}


def parameters(keys: int, *own: Parameter) -> tuple[Parameter, ...]:
    """Return the parameters of both servers, with `keys` as the default fill, and a server's own."""
    return (
        Parameter("keys", "integer", keys, "keys that each instance holds"),
        Parameter("instances", "integer", 0, "servers, each on a CPU of its own; 0: one for each CPU that they have"),
        Parameter("mode", "text", "throughput", "throughput (closed loop), sla (the highest rate), or rate"),
        Parameter("duration", "duration", "10s", "of the measured part (mode sla: of each probe in it)"),
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
        *own,
    )


_TOOLS = "/usr/share/memcached/scripts"  # Debian's folder of memcached's own tools


def program(name: str) -> str:
    """Return the path of a program; its bare name where there is none."""
    return _staged.find(name, _TOOLS) or name


def mean_payload(values: Values) -> float:
    """Return bytes of a value on average."""
    pairs = [tuple(map(int, pair.split(":"))) for pair in str(values["payload"]).split(",")]
    return sum(size * weight for size, weight in pairs) / max(1, sum(weight for _, weight in pairs))


def tunables(treatment: Treatment, *own: str) -> dict[str, str]:
    """GLIBC_TUNABLES with the treatment's and a server's own: the variable is a single list."""
    given = treatment.environment.get("GLIBC_TUNABLES", "")
    joined = ":".join(each for each in (given, *own) if each)
    return {"GLIBC_TUNABLES": joined} if joined else {}


def facts(said: Mapping[str, str], names: Iterable[str]) -> dict[str, str | int | float]:
    """Return the facts of `names` that a server reported, numbers as numbers."""
    named = {name: said[name] for name in names if name in said}
    return {name: int(value) if _NUMBER.fullmatch(value) else value for name, value in named.items()}


class KeyValue(PartedWorkload):
    """A server that is filled and asked. A subclass gives names, its command, how much it takes, and what it says."""

    name: str
    description: str
    parameters: tuple[Parameter, ...]
    clients = True
    metrics: tuple[Metric, ...] = METRICS
    delivered_share = 0.9
    choices: tuple[tuple[str, Collection[str]], ...] = (("mode", ("throughput", "sla", "rate")),)
    least = (("keys", 1), ("instances", 0), ("connections", 1), ("pipeline", 1), ("seed", 0))
    positive = ("duration",)
    of_servers: Collection[str] = ()

    def refuses(self, treatment: Treatment, values: Values) -> str | None:
        if (reason := super().refuses(treatment, values)) is not None:
            return reason
        for name, form, example in (
            ("payload", _PAYLOAD, "16:56,64:30"),
            ("set_get", _SET_GET, "1:10"),
            ("popularity", _POPULARITY, "uniform or zipf:0.99"),
        ):
            if form.fullmatch(str(values[name])) is None:
                return f"{name} = {values[name]!r} is not as in {example}"
        if values["operations"] and values["mode"] != "throughput":
            return 'operations are counted in mode = "throughput": elsewhere, name a duration'
        mode = values["mode"]
        if mode == "rate" and float_value(values, "rate") <= 0:
            return "mode rate needs rate = OPERATIONS A SECOND"
        if mode == "sla" and (integer(values, "pipeline") != 1 or float_value(values, "limit") <= 0):
            return "mode sla is judged per operation: pipeline = 1, and a limit above 0"
        return None

    def stand_ins(self, values: Values) -> tuple[str, ...]:
        return ("hugewise's own load generator in place of memtier_benchmark",)

    def missing(self, values: Values) -> tuple[Missing, ...]:
        return tuple(
            Missing(f"{name}: no such program", package)
            for name, package in self.programs
            if _staged.find(name, _TOOLS) is None
        )

    def instances(self, values: Values) -> int:
        given = integer(values, "instances")
        return given or len(roles(True, None, None, list(range(at_hand.cpus())))[0])

    # -- a client on a host of its own

    def far_ports(self, values: Values, places: Places) -> int:
        return _count(values, places)

    def guards(self, far: RemoteEndpoint) -> tuple[Write, ...]:
        return ()

    # -- a subclass's part

    def server(self, number: int, treatment: Treatment, values: Values, places: Places) -> Server:
        raise NotImplementedError

    def beside(self, values: Values, places: Places) -> tuple[Step, ...]:
        return ()

    def statistics_command(self, number: int, places: Places) -> tuple[str, ...]:
        raise NotImplementedError

    def told(self, said: list[str], values: Values) -> Reading:
        raise NotImplementedError

    def statistics_stdin(self, places: Places) -> str | None:
        """Return the file of `statistics_command`, where its words must not be seen."""
        return None

    # -- turns

    def turns_refused(self, values: Values) -> str | None:
        if why := _NOT_IN_TURNS.get(str(values["mode"])):
            return f"mode = {values['mode']!r} {why}"
        if values["operations"]:
            return "operations are given, and turns have as many as fit into a slice: name a duration"
        if float_value(values, "lead") <= 0:
            return "turns are sized by what was done in the lead: lead must be above 0"
        return None

    def visited(self, values: Values) -> bool:
        # the load generator asks the servers of all arms
        return True

    def fill(self, values: Values, places: Places) -> tuple[Step, ...]:
        argv = (*self._generator(values, places, self._addresses(values, places)), *_filling(values))
        return (Step(name=FILL, argv=argv, micro=True, expects='"ev":"load"', timeout=_PATIENCE),)

    def visit(self, values: Values, places: Sequence[Places], turns: str, slice_s: float, wash_out: float) -> Launch:
        addresses = [address for place in places for address in self._addresses(values, place)]
        argv = (
            *self._generator(values, places[0], addresses),
            *("--groups", str(len(places)), "--turns", turns),
            *("--slice", f"{slice_s:g}", "--wash-out", f"{wash_out:g}", "--lead", f"{float_value(values, 'lead'):g}"),
        )
        return Launch(argv=argv, micro=True, proof="live")

    # -- the attempt

    def procedure(self, treatment: Treatment, values: Values, places: Places) -> Procedure:
        count = _count(values, places)
        servers = tuple(self.server(number, treatment, values, places) for number in range(count))
        after = tuple(
            Step(
                name=f"told-{number}",
                argv=self.statistics_command(number, places),
                stdin=self.statistics_stdin(places),
                timeout=60.0,
            )
            for number in range(count)
        )
        return Procedure(
            before=() if places.far is None else self.guards(places.far),
            servers=servers,
            timed=Launch(argv=self._load(values, places), micro=True, proof="live"),
            gate=True,
            beside=self.beside(values, places),
            after=after,
        )

    def socket(self, places: Places, number: int) -> str:
        return f"{places.run}/{self.name}-{number}"

    def cpu(self, places: Places, number: int) -> tuple[int, ...]:
        """Return the one CPU of a server; with more servers than CPUs they share them in turn."""
        return (places.sut[number % len(places.sut)],)

    def _addresses(self, values: Values, places: Places) -> list[str]:
        if (far := places.far) is not None:
            return [far.at(number_) for number_ in range(_count(values, places))]
        return [f"unix:{self.socket(places, number_)}" for number_ in range(_count(values, places))]

    def _generator(self, values: Values, places: Places, addresses: Iterable[str]) -> list[str]:
        argv = ["load", "--protocol", self.name]
        for address in addresses:
            argv += ["--server", address]
        argv += ["--cpus", ",".join(map(str, places.client))]
        if places.far is not None:
            argv += [
                word for guard in self.guards(places.far) if guard.far for word in ("--secret", _secret(places.far))
            ]
        for name in ("connections", "pipeline", "keys", "popularity", "set_get", "hit_ratio", "payload", "seed"):
            argv += [f"--{name.replace('_', '-')}", str(values[name])]
        return argv

    def _load(self, values: Values, places: Places) -> tuple[str, ...]:
        argv = [*self._generator(values, places, self._addresses(values, places)), *_filling(values)]
        if values["operations"]:  # a lead is as much work as there is time for
            return (*argv, "--operations", str(values["operations"]))
        argv += ["--lead", f"{float_value(values, 'lead'):g}", "--duration", f"{float_value(values, 'duration'):g}"]
        match values["mode"]:
            case "rate":
                argv += ["--rate", f"{float_value(values, 'rate'):g}"]
            case "sla":
                argv += ["--sla", f"p99:{float_value(values, 'limit') * 1e6:g}us"]
        return tuple(argv)

    def read(self, outputs: Outputs, values: Values) -> Reading:
        every = (outputs.stdout(f"told-{number}") for number in itertools.count())
        told = self.told(list(itertools.takewhile(bool, every)), values)
        read = read_load(outputs)
        operations, fixed = read.facts.get("operations"), integer(values, "operations")
        undone = f"{operations} operations were done of {fixed}" if fixed and operations != fixed else None
        metrics, absent = dict(read.metrics), dict(read.absent)
        if values["mode"] == "sla":
            absent["server_cpu_us"] = "the measured part holds many rates: CPU time of one of them is not known"
        elif outputs.sut.cpu_s is None:
            absent["server_cpu_us"] = "the servers' CPU time was not counted"
        elif isinstance(work := read.facts.get(ASKED, operations), int) and work:
            metrics["server_cpu_us"] = _outputs.cpu_us(outputs, work)
        return Reading(
            metrics=metrics | dict(told.metrics),
            absent=absent | dict(told.absent),
            series=read.series,
            facts=dict(told.facts) | dict(read.facts),
            problem=read.problem or told.problem or undone,
            marks=(*read.marks, *told.marks),
            of_time=read.of_time,
        )


def _count(values: Values, places: Places) -> int:
    return integer(values, "instances") or len(places.sut)


def _secret(far: RemoteEndpoint) -> str:
    return f"{far.folder}/{GUARD}"


def _filling(values: Values) -> tuple[str, ...]:
    return ("--preload", "--touch") if values["verify"] else ("--preload",)
