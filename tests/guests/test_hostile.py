"""A guest that means harm: whatever its agent answers, root has a value or an error, in bounded time and memory."""

import base64
import itertools
import os
import random
import re
import resource
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hugewise.errors import HugewiseError, MachineError
from hugewise.guests import counted
from hugewise.guests.machines import Groups, GuestLeaf, GuestSettings
from hugewise.machine import agent as agents
from hugewise.machine import messages, noise, probe, proc
from hugewise.machine.agent import Agent
from hugewise.machine.messages import parse_foreign
from hugewise.machine.remote import RemoteFolders, RemoteMachine, remote_spec
from hugewise.model.pages import THP, PageSizes
from tests.build.agents import fake_guest, greeted
from tests.build.live_agent import SPEC, job

LONG = os.environ.get("HUGEWISE_FUZZ", "0")
INPUTS = {"0": 100, "long": 10_000}.get(LONG) or int(LONG)
PATIENCE = 0.01

# What a text may hold instead of a number, a knob or a path.
TEXTS = [
    "", "0", "-1", "9" * 19, "9" * 5000, "nan", "1e999", "\u0661\u0662", "\u00b2", "\0", "\x1b]0;x\x07\x1b[2J",
    "\u202e", "a\nb", "always [madvise] never", "[" * 3000, "cpu", "cpu 1 2 3", "cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1",
    "1 (x) S 2 3", "1 (khugepaged) S 2", "1 ) ( 1", "1.5 0.2 0.1 1/2 3", "populated 1\nfrozen", "usage_usec -5",
    "usage_usec x", "usage_usec 5\nuser_usec 1\nsystem_usec 2", "MemTotal: " + "9" * 30 + " kB", "0-1,x", "x" * 300_000,
    "2048", "7f0-7f1 rw-p 0 0 0 /dev/zero (deleted)\n" * 200, "hugepages-2048kB",
]  # fmt: skip
NAMES = [
    "hugepages-2048kB",
    "hugepages-" + "9" * 240 + "kB",
    "hugepages-\u0663kB",
    "enabled",
    "stats",
    "1",
    "\u00b2",
    "node0",
]
NUMBERS = [0, 1, -1, 4096, 2**31, 2**63 - 1, 2**63, 2**64, 10**400, -(2**70), 1.5, 1e308]
RAW = [
    b"login: \x1b[0m\n", b"\xff\xfe\n", b'{"id":ID', b"\n", b'{"id":ID,"ok":' + b"[" * 5000 + b"\n", b"x" * (1 << 20),
    b'{"id":ID,"ok":{"text":"\\ud800"}}\n', b'{"id":' + b"9" * 5000 + b',"ok":{}}\n', b'{"id":77,"ok":{}}\n',
    b'{"process":1,"line":"{}"}\n', b'{"process":1,"line":"\\u0000"}\n', b'{"process":1,"ended":{"status":999}}\n',
    b'{"process":1,"ended":{"status":137,"stderr":"\\u001b[2J"}}\n', b'{"id":ID,"error":{"errno":-1,"message":""}}\n',
    b'{"hello":{}}\n', b"[]\n", b"null\n", b"",
]  # fmt: skip
ERRNOS = [0, 2, 4, 11, 32, 110, 4095]


