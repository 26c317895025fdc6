"""Redis: single-threaded instances on unix sockets, filled and asked by a client on CPUs of its own.

Redis switches transparent huge pages off for itself unless `disable-thp no`. jemalloc maps its memory in large pieces,
which huge pages fit into; from a hugetlb pool it takes nothing, whatever it is told. glibc's malloc does, so that
`allocator = "libc"` runs the same binary on it, in every arm of a cell; its heap grows by 64 MiB at once, as a huge
page fits into no small step.

Sources: redis.conf and INFO of redis; jemalloc(3); the glibc manual, Memory Allocation Tunables.
"""

from __future__ import annotations

import re

from hugewise.deployment import configuration
from hugewise.model.metric import Metric
from hugewise.model.policy import Treatment
from hugewise.model.procedure import Places, Reading, RemoteEndpoint, Server, Step, Write
from hugewise.model.workload import Configuration, Parameter
from hugewise.reading import whole
from hugewise.workloads._keyvalue import (
    GUARD,
    STEP,
    KeyValue,
    facts,
    mean_payload,
    parameters,
    program,
    tunables,
)
from hugewise.workloads._micro import whole_pages
from hugewise.workloads._staged import Values, integer

_INFO = re.compile(r"^([a-z0-9_]+):(.*?)\r?$", re.MULTILINE)
_TOLD = ("redis_version", "mem_allocator", "used_memory", "used_memory_rss", "maxmemory", "evicted_keys")
_CONFIGURATION = "redis.conf"  # written where there is a password
_ASKED = ("PING", "INFO", "BGSAVE")
_SAVED = {"cow_bytes": "rdb_last_cow_size", "fork_us": "latest_fork_usec", "save_s": "rdb_last_bgsave_time_sec"}

# Measured at 6.2 million keys of the published mix (64 bytes on average): 178 bytes a key with jemalloc, 180 with
# glibc's malloc, 184 in whole pages of 2 MiB; hash table included.
_BYTES_PER_KEY = 120
# While the hash table grows there are two of them.
_GROWING = 96 << 20


