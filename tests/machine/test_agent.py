"""The agent of a guest as it is spoken to, by a guest that misbehaves; how it behaves itself is in test_machines.py."""

import base64
import errno
import socket
import subprocess
import threading
from collections.abc import Callable
from typing import Any

import pytest

from hugewise.errors import MachineError, ProbeError, StorageError
from hugewise.machine import messages, probe
from hugewise.machine.agent import CHUNK, Agent
from hugewise.machine.messages import parse_foreign, plain
from tests.build.agents import HELLO, FakeGuest, fake_guest, greeted
from tests.build.live_agent import SPEC


class Heard:
    """A listener that keeps what it hears."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.end: tuple[int, str] | None = None
        self.over = threading.Event()
        self.is_lost = False

    def line(self, text: str) -> None:
        self.lines.append(text)

    def arrived(self) -> None:
        self.lines.append("arrived")

    def ended(self, status: int, stderr: str) -> None:
        self.end = (status, stderr)
        self.over.set()

    def lost(self) -> None:
        self.is_lost = True
        self.over.set()


def says(answer: bytes) -> Callable[[dict[str, Any]], bytes]:
    return lambda _: answer


def test_hello_is_waited_for_and_kept() -> None:
    with fake_guest() as (agent, _):
        assert agent.hello(60).cpus == (0, 1)
        assert agent.hello(60).release == "6.12"
        assert not agent.ended()


def test_a_guest_that_says_no_hello_is_given_up() -> None:
    with fake_guest(greeting=b"") as (agent, _):
        with pytest.raises(MachineError, match=r"guest fake: it did not say hello within 0\.05 s"):
            agent.hello(0.05)
        assert agent.ended()


def test_another_version_of_the_agent_is_named() -> None:
    with fake_guest(greeting=HELLO.replace(b'"v":1', b'"v":2')) as (agent, _), pytest.raises(MachineError, match="2"):
        agent.hello(60)


def test_who_booted_the_guest_adds_what_its_console_said() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    agent = Agent(ours, "guest fake", lambda message: MachineError(f"{message}\n  console: Kernel panic"))
    with pytest.raises(MachineError, match="guest fake: it ended\n  console: Kernel panic"):
        agent.hello(60)
    agent.close()


def test_answers_find_who_asked_in_whatever_order_they_come() -> None:
    held: list[bytes] = []

    def late(request: dict[str, Any]) -> bytes | None:
        held.append(b'{"id":%d,"ok":{"text":"%s"}}\n' % (request["id"], request["path"].encode()))
        return b"".join(reversed(held)) if len(held) == 8 else None

    with greeted(late) as (agent, _):
        found: dict[int, str] = {}

        def ask(number: int) -> None:
            found[number] = agent.read(f"/{number}")

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert found == {number: f"/{number}" for number in range(8)}


def test_what_cannot_be_done_is_the_same_error_as_on_this_host() -> None:
    with greeted(says(b'{"id":ID,"error":{"errno":2,"message":"No such file or directory"}}\n')) as (agent, _):
        with pytest.raises(FileNotFoundError) as caught:
            agent.read("/sys/x")
        assert (caught.value.filename, caught.value.strerror) == ("/sys/x", "No such file or directory")
        with pytest.raises(ProbeError, match="hugewise-probe scan --pid 9 failed in guest fake: No such file"):
            agent.ask("scan", "--pid", "9")
        assert not agent.ended()


def test_an_errno_that_looks_like_a_timeout_is_no_timeout() -> None:
    with greeted(says(b'{"id":ID,"error":{"errno":110,"message":"Connection timed out"}}\n')) as (agent, _):
        with pytest.raises(OSError, match="Connection timed out") as caught:
            agent.mount("10.0.2.2:/", "/nfs", "nfs4")
        assert caught.value.errno == errno.ETIMEDOUT
        assert not agent.ended()


NEVER_AGREED = {
    "no JSON": b"login: \x1b[0m\n",
    "no UTF-8": b'{"id":ID,"ok":{"text":"\xff"}}\n',
    "no object": b"[1]\n",
    "an empty line": b"\n",
    "neither answer nor event": b'{"id":ID}\n',
    "both": b'{"id":ID,"ok":{"text":""},"error":{"errno":1,"message":""}}\n',
    "another form of answer": b'{"id":ID,"ok":{"names":[]}}\n',
    "an answer that is no object": b'{"id":ID,"ok":7}\n',
    "an answer that nobody waits for": b'{"id":77,"ok":{"text":""}}\n',
    "a line of a process that was never started": b'{"process":7,"line":""}\n',
    "the end of a process that was never started": b'{"process":7,"ended":{"status":0,"stderr":""}}\n',
    "a second hello": HELLO,
    "an errno beyond all": b'{"id":ID,"error":{"errno":99999999999999999999,"message":""}}\n',
    "what the guest did not understand": b'{"id":null,"error":{"errno":22,"message":"expected value"}}\n',
    "a deep nest": b'{"id":ID,"ok":' + b"[" * 500_000 + b"\n",
    "a line without end": b"x" * (messages.LONGEST + 1),
    "a line that is too long": b'{"id":ID,"ok":{"text":"' + b"x" * messages.LONGEST + b'"}}\n',
}


@pytest.mark.parametrize("words", NEVER_AGREED.values(), ids=NEVER_AGREED.keys())
def test_what_was_not_agreed_on_ends_the_machine(words: bytes) -> None:
    with greeted(says(words)) as (agent, guest):
        with pytest.raises(MachineError, match="guest fake: its agent (said something|answered something)") as caught:
            agent.read("/x")
        assert caught.value.message.isprintable()
        assert len(caught.value.message) < 500
        assert agent.ended()
        with pytest.raises(MachineError, match="guest fake: its agent"):
            agent.write("/x", "1")
        assert len(guest.heard) == 1


@pytest.mark.parametrize("name", ["../etc/passwd", "a/b", "", ".", "..", "a\\u0000"])
def test_names_that_no_file_can_have_are_refused(name: str) -> None:
    with (
        greeted(says(b'{"id":ID,"ok":{"names":["fine","%s"]}}\n' % name.encode())) as (agent, _),
        pytest.raises(MachineError, match="answered something else"),
    ):
        agent.names("/x")


def test_no_more_of_a_file_is_taken_than_was_asked_for() -> None:
    whole = base64.b64encode(bytes(CHUNK))
    with greeted(says(b'{"id":ID,"ok":{"data":"%s","size":700}}\n' % whole)) as (agent, _):
        assert sum(map(len, agent.get("/x"))) == CHUNK  # the first piece tells the size
    with (
        greeted(says(b'{"id":ID,"ok":{"data":"%s","size":%d}}\n' % (whole, CHUNK + 500))) as (agent, _),
        pytest.raises(MachineError, match="it gave more of a file than it was asked for"),
    ):
        list(agent.get("/x"))  # as many bytes again, where 500 are left


def test_a_file_that_shrinks_ends_where_it_ends() -> None:
    def shrinks(request: dict[str, Any]) -> bytes:
        data = base64.b64encode(b"12345") if request["offset"] == 0 else b""
        return b'{"id":ID,"ok":{"data":"%s","size":%d}}\n' % (data, 500 if request["offset"] == 0 else 5)

    with greeted(shrinks) as (agent, _):
        assert b"".join(agent.get("/x")) == b"12345"


def test_all_who_wait_hear_that_the_guest_is_gone() -> None:
    with greeted(lambda request: b'{"id":ID,"ok":{}}\n' if request["do"] == "spawn" else None) as (agent, guest):
        listener = Heard()
        agent.spawn(agent.process(), SPEC, listener)
        problems: list[MachineError] = []

        def ask() -> None:
            try:
                agent.read("/x")
            except MachineError as error:
                problems.append(error)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        while len(guest.heard) < 4:
            threads[0].join(0.01)
        guest.leave()
        for thread in threads:
            thread.join(60)
        assert [error.message for error in problems] == ["guest fake: it ended"] * 3
        assert listener.over.wait(60)
        assert listener.is_lost
        with pytest.raises(MachineError, match="guest fake: it ended"):
            agent.names("/")


def test_a_guest_that_does_not_answer_is_given_up() -> None:
    with greeted(lambda _: None) as (agent, _):
        with pytest.raises(MachineError, match=r"it does not answer \(read /x\) within 0\.05 s"):
            agent.ask_for(messages.ReadFile("/x"), messages.Text, 0.05)
        assert agent.ended()


def test_a_guest_that_hangs_is_given_up_while_only_a_process_is_waited_for() -> None:
    for patience in (0.2, 5.0, 30.0):
        listener = Heard()
        answers = iter([b'{"id":ID,"ok":{}}\n', b'{"id":ID,"ok":{"kind":"folder","mode":493,"size":0}}\n'])
        with greeted(lambda _, answers=answers: next(answers, None)) as (agent, guest):  # type: ignore[misc]
            agent.spawn(agent.process(), SPEC, listener)
            agent.watch(every=0.01, patience=patience)
            assert listener.over.wait(120)
            assert listener.is_lost
            assert agent.ended()
        heard = [each["do"] for each in guest.heard]
        if len(heard) == 3:
            break  # else the first look at it was not answered in time
    assert heard == ["spawn", "status", "status"]


def test_lines_of_a_process_reach_its_listener_in_order() -> None:
    def runs(request: dict[str, Any]) -> bytes:
        # The process is faster than the answer.
        events = b"".join(b'{"process":%d,"line":"%d"}\n' % (request["process"], number) for number in range(3))
        end = b'{"process":%d,"ended":{"status":137,"stderr":"killed"}}\n' % request["process"]
        return events + b'{"id":ID,"ok":{}}\n' + end

    with greeted(runs) as (agent, _):
        first, second = Heard(), Heard()
        agent.spawn(agent.process(), SPEC, first)
        agent.spawn(agent.process(), SPEC, second)
        for listener in (first, second):
            assert listener.over.wait(60)
            assert (listener.lines, listener.end) == (["0", "1", "2"], (137, "killed"))


def test_that_a_held_launcher_waits_is_heard_and_others_are_not_asked_for_it() -> None:
    def runs(request: dict[str, Any]) -> bytes:
        ready = b'{"process":%d,"ready":true}\n' % request["process"] if request["do"] == "spawn" else b""
        end = b'{"process":%d,"ended":{"status":0,"stderr":""}}\n' % request["process"]
        return b'{"id":ID,"ok":{}}\n' + ready + (end if request["do"] == "release" else b"")

    with greeted(runs) as (agent, guest):
        listener = Heard()
        process = agent.process()
        agent.spawn(process, SPEC, listener, held=True)
        agent.release(process)
        assert listener.over.wait(60)
        assert listener.lines == ["arrived"]
        agent.spawn(agent.process(), SPEC, Heard())
        assert [each.get("held") for each in guest.heard] == [True, None, None]


def test_a_launcher_that_is_ready_again_and_again_ends_the_machine() -> None:
    """Each time a thread lets it go."""

    def runs(request: dict[str, Any]) -> bytes:
        return b'{"id":ID,"ok":{}}\n' + b'{"process":%d,"ready":true}\n' % request["process"] * 100

    with greeted(runs) as (agent, _):
        listener = Heard()
        agent.spawn(agent.process(), SPEC, listener, held=True)
        assert listener.over.wait(10)
        assert listener.is_lost and listener.lines == ["arrived"]
        assert "ready, a second time" in agent.gone().message


def test_what_cannot_be_said_is_not_said() -> None:
    with greeted() as (agent, guest):
        with pytest.raises(OSError, match="more than the 1048576 bytes") as caught:
            agent.write("/x", "x" * messages.LONGEST)
        assert caught.value.errno == errno.EMSGSIZE
        with pytest.raises(OSError, match="not UTF-8"):
            agent.read("/\udcff")
        assert guest.heard == []
        agent.write("/x", "1")
        assert guest.heard == [{"id": 3, "do": "write", "path": "/x", "text": "1"}]


def test_power_off_waits_for_the_end_of_the_channel() -> None:
    guests: list[FakeGuest] = []
    with fake_guest(lambda _: guests[0].leave()) as (agent, guest):
        guests.append(guest)
        agent.hello(60)
        assert agent.poweroff(60)
        assert guest.heard == [{"id": 1, "do": "poweroff"}]
    with greeted(lambda _: None) as (agent, _):
        assert not agent.poweroff(0.05)


def test_every_request_has_the_form_of_the_contract() -> None:
    with greeted(lambda _: b'{"id":ID,"ok":{}}\n') as (agent, guest):
        agent.put("/p", b"\x00\xff", 0o644, uid=1, gid=2)
        agent.make("/m", 0o700)
        agent.mount("s", "/t", "tmpfs", "size=1m")
        agent.network("e", "10.0.2.15", 24)
        agent.signal(5, 15)
        agent.ask_for(messages.Settle(0), messages.Nothing)
        assert guest.heard == [
            {"id": 1, "do": "put", "path": "/p", "mode": 420, "uid": 1, "gid": 2, "offset": 0, "data": "AP8="},
            {"id": 2, "do": "make", "path": "/m", "mode": 448, "uid": None, "gid": None},
            {"id": 3, "do": "mount", "source": "s", "target": "/t", "type": "tmpfs", "options": "size=1m"},
            {"id": 4, "do": "network", "interface": "e", "address": "10.0.2.15", "prefix": 24, "gateway": None},
            {"id": 5, "do": "signal", "pid": 5, "number": 15},
            {"id": 6, "do": "settle", "seconds": 0},
        ]


def test_every_line_that_the_agent_can_say_is_read() -> None:
    done = subprocess.run([probe.find(), "describe", "--agent"], capture_output=True, check=True)
    heard: set[type] = set()
    for line in done.stdout.splitlines():
        try:
            found = messages.decode(line)
        except messages.Malformed as error:
            assert b'"id":null' in line, error  # what it did not understand has no number to answer to
        else:
            heard.add(type(found))
    assert heard == {messages.Answer, messages.Hello, messages.EventLine, messages.Arrived, messages.Ended}


def test_a_text_is_shown_without_what_a_terminal_obeys() -> None:
    assert plain("a\x1b]0;title\x07b\u202ec\x9bd\n" + "x" * 1000) == "a\ufffd]0;title\ufffdb\ufffdc\ufffdd " + "x" * 283


@pytest.mark.parametrize(
    "wrong",
    [ValueError("int"), KeyError("x"), IndexError(), OSError(5, "no"), OverflowError(), RecursionError(), TypeError()],
)
def test_whatever_reading_it_raises_names_the_guest_and_what_was_read(wrong: Exception) -> None:
    with (
        pytest.raises(MachineError, match=r"^guest g: its knobs: this makes no sense \(.+"),
        parse_foreign("guest g", "its knobs"),
    ):
        raise wrong


def test_an_error_of_hugewise_stays_what_it_is() -> None:
    for error in (MachineError("gone"), StorageError("full")):
        with pytest.raises(type(error), match=error.message), parse_foreign("guest g", "its knobs"):
            raise error
