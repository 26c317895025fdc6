"""A performance with a real server and a real client, without a run around it: no page setting is turned."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from hugewise.attempt import service
from hugewise.attempt.outcome import Outcome, staged
from hugewise.attempt.service import ServiceDriver
from hugewise.errors import ProbeError
from hugewise.host.knob import Settings
from hugewise.host.local_machine import LocalLauncher, LocalMachine
from hugewise.host.scratch import Scratch
from hugewise.machine import probe
from hugewise.machine.machine import Contained, Site
from hugewise.model.policy import Treatment
from hugewise.model.procedure import Data, Outputs, Places, Procedure, Reading, Server, Step, Window, Write
from hugewise.model.workload import Launch, ParameterValue, RunsAs
from tests.build import known
from tests.build.studies import FakeWorkload, an_arm, cell_of
from tests.requirements import need
from tests.wait import until

PAGES = 4096
# A child for each connection, as PostgreSQL has them: it touches so many base pages, and says so.
SERVER = f"""
import mmap, os, signal, socket
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
listening = socket.socket(socket.AF_UNIX)
listening.bind("socket")
listening.listen()
while True:
    one, _ = listening.accept()
    if one.recv(5) == b"touch" and os.fork() == 0:
        area = mmap.mmap(-1, {PAGES} * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        area.madvise(mmap.MADV_NOHUGEPAGE)
        for at in range(0, len(area), mmap.PAGESIZE):
            area[at] = 1
        one.sendall(b"done")
        os._exit(0)
    one.close()
"""
ASK = """
import socket, sys, time
def ask(word):
    one = socket.socket(socket.AF_UNIX)
    one.connect("socket")
    one.sendall(word)
    return one.recv(4)
"""


class Touching(FakeWorkload):
    """The client has `rounds` children of the server touch pages; in a window it goes on until it is ended."""

    ports = 0
    clients = True
    stage_account: RunsAs = "unprivileged"

    def __init__(self, script: str, window: Window | None) -> None:
        super().__init__("touching", ())
        self.script, self.window = script, window

    def data(self, values: Mapping[str, ParameterValue]) -> Data | None:
        return None

    def procedure(self, treatment: Treatment, values: Mapping[str, ParameterValue], places: Places) -> Procedure:
        ready = Step(name="ready", argv=(sys.executable, "-c", f"{ASK}ask(b'hello')"))
        warm = Step(name="warm", argv=(sys.executable, "-c", f"{ASK}assert ask(b'touch') == b'done'"))
        return Procedure(
            servers=(Server(name="server", argv=(sys.executable, "-c", SERVER), ready=ready),),
            warm=(warm,),
            timed=Launch(argv=(sys.executable, "-c", ASK + self.script), proof="live"),
            window=self.window,
        )

    def read(self, outputs: Outputs, values: Mapping[str, ParameterValue]) -> Reading:
        assert list(outputs.files(re.compile("nothing"))) == []
        return Reading(metrics={"rounds": 1.0})


ROUNDS = "for _ in range(3): assert ask(b'touch') == b'done'"
FOREVER = "while True: ask(b'touch'); open('answered', 'ab', 0).write(b'.')"


@pytest.fixture
def scratch() -> Iterator[Scratch]:
    # Short: a socket lies in it.
    made = Scratch(Path(tempfile.mkdtemp(prefix="hw-", dir="/tmp")), None, None)
    yield made
    made.clear()
    made.path.rmdir()


def played(
    tmp_path: Path,
    scratch: Scratch,
    script: str,
    window: Window | None = None,
    workload: type[Touching] = Touching,
) -> ServiceDriver:
    """The steps of an attempt in their order, as the runner calls them; the server has no cgroup."""
    arm = an_arm("base")
    cell = cell_of(workload(script, window), arm, timeout=60.0)
    machine = LocalMachine()
    site = Site(
        machine,
        Settings(machine.host, None),
        lambda _: Contained(),
        lambda _: scratch,
        "smaps",
        os.sysconf("SC_PAGE_SIZE"),
    )
    made = ServiceDriver(
        site=site,
        cell=cell,
        arm=arm,
        outputs=tmp_path,
        scratch=scratch,
        sut=Contained(),
        client=Contained(),
    )
    try:
        made.supply()
        made.serve()
        assert made.problem is None
        alongside = made.timing(held=False)
        with subprocess.Popen(made.procedure.timed.argv, cwd=made.procedure_runner.places.run) as client:
            if window is None:
                alongside([LocalLauncher(client)])
            else:
                answered = Path(made.procedure_runner.places.run, "answered")
                until(lambda: answered.exists() and answered.stat().st_size, "the client is answered")
                wait = made.procedure_runner.attend(window, asked_at_both(made.mark, answered), client.kill)
                wait([LocalLauncher(client)])
        made.timed()
        made.conclude()
        made.dismiss()
    finally:
        made.close()
    assert made.problem is None, made.problem
    return made


def asked_at_both(mark: Callable[[], None], answered: Path) -> Callable[[], None]:
    """Marks an end of the window; the last one when two more answers have come: the second was asked for within."""
    seen: list[int] = []

    def marked() -> None:
        if seen:
            until(lambda: answered.stat().st_size >= seen[0] + 2, "the client is answered in the window")
        mark()
        seen.append(answered.stat().st_size)

    return marked


def faults(made: ServiceDriver) -> int:
    assert isinstance(made.counted, probe.Counters), made.counted
    count = made.counted.values["page-faults"]
    need(count.value is not None, f"the perf event page-faults: {count.reason}")
    return known(count.value)


def phases(outputs: Path) -> dict[str, int]:
    """When the counting was ready, began and ended, in ns."""
    lines = (outputs / "counting.jsonl").read_bytes().splitlines(keepends=True)
    return {event.name: event.t_ns for event in probe.decode(lines) if isinstance(event, probe.Phase)}


def test_what_servers_and_their_children_do_is_counted_in_the_measured_part_alone(
    tmp_path: Path, scratch: Scratch
) -> None:
    """Three children touch their pages in it; one did before, while the server was warmed."""
    made = played(tmp_path, scratch, ROUNDS)
    assert 3 * PAGES <= faults(made) < 4 * PAGES
    assert list(phases(tmp_path)) == ["ready", "timed", "held"]
    client = Outcome(state="accepted", cpu_s=9.0, metrics={"wall_s": 9.0}, exit_code=0)
    found = staged(
        client,
        None,
        made.reading,
        servers=made.use("sut"),
        counted=made.counted,
        seconds=made.seconds,
        footprint=made.footprint,
    )
    assert found.metrics["page_faults"] == faults(made)
    for name in ("cycles", "instructions", "dtlb_load_misses", "ipc", "dtlb_mpki", "walk_steps_pki"):
        assert (found.metrics[name] is None) == bool(found.absent.get(name)), name


def test_in_a_window_its_ends_are_those_of_the_counting(tmp_path: Path, scratch: Scratch) -> None:
    made = played(tmp_path, scratch, FOREVER, Window(0.2, 0.5))
    assert faults(made) >= PAGES
    begin, end = known(made.measured)
    at = phases(tmp_path)
    assert 0 < (at["held"] - at["timed"]) / 1e9 <= end - begin


def test_an_attempt_goes_on_when_its_servers_cannot_be_counted(
    tmp_path: Path, scratch: Scratch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(pids: object, counters: object) -> None:
        raise ProbeError("no counting today")

    monkeypatch.setattr(service, "Counting", refuse)
    made = played(tmp_path, scratch, ROUNDS)
    assert made.counted == "no counting today"
    assert made.reading.metrics == {"rounds": 1.0}


def test_what_rests_on_a_clock_is_not_told_of_an_emulated_machine(
    tmp_path: Path, scratch: Scratch, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Reading(
        metrics={"rounds": 1.0}, facts={"grid": "8x1", "keys": 7}, marks=("busy", "lost"), of_time=("grid", "busy")
    )
    monkeypatch.setattr(Touching, "read", lambda *_: told)
    monkeypatch.setattr(LocalMachine, "emulated", True)
    made = played(tmp_path, scratch, ROUNDS)
    assert made.marks == ["lost"]
    assert (made.facts().get("grid"), made.facts()["keys"]) == (None, 7)
    monkeypatch.setattr(LocalMachine, "emulated", False)
    assert made.facts()["grid"] == "8x1"


@pytest.mark.parametrize(
    "error", [RecursionError("deep"), OverflowError("large"), TypeError("a list"), KeyError("gone")]
)
def test_output_that_no_reader_foresaw_fails_the_attempt_with_its_reason(
    tmp_path: Path, scratch: Scratch, error: Exception
) -> None:
    class Breaking(Touching):
        def read(self, outputs: Outputs, values: Mapping[str, ParameterValue]) -> Reading:
            raise error

    with pytest.raises(AssertionError, match=f"failed.*its output is not as expected: {type(error).__name__}"):
        played(tmp_path, scratch, ROUNDS, workload=Breaking)


class Laid(Touching):
    """Its data are made on the machine itself: of a file of the study's, by a step and with a server that helps."""

    fails = False
    source = Path("/nowhere")

    def data(self, values: Mapping[str, ParameterValue]) -> Data | None:
        def recipe(places: Places) -> Iterator[Step | Server | Write]:
            code = f"import os, sys; open('{places.data}/{{}}', 'a').write({{}}); sys.exit({int(self.fails)})"
            yield Write("first", "written")
            ready = Step(name="asked", argv=(sys.executable, "-c", f"{ASK}ask(b'hello')"))
            yield Server(name="helper", argv=(sys.executable, "-c", SERVER), ready=ready)
            yield Step(
                name="make", argv=(sys.executable, "-c", code.format("made", f"open({str(self.source)!r}).read()"))
            )

        return Data(name="laid", key={}, recipe=recipe, inputs=(str(self.source),))


@pytest.fixture
def put(reached: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, bytes]]:
    """What the machine is given below its root, which here is this host's own."""
    given: list[tuple[str, str, bytes]] = []
    real = LocalMachine.put

    def put(machine: LocalMachine, folder: str, name: str, content: bytes, *owner: int | None, **more: int) -> None:
        if folder == "/":
            given.append((folder, name, content))
        else:
            real(machine, folder, name, content, *owner, **more)

    monkeypatch.setattr(LocalMachine, "put", put)
    monkeypatch.setattr(Laid, "source", reached / "source")
    (reached / "source").write_text("of the study")
    return given


def test_data_that_no_copy_is_kept_of_are_made_where_the_attempt_is_played(
    tmp_path: Path, scratch: Scratch, put: list[tuple[str, str, bytes]]
) -> None:
    """Of the files that their recipe reads, and what helped to make them has ended before the servers begin."""
    seen: dict[str, str] = {}

    class Looking(Laid):
        def procedure(self, treatment: Treatment, values: Mapping[str, ParameterValue], places: Places) -> Procedure:
            seen.update({path.name: path.read_text() for path in Path(places.data).iterdir()})
            (Path(places.run) / "socket").unlink()  # of the helper: the server could not bind it
            return super().procedure(treatment, values, places)

    played(tmp_path, scratch, ROUNDS, workload=Looking)
    assert seen == {"first": "written", "made": "of the study"}
    assert put == [("/", str(Laid.source)[1:], b"of the study")]


def test_data_that_cannot_be_made_reject_the_attempt(
    tmp_path: Path, scratch: Scratch, put: list[tuple[str, str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Laid, "fails", True)
    with pytest.raises(AssertionError, match=r"rejected.*make \(python[0-9.]*\): exit status 1"):
        played(tmp_path, scratch, ROUNDS, workload=Laid)
    assert put