class Hostile:
    """An agent that answers each request with another thing, drawn by `seed`: mostly of the form that is asked for."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)  # noqa: S311
        self._behaved = self._draw.choice([0.5, 0.9, 0.99])

    def __call__(self, request: dict[str, Any]) -> bytes | None:
        draw = self._draw
        if draw.random() > self._behaved:
            wrong = draw.choice([*RAW, b"E"])
            error = b'{"id":ID,"error":{"errno":%d,"message":"\\u001b]0;\\u0007 no"}}\n' % draw.choice(ERRNOS)
            return (error if wrong == b"E" else wrong) or None
        answer = self._answer(request["do"]) if draw.random() < 0.9 else self._anything()
        said = b'{"id":ID,"ok":%s}\n' % _encoded(answer)
        if request["do"] == "spawn":
            line, process = msgspec.json.encode(_encoded(self._event()).decode()), request["process"]
            events = b'{"process":%d,"line":%s}\n' % (process, line)
            return events + said + b'{"process":%d,"ended":{"status":0,"stderr":""}}\n' % process
        return said

    def _answer(self, request: str) -> Any:
        draw = self._draw
        match request:
            case "read":
                return {"text": draw.choice(TEXTS)}
            case "names":
                return {"names": [draw.choice([*NAMES, *NAMES, *TEXTS]) for _ in range(draw.randrange(6))]}
            case "status":
                return {
                    "kind": draw.choice(["file", "file", "folder", "x"]),
                    "mode": self._number(),
                    "size": self._number(),
                }
            case "get":
                return {"data": draw.choice(["", "?", "QUJD", "QUJD" * 87_381]), "size": self._number()}
            case "ports":
                return {"ports": [self._number() for _ in range(draw.randrange(4))]}
            case "ask":
                return {"event": draw.choice([self._event, self._anything])()}
        return {}

    def _number(self) -> Any:
        return self._draw.choice([*NUMBERS, 1, 4096, 70_000])

    def _event(self) -> Any:
        number, text = self._number, self._draw.choice(TEXTS)
        scanned = {
            "ev": "coverage", "pid": number(), "command": text, "named": False, "source": text,
            "bytes": {self._draw.choice(["anon:4096", "anon:x", "anon", "unproven"]): number()},
            "thp_disabled": None, "scan_ns": number(),
        }  # fmt: skip
        return self._draw.choice([scanned, {"ev": text, "wall_ns": number()}])

    def _anything(self, depth: int = 3) -> Any:
        draw = self._draw
        if depth and draw.random() < 0.5:
            inner = [self._anything(depth - 1) for _ in range(draw.randrange(4))]
            return draw.choice([inner, {draw.choice(["text", "names", "x"]): each for each in inner}])
        return draw.choice([None, True, self._number(), draw.choice(TEXTS)])


def _encoded(value: object) -> bytes:
    """JSON with numbers of any length, as no encoder of ours would write them."""
    if isinstance(value, dict):
        return b"{%s}" % b",".join(_encoded(str(key)) + b":" + _encoded(one) for key, one in value.items())
    if isinstance(value, list):
        return b"[%s]" % b",".join(map(_encoded, value))
    return str(value).encode() if type(value) in (int, float) else msgspec.json.encode(value)


def _leaf(machine: RemoteMachine) -> GuestLeaf:
    return GuestLeaf((Path("/cg"),), Path("/cg"), machine.agent, False, machine.agent.ended, machine.agent.remove)


def _started(machine: RemoteMachine, folder: Path) -> None:
    launched = machine.start(job(folder, "/bin/true"))
    try:
        launched.wait(2 * PATIENCE)
    except TimeoutError:
        machine.agent.give_up("it did not end in the test's time")
    finally:
        launched.kill()
        launched.close()


def _looked(machine: RemoteMachine, what: Callable[[Agent], object]) -> None:
    """As `attempt.runner` and `guests.machines` look at a guest."""
    with parse_foreign("guest fake", "what it said"):
        what(machine.agent)


# Of the machine: HugewiseError alone. Of its files (`host.Host`): OSError with the guest's errno too.
MACHINE: dict[str, Callable[[RemoteMachine, Path], object]] = {
    "cpus": lambda machine, _: machine.cpus(),
    "ports": lambda machine, _: machine.ports(2),
    "start": _started,
    "signal": lambda machine, _: machine.signal(7, 15),
    "make": lambda machine, _: machine.make("/x", 0o700),
    "folder": lambda machine, _: machine.folder("/x", 1, 1),
    "folders": lambda machine, _: RemoteFolders(machine, Path("/x"), 1, 1).clear(),
    "put": lambda machine, _: machine.put("/x", "y", b"abc", None, None),
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
    "survey": lambda machine, _: _looked(machine, lambda agent: counted.take_survey(agent, "6.12", 4096)),
    "maps": lambda machine, _: _looked(machine, lambda agent: proc.named_ranges(agent.read("/proc/7/maps"), "shared")),
}
HOST: dict[str, Callable[[Agent], object]] = {
    "read": lambda host: host.read("/x"),
    "write": lambda host: host.write("/x", "1"),
    "names": lambda host: host.names("/x"),
    "writable": lambda host: host.writable("/x"),
    "status": lambda host: host.status("/x"),
    "get": lambda host: [len(piece) for piece in host.get("/x")],
    "files": lambda host: list(RemoteMachine(host, emulated=False).files("/x", re.compile(".*", re.DOTALL))),
    "mount": lambda host: host.mount("a", "/x", "tmpfs"),
    "network": lambda host: host.network("eth0", "10.0.2.15", 24),
    "poweroff": lambda host: host.poweroff(PATIENCE),
}


def _held(seed: int, act: Callable[[Agent], object], *errors: type[Exception]) -> None:
    """`act` on such a guest ends soon, with a value or one of these errors, whose text can be shown."""
    with fake_guest(Hostile(seed), patience=PATIENCE) as (agent, _):
        try:
            agent.hello(10)
            act(agent)
        except errors as error:
            told_text = error.message if isinstance(error, HugewiseError) else str(error.args[1:])
            assert "\x1b" not in told_text and len(told_text) < 3000, told_text


SEEDS = st.integers(0, (1 << 32) - 1)
FUZZED = settings(
    max_examples=INPUTS,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)


@FUZZED
@given(seed=SEEDS, name=st.sampled_from(sorted(MACHINE)))
def test_whatever_a_guest_answers_its_machine_gives_a_value_or_an_error(
    seed: int, name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp() / "hostile"
    _held(seed, lambda agent: MACHINE[name](RemoteMachine(agent, emulated=False), folder), HugewiseError)


@FUZZED
@given(seed=SEEDS, name=st.sampled_from(sorted(HOST)))
def test_whatever_a_guest_answers_its_files_give_a_value_or_an_error(seed: int, name: str) -> None:
    _held(seed, HOST[name], MachineError, OSError)


# -- what each of these did before there was a bound


def _next(answers: Iterator[bytes], _: object) -> bytes:
    return next(answers)


def test_a_file_that_a_guest_says_is_endless_is_not_taken_and_one_that_comes_in_crumbs_ends() -> None:
    whole = base64.b64encode(bytes(agents.CHUNK))
    for size in (agents.MOST_OF_A_FILE + 1, 1 << 62):
        says = b'{"id":ID,"ok":{"data":"%s","size":%d}}\n' % (whole, size)
        with greeted(partial(_next, itertools.repeat(says))) as (agent, guest):
            with pytest.raises(MachineError, match=rf"/x has {size} bytes, more than the \d+ that are taken over"):
                list(agent.get("/x"))
            assert len(guest.heard) == 1
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
            for content in RemoteMachine(agent, emulated=False).files("/x", re.compile(r"\d+")):
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
        launched = RemoteMachine(agent, emulated=False).start(job(tmp_path / "job", "/bin/true"))
        with pytest.raises(MachineError, match=f"more than {probe.MOST_EVENTS} bytes of events of one process"):
            launched.wait(60)
        launched.close()
        assert over.wait(60)
    assert (tmp_path / "job/events.jsonl").stat().st_size <= probe.MOST_EVENTS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB


def test_a_launcher_that_says_nonsense_ends_the_machine_and_not_the_run(tmp_path: Path) -> None:
    for line in (b"login:", b'{\\"ev\\":\\"usage\\",\\"user_s\\":-1}', b'{\\"ev\\":\\"exit\\",\\"wall_ns\\":-1}'):
        says = b'{"id":ID,"ok":{}}\n{"process":1,"line":"%s"}\n{"process":1,"ended":{"status":0,"stderr":""}}\n' % line
        answers: Iterator[bytes] = itertools.chain(
            [says], itertools.repeat(b'{"id":ID,"error":{"errno":2,"message":"none"}}\n')
        )
        with greeted(partial(_next, answers)) as (agent, _):
            launched = RemoteMachine(agent, emulated=False).start(job(tmp_path / "job", "/bin/true"))
            with pytest.raises(MachineError, match="guest fake: its launcher said something unknown"):
                launched.wait(60)
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
        leaf = _leaf(RemoteMachine(agent, emulated=False))
        for look in (leaf.faults, leaf.processes, leaf.peak_bytes):
            with pytest.raises(MachineError, match=r"guest fake: .*not a whole number"):
                look()


def test_the_specification_of_a_guest_watches_no_room_of_the_host() -> None:
    changed = msgspec.structs.replace(SPEC, limits=probe.Limits(rooms=("/var/tmp",)))
    assert remote_spec(changed, 1, "/run/out").limits == probe.Limits(rooms=())
