"""A guest that means harm: whatever its agent answers, root has a value or an error, in bounded time and memory."""

from __future__ import annotations

import base64
import itertools
import os
import re
import resource
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hugewise.errors import HugewiseError, MachineError
from hugewise.guests import agent as agents
from hugewise.guests import messages, survey
from hugewise.guests.agent import Agent
from hugewise.guests.folders import GuestFolders
from hugewise.guests.knobs import GuestSettings
from hugewise.guests.leaf import Groups, GuestLeaf
from hugewise.guests.machine import GuestMachine, guest_spec
from hugewise.guests.orders import Orders
from hugewise.machine import maps, noise, probe
from hugewise.machine.foreign import heard
from hugewise.model.pages import THP, PageSizes
from tests.build.agents import fake_guest, greeted
from tests.guests.live_agent import SPEC, job

LONG = os.environ.get("HUGEWISE_FUZZ", "0")
INPUTS = {"0": 100, "long": 10_000}.get(LONG) or int(LONG)
PATIENCE = 0.01

# What a text may hold instead of a number, a knob or a path.
TEXTS = st.sampled_from(
    [
        "", "0", "-1", "9" * 19, "9" * 5000, "nan", "1e999", "١٢", "²", "\0", "\x1b]0;x\x07\x1b[2J", "\u202e", "a\nb",
        "always [madvise] never", "[" * 3000, "cpu", "cpu 1 2 3", "cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1", "1 (x) S 2 3",
        "1 (khugepaged) S 2", "1 ) ( 1", "1.5 0.2 0.1 1/2 3", "populated 1\nfrozen", "usage_usec -5", "usage_usec x",
        "usage_usec 5\nuser_usec 1\nsystem_usec 2", "MemTotal: " + "9" * 30 + " kB", "0-1,x", "x" * 300_000,
        "7f0-7f1 rw-p 0 0 0 /dev/zero (deleted)\n" * 200, "2048", "hugepages-2048kB",
    ]
)  # fmt: skip
NAMES = ["hugepages-2048kB", "hugepages-" + "9" * 240 + "kB", "hugepages-٣kB", "enabled", "stats", "1", "²", "node0"]
NUMBERS = st.sampled_from([0, 1, -1, 4096, 2**31, 2**63 - 1, 2**63, 2**64, 10**400, -(2**70), 1.5, 1e308])
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner)
)
EVENTS = st.one_of(
    st.fixed_dictionaries(
        {"ev": st.just("coverage"), "pid": NUMBERS, "command": TEXTS, "named": JSON, "source": TEXTS,
         "bytes": st.dictionaries(st.sampled_from(["anon:4096", "anon:x", "anon", "unproven"]), NUMBERS),
         "thp_disabled": st.none(), "scan_ns": NUMBERS}
    ),
    st.fixed_dictionaries({"ev": st.sampled_from(["exit", "usage", "result", "x"]), "wall_ns": NUMBERS}),
)  # fmt: skip


def _answers(request: str) -> st.SearchStrategy[Any]:
    """What stands in the answer to a request: of its form, with any values in it."""
    forms: dict[str, st.SearchStrategy[Any]] = {
        "read": st.fixed_dictionaries({"text": TEXTS}),
        "names": st.fixed_dictionaries({"names": st.lists(st.sampled_from(NAMES) | TEXTS, max_size=8)}),
        "status": st.fixed_dictionaries(
            {"kind": st.sampled_from(["file", "folder", "x"]), "mode": NUMBERS, "size": NUMBERS}
        ),
        "get": st.fixed_dictionaries({"data": st.sampled_from(["", "?", "QUJD", "QUJD" * 90_000]), "size": NUMBERS}),
        "ports": st.fixed_dictionaries({"ports": st.lists(NUMBERS, max_size=3)}),
        "ask": st.fixed_dictionaries({"event": EVENTS | JSON}),
    }  # fmt: skip
    return st.one_of(forms.get(request, st.just({})), forms.get(request, st.just({})), JSON)


