"""memcached: instances of one worker thread on unix sockets, filled and asked by a client on CPUs of its own.

Items lie in slab pages of 1 MiB, each a malloc of its own that is cleared at once: glibc maps them one by one, and
nothing larger fits at the first touch. With `heap = "steps"`, the same in every arm, glibc's heap grows by 64 MiB at
once instead, so that the pages are all that differs.

Sources: doc/protocol.txt, slabs.c and memcached.c of memcached; the glibc manual, Memory Allocation Tunables.
"""

from __future__ import annotations

import re
from pathlib import Path

from hugewise.machine import programs as at_hand
from hugewise.model.metric import Metric
from hugewise.model.policy import Treatment
from hugewise.model.procedure import Places, Reading, RemoteEndpoint, Server, Step, Write
from hugewise.model.workload import Configuration, Missing, Parameter
from hugewise.reading import whole
from hugewise.workloads._keyvalue import GUARD, STEP, KeyValue, facts, parameters, program, tunables
from hugewise.workloads._micro import whole_pages
from hugewise.workloads._staged import Values, integer

_STAT = re.compile(r"^[ \t]*(?:#[ \t]*)?([a-z0-9_]+)[ \t]+(\S+)[ \t\r]*$", re.MULTILINE)
_TOLD = ("version", "curr_items", "evictions", "bytes", "limit_maxbytes", "hash_bytes", "threads")

# glibc's largest (HEAP_MAX_SIZE / 2): larger blocks get a mapping of their own, as the hash table.
_THRESHOLD = 32 << 20
_STEPS = ("glibc.malloc.arena_max=1", f"glibc.malloc.mmap_threshold={_THRESHOLD}", f"glibc.malloc.top_pad={STEP}")
_ESCAPE = Path("/usr/share/perl5/URI/Escape.pm")
# Slab pages of each class that are not full, connections, the process itself.
_BESIDE = 32 << 20


# doc/protocol.txt, Authentication: a first `set` with the name and the password as its value.
_ACCOUNT, _ACCOUNTS, _ASK = "hugewise", "memcached.auth", "ask-stats"
_TALK = (
    "$s = IO::Socket::IP->new(PeerAddr => shift, Timeout => 5) or exit 1; print $s <STDIN>;"
    " while (<$s>) { s/^STAT //; print }"
)


class Memcached(KeyValue):
    """The policy is about the heap: items and hash table."""

    name = "memcached"
    description = "memcached: a full cache asked by many connections (get and set)"
    programs = (("memcached", "memcached"), ("memcached-tool", "memcached"))
    choices = (*KeyValue.choices, ("heap", ("steps", "packaged")))
    of_servers = ("memory", "heap")
    parameters = parameters(
        7_200_000,
        Parameter("memory", "size", "1152m", "memory for items of each instance (memcached -m)"),
        Parameter(
            "heap", "text", "steps", "steps: glibc's heap grows by 64m at once; packaged: each slab is mapped alone"
        ),
    )
    metrics = (*KeyValue.metrics, Metric("evictions", "keys", "lower", "keys that were evicted, over all instances"))

    def refuses(self, treatment: Treatment, values: Values) -> str | None:
        if (reason := super().refuses(treatment, values)) is not None:
            return reason
        if integer(values, "memory") < 64 << 20:
            return f"memory = {values['memory']} is less than 64m, memcached's least"
        return None

    def missing(self, values: Values) -> tuple[Missing, ...]:
        """memcached-tool of Debian 13 decodes keys by a module of Perl that its package does not bring."""
        lacking = super().missing(values)
        if at_hand.place() is not None:
            there = at_hand.installed("liburi-perl") is not None
        else:
            tool = Path(program("memcached-tool"))
            there = not (tool.is_file() and "URI::Escape" in tool.read_text(errors="replace")) or _ESCAPE.is_file()
        return lacking if there else (*lacking, Missing("URI::Escape: no such module of Perl", "liburi-perl"))

    def memory(self, treatment: Treatment, values: Values) -> int:
        """Items, hash table, and what the heap is ahead of them."""
        return self.instances(values) * self._each(values)

    def pooled(self, treatment: Treatment, values: Values) -> int:
        return self.instances(values) * whole_pages(self._each(values), treatment.target.size)

    def _each(self, values: Values) -> int:
        return integer(values, "memory") + (8 << _hash_power(values)) + 2 * STEP + _BESIDE

    def server(self, number: int, treatment: Treatment, values: Values, places: Places) -> Server:
        """Return one worker thread; every thread allocates from the one heap that grows in steps."""
        far = places.far
        listens = (
            ("-s", self.socket(places, number)) if far is None else ("-l", far.address, "-p", str(far.ports[number]))
        )
        argv = [program("memcached"), *listens, "-t", "1", "-m", str(integer(values, "memory") >> 20)]
        argv += ["-o", f"hashpower={_hash_power(values)}"]
        argv += ["-c", str(max(1024, integer(values, "connections") + 64))]
        argv += [] if far is None else ["-Y", f"{places.data}/{_ACCOUNTS}"]
        return Server(
            name=f"memcached-{number}",
            argv=tuple(argv),
            ready=Step(
                name="ready",
                argv=self.statistics_command(number, places),
                stdin=self.statistics_stdin(places),
                expects="version",
                timeout=10.0,
            ),
            environment=_environment(treatment, values),
            cpus=self.cpu(places, number),
        )

    def configuration(self, treatment: Treatment, values: Values) -> Configuration:
        return _environment(treatment, values), ()

    def statistics_command(self, number: int, places: Places) -> tuple[str, ...]:
        if places.far is not None:
            return (program("perl"), "-MIO::Socket::IP", "-e", _TALK, places.far.at(number))
        return (program("memcached-tool"), self.socket(places, number), "stats")

    def statistics_stdin(self, places: Places) -> str | None:
        return None if places.far is None else f"{places.data}/{_ASK}"

    def guards(self, far: RemoteEndpoint) -> tuple[Write, ...]:
        credentials = f"{_ACCOUNT} {far.password}"
        return (
            Write(_ACCOUNTS, f"{_ACCOUNT}:{far.password}\n", private=True),
            Write(GUARD, f"{credentials}\n", far=True, private=True),
            Write(_ASK, f"set auth 0 0 {len(credentials)}\r\n{credentials}\r\nstats\r\nquit\r\n", private=True),
        )

    def told(self, said: list[str], values: Values) -> Reading:
        stats = [dict(_STAT.findall(text)) for text in said]
        if not stats or any("version" not in each or "evictions" not in each for each in stats):
            raise ValueError(
                f"memcached's stats are not as expected: {said[0][:200] if said else 'nothing was told'!r}"
            )
        evicted = sum(whole(stat["evictions"], "evictions") for stat in stats)
        return Reading(metrics={"evictions": float(evicted)}, facts=facts(stats[0], _TOLD))


def _environment(treatment: Treatment, values: Values) -> dict[str, str]:
    return tunables(treatment, *(_STEPS if values["heap"] == "steps" else ()))


def _hash_power(values: Values) -> int:
    # The table doubles at 1.5 keys a bucket of 8 bytes. It has that size from the start: a background thread would else
    # fill the new one while requests are measured (seen: 3% of the resident pages fault then).
    return max(16, (-(-integer(values, "keys") * 2 // 3) - 1).bit_length())


WORKLOAD = Memcached()
