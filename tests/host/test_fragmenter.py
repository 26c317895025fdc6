"""The process that keeps free memory in pieces, with a small program in the place of the probe's `fragment`."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hugewise.errors import ProbeError, StorageError
from hugewise.host import memory_state
from hugewise.host.ledger import Fragmenting
from hugewise.host.local_host import LocalHost
from hugewise.host.memory_state import Fragmenter
from hugewise.machine import probe
from hugewise.machine.proc import start_time
from tests.build import known
from tests.build.hosts import FakeHost
from tests.wait import until

# As the probe of this version says it.
_SAID = '{{"v":1,"ev":"fragmented","free_bytes":1073741824,"huge_bytes":{huge},"pinned":480,"rounds":2,"wall_ns":7}}'
_FRAGMENTS = f"""
echo "$*" > $0.words
while read -r most; do echo '{_SAID.format(huge="'$most'")}'; done
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its path: a script's process is called as its file is."""
    path = tmp_path / "hugewise-probe"
    path.write_text(f"#!/bin/sh\n{_FRAGMENTS}")
    path.chmod(0o755)
    monkeypatch.setenv("HUGEWISE_PROBE", str(path))
    return path


@pytest.fixture
def waiting(stand_in: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A fragmenter of a run that is dead."""
    with subprocess.Popen([stand_in], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        try:
            called = Path(f"/proc/{process.pid}/comm")
            until(lambda: called.read_text() == "hugewise-probe\n", "the stand-in has begun")
            yield process
        finally:
            process.kill()


def test_memory_is_held_in_pieces_until_it_is_closed(stand_in: Path) -> None:
    host, noted = LocalHost(), list[Fragmenting]()
    with closing(Fragmenter(host, 5 << 30, noted.append, "--seed", "7")) as one:
        assert noted == [Fragmenting(one.pid, known(start_time(host, one.pid)))]
        assert one.hold(64 << 20) == probe.Fragmented(1 << 30, 64 << 20, 480, 2, 7)
        assert one.hold(0).huge_bytes == 0
        lived = one.lives
    assert lived
    assert Path(f"{stand_in}.words").read_text() == "fragment --floor 5368709120 --seed 7\n"
    assert not one.lives
    assert start_time(host, one.pid) is None


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("read -r most; echo 'cannot pin: Cannot allocate memory' >&2; exit 1", "cannot pin: Cannot allocate memory"),
        ("read -r most; exit 3", "the probe ended with 3, and said nothing"),
        ("read -r most; printf '{\"v\":1,'; exit 0", "the probe ended with 0, and said nothing"),
        ("exit 4", "the probe ended with 4, and said nothing"),  # before it was told anything
    ],
)
def test_a_probe_that_cannot_says_why(stand_in: Path, script: str, said: str) -> None:
    stand_in.write_text(f"#!/bin/sh\n{script}\n")
    with (
        closing(Fragmenter(LocalHost(), 0, lambda _: None)) as one,
        pytest.raises(ProbeError, match=f"^memory cannot be fragmented: {said}$"),
    ):
        one.hold(1)


def test_memory_that_is_not_fragmented_in_time_is_said(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_state, "_PATIENCE_S", 0.0)
    stand_in.write_text("#!/bin/sh\nread -r most\nread -r more\n")
    with (
        closing(Fragmenter(LocalHost(), 0, lambda _: None)) as one,
        pytest.raises(ProbeError, match="^memory is not fragmented after 0 s$"),
    ):
        one.hold(1)


@pytest.mark.usefixtures("stand_in")
def test_a_fragmenter_that_the_journal_cannot_have_is_ended_at_once() -> None:
    noted: list[Fragmenting] = []

    def full(one: Fragmenting) -> None:
        noted.append(one)
        raise StorageError("disk full")

    with pytest.raises(StorageError):
        Fragmenter(LocalHost(), 0, full)
    (one,) = noted
    assert one.pid_start > 0
    assert start_time(LocalHost(), one.pid) is None


def test_what_a_dead_run_left_is_ended_and_no_other_process(waiting: subprocess.Popen[bytes]) -> None:
    host = LocalHost()
    begun = known(start_time(host, waiting.pid))
    assert not memory_state.end(host, Fragmenting(waiting.pid, begun + 1))  # the number was given to another process
    own = Fragmenting(os.getpid(), known(start_time(host, os.getpid())))
    assert not memory_state.end(host, own)  # which is no probe
    assert waiting.poll() is None
    assert memory_state.end(host, Fragmenting(waiting.pid, begun))
    assert waiting.wait() == -9
    assert not memory_state.end(host, Fragmenting(waiting.pid, begun))


def test_memory_is_compacted_where_the_kernel_can() -> None:
    host = FakeHost()
    memory_state.compact(host)
    assert host.writes == [(memory_state.COMPACT, "1")]
    host.root = False
    memory_state.compact(host)