REQUESTS = [
    "read", "write", "names", "status", "make", "remove", "put", "get", "mount", "network", "ports", "spawn", "signal",
    "end", "ask", "poweroff",
]  # fmt: skip
RAW = [
    b"login: \x1b[0m\n", b"\xff\xfe\n", b'{"id":ID', b"\n", b'{"id":ID,"ok":' + b"[" * 5000 + b"\n", b"x" * (1 << 20),
    b'{"id":ID,"ok":{"text":"\\ud800"}}\n', b'{"id":' + b"9" * 5000 + b',"ok":{}}\n', b'{"id":77,"ok":{}}\n',
    b'{"process":1,"line":"{}"}\n', b'{"process":1,"line":"\\u0000"}\n', b'{"process":1,"ended":{"status":999}}\n',
    b'{"process":1,"ended":{"status":137,"stderr":"\\u001b[2J"}}\n', b'{"id":ID,"error":{"errno":-1,"message":""}}\n',
    b'{"hello":{}}\n', b"[]\n", b"null\n",
]  # fmt: skip
ERRORS = [
    b'{"id":ID,"error":{"errno":%d,"message":"\\u001b]0;\\u0007 no"}}\n' % number
    for number in (0, 2, 4, 11, 32, 110, 4095)
]
SILENT = b""


class Hostile:
    """An agent that takes its words from `told`: an answer by request, or bytes as they are."""

    def __init__(self, told: list[bytes | dict[str, Any]]) -> None:
        self._told = itertools.cycle(told)

    def __call__(self, request: dict[str, Any]) -> bytes | None:
        said = next(self._told)
        if isinstance(said, bytes):
            return said or None
        if request["do"] == "spawn":
            return b'{"process":%d,"line":%s}\n{"id":ID,"ok":{}}\n{"process":%d,"ended":{"status":0,"stderr":""}}\n' % (
                request["process"], msgspec.json.encode(str(said)), request["process"],
            )  # fmt: skip
        return b'{"id":ID,"ok":%s}\n' % _encoded(said.get(request["do"], {}))


def _encoded(value: object) -> bytes:
    """JSON with numbers of any length, as no encoder of ours would write them."""
    if isinstance(value, dict):
        return b"{%s}" % b",".join(_encoded(str(key)) + b":" + _encoded(one) for key, one in value.items())
    if isinstance(value, list):
        return b"[%s]" % b",".join(map(_encoded, value))
    return str(value).encode() if type(value) in (int, float) else msgspec.json.encode(value)


HOSTILE = st.lists(
    st.one_of(
        st.fixed_dictionaries({request: _answers(request) for request in REQUESTS}),
        st.fixed_dictionaries({request: _answers(request) for request in REQUESTS}),
        st.sampled_from([*RAW, *ERRORS, SILENT]),
    ),
    min_size=1,
    max_size=4,
)


def _leaf(machine: GuestMachine) -> GuestLeaf:
    return GuestLeaf((Path("/cg"),), Path("/cg"), machine.agent, False, machine.agent.ended, machine.agent.remove)


def _started(machine: GuestMachine, folder: Path) -> None:
    launched = machine.start(job(folder, "/bin/true"))
    try:
        launched.wait(2 * PATIENCE)
    except TimeoutError:
        machine.agent.give_up("it did not end in the test's time")
    finally:
        launched.kill()
        launched.close()


def _ordered(machine: GuestMachine, folder: Path) -> None:
    orders = Orders()
    orders.turn({f"{THP}/enabled": "never"})
    orders.spawn(job(folder, "/bin/true"))
    assert orders.render()


def _looked(machine: GuestMachine, what: Callable[[Agent], object]) -> None:
    """As `attempt.runner` and `guests.boarding` look at a guest."""
    with heard("fake", "what it said"):
        what(machine.agent)