class Redis(KeyValue):
    """The policy is about the heap; 2 to 8% of it stay base pages (see docs/reference/workloads.md)."""

    name = "redis"
    description = "redis: a full store asked by many connections (get and set)"
    programs = (("redis-server", "redis-server"), ("redis-cli", "redis-tools"))
    choices = (*KeyValue.choices, ("allocator", ("jemalloc", "libc")))
    of_servers = ("allocator", "disable_thp")
    parameters = parameters(
        6_200_000,
        Parameter("allocator", "text", "jemalloc", "jemalloc (as packaged), or libc: glibc's malloc by LD_PRELOAD"),
        Parameter("disable_thp", "flag", False, "leave redis's own disable-thp on, by which it refuses huge pages"),
        Parameter("bgsave", "flag", False, "save the store in the background when the measured part begins"),
    )
    metrics = (
        *KeyValue.metrics,
        Metric("cow_bytes", "bytes", "lower", "memory copied because of the background save, over all instances"),
        Metric("fork_us", "us", "lower", "time of the fork for the background save, of the slowest instance"),
        Metric("save_s", "s", "lower", "time of the background save, of the slowest instance"),
    )

    def refuses(self, treatment: Treatment, values: Values) -> str | None:
        """Return why a value or treatment is not possible, or None: a pool reaches only glibc's malloc."""
        if (reason := super().refuses(treatment, values)) is not None:
            return reason
        if treatment.target.kind == "hugetlb" and values["allocator"] != "libc":
            return 'jemalloc takes no pages of a pool: allocator = "libc" (in every arm) takes them by a glibc tunable'
        return None

    def stand_ins(self, values: Values) -> tuple[str, ...]:
        own = ("glibc's malloc in place of redis's jemalloc",) if values["allocator"] == "libc" else ()
        return (*super().stand_ins(values), *own)

    def turns_refused(self, values: Values) -> str | None:
        """Return why turns are refused, or None: a background save takes its own time."""
        if values["bgsave"]:
            return "a background save goes on while others have their turn"
        return super().turns_refused(values)

    def memory(self, treatment: Treatment, values: Values) -> int:
        """Return the store; for a background save the file on tmpfs, and a copy of all that is written meanwhile."""
        keys, store = integer(values, "keys"), self._store(values)
        if values["bgsave"]:
            store = 2 * store + round(keys * (20 + mean_payload(values)))
        return self.instances(values) * store

    def pooled(self, treatment: Treatment, values: Values) -> int:
        """Return the store and what the heap is ahead of it; a background save may copy every page."""
        whole = whole_pages(self._store(values) + 2 * STEP, treatment.target.size)
        return self.instances(values) * whole * (2 if values["bgsave"] else 1)

    def _store(self, values: Values) -> int:
        return round(integer(values, "keys") * (_BYTES_PER_KEY + mean_payload(values))) + _GROWING

    def server(self, number: int, treatment: Treatment, values: Values, places: Places) -> Server:
        """Return the server: not persistent, no network but a client's, with a password."""
        socket, far = self.socket(places, number), places.far
        options = {
            "port": "0" if far is None else str(far.ports[number]),
            **({} if far is None else {"bind": far.address}),
            "unixsocket": socket,
            "unixsocketperm": "700",
            "dir": places.data,
            "dbfilename": f"dump-{number}.rdb",
            "save": "",
            "appendonly": "no",
            "disable-thp": "yes" if values["disable_thp"] else "no",
        }
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        return Server(
            name=f"redis-{number}",
            argv=(program("redis-server"), *(() if far is None else (f"{places.data}/{_CONFIGURATION}",)), *words),
            ready=_step("ready", socket, "PING", places, expects="PONG", timeout=10.0),
            environment=_environment(treatment, values),
            cpus=self.cpu(places, number),
        )

    def configuration(self, treatment: Treatment, values: Values) -> Configuration:
        return _environment(treatment, values), (configuration.redis(disable_thp=bool(values["disable_thp"])),)

    def beside(self, values: Values, places: Places) -> tuple[Step, ...]:
        if not values["bgsave"]:
            return ()
        count = integer(values, "instances") or len(places.sut)
        return tuple(
            _step(
                f"bgsave-{number}",
                self.socket(places, number),
                "BGSAVE",
                places,
                expects="Background saving started",
                timeout=60.0,
            )
            for number in range(count)
        )

    def statistics_command(self, number: int, places: Places) -> tuple[str, ...]:
        return _argv(self.socket(places, number), "INFO", places)

    def statistics_stdin(self, places: Places) -> str | None:
        return _stdin("INFO", places)

    def guards(self, far: RemoteEndpoint) -> tuple[Write, ...]:
        return (
            Write(_CONFIGURATION, f"requirepass {far.password}\n", private=True),
            Write(GUARD, f"{far.password}\n", far=True, private=True),
            *(Write(f"ask-{word}", f"AUTH {far.password}\n{word}\n", private=True) for word in _ASKED),
        )

    def told(self, said: list[str], values: Values) -> Reading:
        infos = [dict(_INFO.findall(text)) for text in said]
        if not infos or any("redis_version" not in info for info in infos):
            raise ValueError(f"INFO of redis is not as expected: {said[0][:200] if said else 'nothing was told'!r}")
        told = facts(infos[0], _TOLD)
        told["disable_thp"] = str(values["disable_thp"]).lower()
        if values["allocator"] == "libc":
            told["mem_allocator"] = "libc (LD_PRELOAD)"
        if not values["bgsave"]:
            why = "no background save was asked for: bgsave = true"
            return Reading(absent=dict.fromkeys(_SAVED, why), facts=told)
        if any(info.get("rdb_bgsave_in_progress") != "0" for info in infos):
            why = "the background save was not over when the measured part ended: a longer duration"
            return Reading(absent=dict.fromkeys(_SAVED, why), facts=told, marks=(why,))
        if any(info.get("rdb_last_bgsave_status") != "ok" for info in infos):
            return Reading(facts=told, problem="the background save failed")
        cow, fork, took = ([whole(info.get(name, ""), name, low=-1) for info in infos] for name in _SAVED.values())
        return Reading(metrics={"cow_bytes": sum(cow), "fork_us": max(fork), "save_s": max(took)}, facts=told)


def _environment(treatment: Treatment, values: Values) -> dict[str, str]:
    # jemalloc advises its memory only when asked to (`thp:always`)
    if values["allocator"] == "libc":
        return {"LD_PRELOAD": "libc.so.6"} | tunables(treatment, f"glibc.malloc.top_pad={STEP}")
    return {"MALLOC_CONF": "thp:always"} if treatment.advice == "huge" else {}


def _argv(socket: str, word: str, places: Places) -> tuple[str, ...]:
    # where a password comes first, redis-cli reads password and command from its stdin
    return (program("redis-cli"), "-s", socket, *((word,) if places.far is None else ()))


def _stdin(word: str, places: Places) -> str | None:
    return None if places.far is None else f"{places.data}/ask-{word}"


def _step(name: str, socket: str, word: str, places: Places, *, expects: str, timeout: float) -> Step:
    argv, stdin = _argv(socket, word, places), _stdin(word, places)
    return Step(name=name, argv=argv, stdin=stdin, expects=expects, timeout=timeout)


WORKLOAD = Redis()
