"""A guest as a machine: the probe's own agent, as a process of this host instead of in a guest."""

import os
import select
import signal
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from hugewise.errors import MachineError, ProbeError, StorageError
from hugewise.host.local_machine import LocalMachine
from hugewise.machine import machine, probe
from hugewise.machine.agent import CHUNK
from hugewise.machine.machine import Machine, Serving
from hugewise.machine.remote import RemoteFolders
from tests.build.live_agent import Live, job, live
from tests.requirements import need_root
from tests.wait import until

pytestmark = pytest.mark.looks

SH = "/bin/sh"


@pytest.fixture
def guest(tmp_path: Path) -> Iterator[Live]:
    with live(tmp_path) as found:
        yield found


def run(guest: Live, told: probe.Job) -> int:
    return machine.run_launchers([(guest.machine, told)])[0]


# -- programs


def test_a_program_is_told_of_outputs_in_the_guest_which_come_out(guest: Live) -> None:
    told = job(guest.folder / "job", SH, "-c", "echo said")
    assert run(guest, told) == 0
    kept = msgspec.json.decode(told.told.read_bytes(), type=probe.Spec)
    assert kept.argv == told.spec.argv
    assert Path(kept.stdout).parent == guest.folder / "out"
    assert list((guest.folder / "out").iterdir()) == []  # the guest's memory is not filled with them


def test_one_file_for_both_streams_stays_one(guest: Live) -> None:
    told = job(guest.folder / "job", SH, "-c", "echo one; echo two >&2; echo three")
    spec = msgspec.structs.replace(told.spec, stderr=told.spec.stdout)
    assert run(guest, msgspec.structs.replace(told, spec=spec)) == 0
    assert Path(spec.stdout).read_text() == "one\ntwo\nthree\n"


def test_long_outputs_come_whole(guest: Live) -> None:
    told = job(guest.folder / "job", SH, "-c", f"head -c {3 * CHUNK + 5} /dev/zero; printf end >&2")
    assert run(guest, told) == 0
    assert Path(told.spec.stdout).read_bytes() == bytes(3 * CHUNK + 5)
    assert Path(told.spec.stderr).read_text() == "end"


def test_a_micro_workload_says_its_result(guest: Live) -> None:
    told = job(guest.folder / "job", "fault", "--bytes", "4m", micro=True, scan="exit")
    assert run(guest, told) == 0
    kinds = {type(event) for event in machine.read_events(told)}
    assert {probe.Start, probe.Result, probe.Coverage, probe.Usage, probe.Exit} <= kinds
    assert not Path(told.spec.stdout).exists()  # as on this host: it says all to its launcher


def test_a_program_that_is_not_there_is_the_workloads_fault(guest: Live) -> None:
    told = job(guest.folder / "job", "/no/such/program")
    assert run(guest, told) == 0
    assert [event.fault for event in machine.read_events(told) if isinstance(event, probe.Error)] == ["workload"]


def test_a_specification_that_is_refused_says_why(guest: Live) -> None:
    told = job(guest.folder / "job")
    assert run(guest, told) == 2
    assert "argv" in told.stderr.read_text()


SERVER = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.02; done"


def announced(told: probe.Job) -> probe.Job:
    return msgspec.structs.replace(told, spec=msgspec.structs.replace(told.spec, announce=True))


def said(guest: Live) -> str:
    """The stdout of the guest's first job."""
    there = guest.folder / "out/1.stdout"
    return there.read_text() if there.exists() else ""


def test_a_server_is_started_and_stopped_by_its_own_signal(guest: Live) -> None:
    told = announced(job(guest.folder / "job", SH, "-c", SERVER))
    server = Serving(guest.machine, told)
    assert Path("/proc", str(server.pid)).exists()
    assert not server.ended()
    until(lambda: "up" in said(guest), "the server is up")
    assert server.stop(signal.SIGTERM, 60)
    assert select.select([server.launcher], [], [], 0)[0]
    assert Path(told.spec.stdout).read_text() == "up\nbye\n"
    server.close()
    guest.machine.signal(server.pid, signal.SIGTERM)  # gone: nothing happens


def test_what_is_interrupted_is_ended_with_all_below_it(guest: Live) -> None:
    told = job(guest.folder / "job", SH, "-c", "sleep 600 & echo $!; wait")

    def interrupted(_: object) -> None:
        until(lambda: said(guest), "it has begun to sleep")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        machine.run_launchers([(guest.machine, told)], alongside=interrupted)
    sleeper = Path(told.spec.stdout).read_text().strip()
    assert not Path("/proc", sleeper).exists()
    assert any(isinstance(event, probe.Exit) for event in machine.read_events(told))


def test_a_launcher_that_is_killed_has_a_negative_status(guest: Live) -> None:
    told = announced(job(guest.folder / "job", SH, "-c", "exec sleep 600"))
    running = guest.machine.start(told)
    until(told.events.read_bytes, "its launcher says that it is there")
    running.kill()
    assert running.wait(60) in (-signal.SIGKILL, 1)  # its guardian may say it first
    running.close()
    assert running.fileno() == -1


def test_a_program_under_way_is_lost_with_its_machine(guest: Live) -> None:
    told = announced(job(guest.folder / "job", SH, "-c", "exec sleep 600"))
    server = Serving(guest.machine, told)
    with pytest.raises(TimeoutError):
        server._running.wait(0.01)
    guest.process.kill()
    assert select.select([server.launcher], [], [], 60)[0]
    with pytest.raises(MachineError, match="guest live: it ended"):
        server.ended()
    with pytest.raises(MachineError, match="guest live: it ended"):
        guest.machine.start(told)
    server.close()  # what was asked to end has ended