# Of the machine: HugewiseError alone. Of its files (`host.Host`): OSError with the guest's errno too.
MACHINE: dict[str, Callable[[GuestMachine, Path], object]] = {
    "cpus": lambda machine, _: machine.cpus(),
    "ports": lambda machine, _: machine.ports(2),
    "start": _started,
    "orders": _ordered,
    "signal": lambda machine, _: machine.signal(7, 15),
    "make": lambda machine, _: machine.make("/x", 0o700),
    "folder": lambda machine, _: machine.folder("/x", 1, 1),
    "folders": lambda machine, _: GuestFolders(machine, Path("/x"), 1, 1).clear(),
    "put": lambda machine, _: machine.put("/x", b"abc", None, None),
    "remove": lambda machine, _: machine.remove("/x"),
    "ask": lambda machine, _: machine.ask("scan", "--pid", "7"),
    "group": lambda machine, _: Groups(machine).create("a"),
    "group's use": lambda machine, _: _leaf(machine).used(),
    "group's peak": lambda machine, _: _leaf(machine).peak_bytes(),
    "group's faults": lambda machine, _: _leaf(machine).faults(),
    "group's processes": lambda machine, _: _leaf(machine).processes(),
    "group's limit": lambda machine, _: _leaf(machine).limit_memory(1 << 20),
    "knobs": lambda machine, _: GuestSettings(machine.host).apply({f"{THP}/enabled": "never"}),
    "snapshot": lambda machine, _: _looked(machine, noise.snapshot),
    "page sizes": lambda machine, _: _looked(machine, PageSizes.discover),
    "survey": lambda machine, _: _looked(machine, lambda agent: survey.take(agent, "6.12", 4096)),
    "maps": lambda machine, _: _looked(machine, lambda agent: maps.named(agent.read("/proc/7/maps"), "shared")),
}
HOST: dict[str, Callable[[Agent], object]] = {
    "read": lambda host: host.read("/x"),
    "write": lambda host: host.write("/x", "1"),
    "names": lambda host: host.names("/x"),
    "writable": lambda host: host.writable("/x"),
    "status": lambda host: host.status("/x"),
    "get": lambda host: [len(piece) for piece in host.get("/x")],
    "files": lambda host: list(GuestMachine(host, emulated=False).files("/x", re.compile(".*", re.DOTALL))),
    "mount": lambda host: host.mount("a", "/x", "tmpfs"),
    "network": lambda host: host.network("eth0", "10.0.2.15", 24),
    "poweroff": lambda host: host.poweroff(PATIENCE),
}


def _held(told: list[bytes | dict[str, Any]], act: Callable[[Agent], object], *errors: type[Exception]) -> None:
    """`act` on such a guest ends soon, with a value or one of these errors, whose text can be shown."""
    began = time.monotonic()
    with fake_guest(Hostile(told), patience=PATIENCE) as (agent, _):
        try:
            agent.hello(10)
            act(agent)
        except errors as error:
            told_text = error.message if isinstance(error, HugewiseError) else error.strerror or ""
            assert "\x1b" not in told_text and len(told_text) < 3000, told_text
    assert time.monotonic() - began < 10


FUZZED = settings(
    max_examples=INPUTS,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)


