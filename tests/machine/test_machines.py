"""What every machine promises, whichever it is: this host, or a guest (the probe's own agent, as a process here)."""

import os
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hugewise.attempt import outcome
from hugewise.errors import HugewiseError, StorageError
from hugewise.host.local_machine import LocalMachine
from hugewise.machine import probe
from hugewise.machine.agent import CHUNK
from hugewise.machine.machine import Contained, Machine, read_events, run_launchers
from hugewise.model.procedure import RoleUse
from hugewise.reading import UnreadableError
from tests.build.live_agent import job, live
from tests.requirements import need_root

SH = "/bin/sh"


@pytest.fixture(params=["this host", "a guest"])
def machine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    if request.param == "this host":
        yield LocalMachine()
        return
    with live(tmp_path_factory.mktemp("guest")) as found:
        yield found.machine


def test_what_the_machine_has(machine: Machine) -> None:
    assert set(machine.cpus()) <= set(range(os.cpu_count() or 1))
    ports = machine.ports(5)
    assert len(set(ports)) == 5
    with socket.socket() as one:
        one.bind(("127.0.0.1", ports[0]))
    assert machine.ports(0) == ()
    assert "/usr/bin" in machine.environment["PATH"].split(":")
    assert machine.environment.keys() <= {"PATH", "LANG", "TZ"}  # little of the caller's


def test_a_folder_is_fresh_and_private(machine: Machine, tmp_path: Path) -> None:
    place = tmp_path / "folder"
    place.mkdir(mode=0o755)
    (place / "left").write_text("of before")
    machine.folder(str(place), None, None)
    assert list(place.iterdir()) == []
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    with pytest.raises(StorageError, match="cannot make /proc/none"):
        machine.folder("/proc/none", None, None)


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK])
def test_a_file_brings_the_folders_that_it_lies_in(machine: Machine, tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    machine.put(str(tmp_path), "a/b/file", content, None, None)
    assert (tmp_path / "a" / "b" / "file").read_bytes() == content
    with pytest.raises(StorageError):
        machine.put(str(tmp_path), "a", b"", None, None)  # a folder is there


def test_folders_and_files_are_the_accounts(machine: Machine, tmp_path: Path) -> None:
    need_root()
    machine.folder(str(tmp_path / "folder"), 65534, 65534)
    machine.put(str(tmp_path / "folder"), "file", b"", 65534, 65534)
    found = [(path.stat().st_uid, path.stat().st_gid) for path in (tmp_path / "folder", tmp_path / "folder" / "file")]
    assert found == [(65534, 65534)] * 2


def test_files_are_had_by_name_and_what_is_no_file_is_not_read(machine: Machine, tmp_path: Path) -> None:
    for name in ("log.2", "log.1", "log.10x", "other"):
        (tmp_path / name).write_text(name)
    (tmp_path / "log.3").mkdir()
    os.mkfifo(tmp_path / "log.4")  # reading it would wait for ever
    assert list(machine.files(str(tmp_path), re.compile(r"log\.\d+"))) == [b"log.1", b"log.2"]
    (tmp_path / "log.5").symlink_to("/etc/passwd")  # an account may have laid it out
    with pytest.raises(UnreadableError, match="symbolic"):
        list(machine.files(str(tmp_path), re.compile(r"log\.\d+")))


def test_removing_takes_the_tree_and_not_what_a_link_leads_to(machine: Machine, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("")
    (tmp_path / "link").symlink_to(kept)
    machine.remove(str(tmp_path / "link"))
    assert (kept / "file").exists()
    for path in (kept / "file", kept, kept):  # at last it is gone already
        machine.remove(str(path))
    assert list(tmp_path.iterdir()) == []


def test_a_signal_to_one_that_is_gone_is_nothing(machine: Machine) -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    machine.signal(process.pid, signal.SIGTERM)
    assert process.wait(60) == -signal.SIGTERM
    machine.signal(process.pid, signal.SIGTERM)


def test_a_program_leaves_its_events_and_outputs_on_this_side(machine: Machine, tmp_path: Path) -> None:
    told = job(tmp_path / "job", SH, "-c", "echo said; echo complained >&2; exit 3")
    assert run_launchers([(machine, told)]) == [0]
    assert Path(told.spec.stdout).read_text() == "said\n"
    assert Path(told.spec.stderr).read_text() == "complained\n"
    events = read_events(told)
    assert isinstance(events[0], probe.Start)
    assert isinstance(events[-1], probe.Exit)
    assert events[-1].code == 3
    assert told.stderr.read_bytes() == b""
    assert stat.S_IMODE(told.told.stat().st_mode) == 0o600


_SPARSE = "exec python3 -c 'import os; os.ftruncate(1, 1 << 43)'"


@pytest.mark.parametrize("script", ["exec yes", "exec yes >&2", _SPARSE])
def test_what_a_program_says_without_end_ends_it_and_is_cut(machine: Machine, tmp_path: Path, script: str) -> None:
    told = job(tmp_path / "job", SH, "-c", script)
    assert run_launchers([(machine, told)]) == [0]
    exited = outcome.last(read_events(told), probe.Exit)
    stream = "stderr" if "&2" in script else "stdout"
    reason = f"its {stream} has more than {probe.MOST_SAID} bytes, the most that is kept"
    assert exited is not None and exited.exceeded == reason
    assert Path(getattr(told.spec, stream)).stat().st_size == probe.MOST_SAID
    found = outcome.outcome(read_events(told), micro=False, timeout_s=60)
    assert (found.state, found.reason) == ("failed", reason)


def test_without_a_cgroup_nothing_is_counted_and_nothing_can_be_frozen() -> None:
    nowhere = Contained()
    assert (nowhere.procs_files, nowhere.kill(), nowhere.peak_bytes(), nowhere.used()) == ((), 0, None, RoleUse())
    with pytest.raises(HugewiseError, match="nothing can be frozen"):
        nowhere.freeze()
    with pytest.raises(HugewiseError, match="nothing can be thawed"):
        nowhere.thaw()