def _meeting(guest: Live, name: str, meeting: machine.Meeting, *argv: str, micro: bool) -> probe.Job:
    told = job(guest.folder / name, *argv, micro=micro)
    return msgspec.structs.replace(told, spec=msgspec.structs.replace(told.spec, barrier=meeting.barrier))


def test_a_launcher_there_meets_one_of_this_host(guest: Live) -> None:
    seen: list[bool] = []
    with machine.Meeting() as meeting:
        there = _meeting(guest, "there", meeting, "fault", "--bytes", "4m", "--gate", micro=True)
        here = _meeting(guest, "here", meeting, SH, "-c", "echo begun", micro=False)

        def before() -> None:
            seen.append(any(isinstance(event, probe.Result) for event in machine.read_events(there)))
            seen.append(Path(here.spec.stdout).exists() and Path(here.spec.stdout).read_text() != "")

        jobs: list[tuple[Machine, probe.Job]] = [(guest.machine, there), (LocalMachine(), here)]
        assert machine.run_launchers(jobs, meeting, before=before) == [0, 0]
    assert seen == [False, False]  # neither had begun when both were ready
    assert any(isinstance(event, probe.Result) for event in machine.read_events(there))
    assert Path(here.spec.stdout).read_text() == "begun\n"


def test_one_that_is_gone_before_the_barrier_holds_nobody_up(guest: Live) -> None:
    with machine.Meeting() as meeting:
        there = _meeting(guest, "there", meeting, "/no/such/program", micro=False)
        assert machine.run_launchers([(guest.machine, there)], meeting) == [0]


def test_its_clock_is_told(guest: Live) -> None:
    before = time.time()
    assert before <= guest.machine.agent.clock() <= time.time()


def test_a_disk_that_is_full_is_told_when_the_program_has_ended(guest: Live) -> None:
    told = job(guest.folder / "job", SH, "-c", "echo said")
    running = guest.machine.start(msgspec.structs.replace(told, events=Path("/dev/full")))
    with pytest.raises(StorageError, match="cannot write /dev/full: No space left"):
        running.wait(60)
    running.close()


def test_short_subcommands_answer_or_fail(guest: Live) -> None:
    assert isinstance(guest.machine.ask("cpu"), probe.Cpu)
    found = guest.machine.ask("scan", "--pid", str(os.getpid()), "--source", "smaps")
    assert isinstance(found, probe.Coverage)
    assert found.pid == os.getpid()
    with pytest.raises(ProbeError, match="hugewise-probe scan --pid 999999999 .*failed in guest live"):
        guest.machine.ask("scan", "--pid", "999999999", "--source", "smaps")
    with pytest.raises(ProbeError, match="hugewise-probe run failed"):
        guest.machine.ask("run")
    assert not guest.machine.agent.ended()


# -- the system


# -- files


def test_the_host_reads_and_writes_as_the_local_one(guest: Live) -> None:
    host, place = guest.machine.host, guest.folder / "knob"
    place.write_text("always [madvise] never\n")
    assert host.read(str(place)) == "always [madvise] never"
    host.write(str(place), "never")
    assert place.read_text() == "nevers [madvise] never\n"  # one write, from the beginning, as a knob takes it
    assert host.writable(str(place))
    place.chmod(0o444)
    assert not host.writable(str(place))
    assert not host.writable(str(guest.folder))
    assert not host.writable(str(guest.folder / "none"))
    with pytest.raises(FileNotFoundError):
        host.read(str(guest.folder / "none"))
    with pytest.raises(FileNotFoundError):
        host.write(str(guest.folder / "none"), "1")
    assert host.names(str(guest.folder)) == ["knob", "messages", "tmp"]
    assert host.names(str(guest.folder / "none")) == []
    assert host.names(str(place)) == []
    assert host.privileged()
    assert host.read("/proc/sys/kernel/random/boot_id") == guest.machine.agent.hello().boot_id


def test_scratch_folders_of_an_attempt(guest: Live) -> None:
    place = guest.folder / "scratch"
    folders = RemoteFolders.open(guest.machine, str(place), None, None)
    assert stat.S_IMODE(place.stat().st_mode) == 0o711
    assert RemoteFolders.open(guest.machine, str(place), None, None) == folders
    data = folders.folder("data")
    assert data == place / "data"
    (data / "file").write_text("1")
    assert list(folders.folder("data").iterdir()) == []
    folders.clear()
    assert list(place.iterdir()) == []
    guest.process.kill()
    guest.process.wait()
    with pytest.raises(MachineError):
        folders.folder("data")
    folders.clear()  # gone with the guest


def test_an_account_owns_what_is_made_for_it(guest: Live) -> None:
    need_root()
    made = RemoteFolders.open(guest.machine, str(guest.folder / "scratch"), 65534, 65534).folder("run")
    assert (made.stat().st_uid, made.stat().st_gid) == (65534, 65534)


def test_python_as_a_program_of_the_guest_gets_no_environment_of_ours(guest: Live) -> None:
    told = job(guest.folder / "job", sys.executable, "-c", "import os; print(sorted(os.environ))")
    assert run(guest, told) == 0
    assert Path(told.spec.stdout).read_text() in ("['PATH']\n", "['LC_CTYPE', 'PATH']\n")