@FUZZED
@given(told=HOSTILE, name=st.sampled_from(sorted(MACHINE)))
def test_whatever_a_guest_answers_its_machine_gives_a_value_or_an_error(
    told: list[bytes | dict[str, Any]], name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp() / "hostile"
    _held(told, lambda agent: MACHINE[name](GuestMachine(agent, emulated=False), folder), HugewiseError)


@FUZZED
@given(told=HOSTILE, name=st.sampled_from(sorted(HOST)))
def test_whatever_a_guest_answers_its_files_give_a_value_or_an_error(
    told: list[bytes | dict[str, Any]], name: str
) -> None:
    _held(told, HOST[name], MachineError, OSError)


# -- what each of these did before there was a bound


def test_a_file_that_a_guest_says_is_endless_is_not_taken() -> None:
    whole = base64.b64encode(bytes(agents.CHUNK))
    for size in (agents.MOST_OF_A_FILE + 1, 1 << 62):
        with greeted(lambda _, size=size: b'{"id":ID,"ok":{"data":"%s","size":%d}}\n' % (whole, size)) as (
            agent,
            guest,
        ):
            with pytest.raises(MachineError, match=rf"/x has {size} bytes, more than the \d+ that are taken over"):
                list(agent.get("/x"))
            assert len(guest.heard) == 1


def test_a_file_that_comes_in_crumbs_ends() -> None:
    with greeted(lambda _: b'{"id":ID,"ok":{"data":"QQ==","size":60000000}}\n') as (agent, guest):
        assert sum(map(len, agent.get("/x"))) == 1
        assert len(guest.heard) == 1


def test_files_without_end_are_not_taken() -> None:
    whole = base64.b64encode(bytes(agents.CHUNK))
    names = msgspec.json.encode([str(number) for number in range(40_000)])
    said = {
        "names": b'{"id":ID,"ok":{"names":%s}}\n' % names,
        "status": b'{"id":ID,"ok":{"kind":"file","mode":420,"size":1}}\n',
        "get": b'{"id":ID,"ok":{"data":"%s","size":%d}}\n' % (whole, agents.CHUNK),
    }
    with greeted(lambda request: said[request["do"]]) as (agent, guest):
        taken = 0
        with pytest.raises(MachineError, match="the files in /x have more than"):
            for content in GuestMachine(agent, emulated=False).files("/x", re.compile(r"\d+")):
                taken += len(content)
        assert taken <= agents.MOST_OF_A_FILE
        assert len(guest.heard) < 1000


def test_a_folder_with_names_without_end_ends_the_machine() -> None:
    names = b",".join([b'"a"'] * (messages.MOST_NAMES + 1))
    with (
        greeted(lambda _: b'{"id":ID,"ok":{"names":[%s]}}\n' % names) as (agent, _),
        pytest.raises(MachineError, match="answered something else"),
    ):
        agent.names("/x")


def test_events_without_end_end_the_machine_and_fill_no_disk(tmp_path: Path) -> None:
    """111 MiB came in 3 s, and no end."""
    line = b'{"process":1,"line":"%s"}\n' % (
        b'{\\"ev\\":\\"phase\\",\\"t_ns\\":1,\\"name\\":\\"%s\\"}' % (b"x" * 60_000)
    )
    over = threading.Event()
    said = itertools.count()

    def flood(request: dict[str, Any]) -> None:
        def pour() -> None:
            try:
                guest.say(b'{"id":%d,"ok":{}}\n' % request["id"])
                while next(said) < 10_000:
                    guest.say(line)
            except OSError:
                pass
            finally:
                over.set()

        threading.Thread(target=pour, daemon=True).start()

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with greeted(flood) as (agent, guest):
        launched = GuestMachine(agent, emulated=False).start(job(tmp_path / "job", "/bin/true"))
        with pytest.raises(MachineError, match=f"more than {probe.MOST_EVENTS} bytes of events of one process"):
            launched.wait(60)
        launched.close()
        assert over.wait(10)
    assert (tmp_path / "job/events.jsonl").stat().st_size <= probe.MOST_EVENTS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB


def test_a_launcher_that_says_nonsense_ends_the_machine_and_not_the_run(tmp_path: Path) -> None:
    for line in (b"login:", b'{\\"ev\\":\\"usage\\",\\"user_s\\":-1}', b'{\\"ev\\":\\"exit\\",\\"wall_ns\\":-1}'):
        says = b'{"id":ID,"ok":{}}\n{"process":1,"line":"%s"}\n{"process":1,"ended":{"status":0,"stderr":""}}\n' % line
        answers: Iterator[bytes] = itertools.chain(
            [says], itertools.repeat(b'{"id":ID,"error":{"errno":2,"message":"none"}}\n')
        )
        with greeted(lambda _, answers=answers: next(answers)) as (agent, _):
            launched = GuestMachine(agent, emulated=False).start(job(tmp_path / "job", "/bin/true"))
            with pytest.raises(MachineError, match="guest fake: its launcher said something unknown"):
                launched.wait(10)
            launched.close()


def test_a_guest_that_is_slow_each_time_is_given_up_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "_WAITED_S", 0.2)

    def slowly(_: dict[str, Any]) -> bytes:
        time.sleep(0.03)
        return b'{"id":ID,"ok":{"text":"1"}}\n'

    with (
        greeted(slowly) as (agent, _),
        pytest.raises(MachineError, match=r"its answers were waited for longer than 0\.2 s in all"),
    ):
        for _ in range(100):
            agent.read("/x")


def test_numbers_that_no_kernel_counts_are_refused_where_they_are_read() -> None:
    texts = {"memory.stat": "pgfault " + "9" * 30, "cgroup.procs": "1\n-5", "memory.peak": "9" * 25}

    def read(request: dict[str, Any]) -> bytes:
        return b'{"id":ID,"ok":{"text":%s}}\n' % msgspec.json.encode(texts[request["path"].rpartition("/")[2]])

    with greeted(read) as (agent, _):
        leaf = _leaf(GuestMachine(agent, emulated=False))
        for look in (leaf.faults, leaf.processes, leaf.peak_bytes):
            with pytest.raises(MachineError, match=r"guest fake: .*not a whole number"):
                look()


def test_the_specification_of_a_guest_watches_no_room_of_the_host() -> None:
    told = msgspec.structs.replace(SPEC, limits=probe.Limits(rooms=("/var/tmp",)))
    assert guest_spec(told, 1, "/run/out").limits == probe.Limits(rooms=())
