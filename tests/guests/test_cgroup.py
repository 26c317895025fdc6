"""Groups of a guest: figures from the files of one, and real groups of this host through an agent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hugewise.errors import HugewiseError, MachineError
from hugewise.guests.machines import Groups, GuestLeaf
from hugewise.host import cgroup
from hugewise.host.local_host import LocalHost
from hugewise.model.procedure import RoleUse
from tests.build.live_agent import job, live
from tests.requirements import need, need_root
from tests.wait import until


def leaf(folder: Path, *, counted: bool = True, emulated: bool = True) -> GuestLeaf:
    return GuestLeaf((folder,), folder if counted else None, LocalHost(), emulated, discard=os.rmdir)


def test_figures_of_a_group(tmp_path: Path) -> None:
    (tmp_path / "memory.peak").write_text("4096\n")
    (tmp_path / "memory.stat").write_text("anon 1\npgfault 77\npgmajfault 2\n")
    (tmp_path / "cpu.stat").write_text("usage_usec 3000000\nuser_usec 2000000\nsystem_usec 1000000\n")
    (tmp_path / "cgroup.procs").write_text("12\n7\n")
    group = leaf(tmp_path)
    assert (group.peak_bytes(), group.processes()) == (4096, [7, 12])
    assert group.procs_files == (tmp_path / "cgroup.procs",)
    assert group.used() == RoleUse(faults=77)  # of an emulated guest
    assert leaf(tmp_path, emulated=False).used() == RoleUse(cpu_s=3.0, user_s=2.0, system_s=1.0, faults=77)
    (tmp_path / "memory.max").write_text("max")
    group.limit_memory(1 << 20)
    assert (tmp_path / "memory.max").read_text() == "1048576"


def test_what_is_not_counted_is_none(tmp_path: Path) -> None:
    group = leaf(tmp_path, counted=False, emulated=False)
    assert (group.peak_bytes(), group.used(), group.processes()) == (None, RoleUse(), [])
    with pytest.raises(MachineError, match="has none") as caught:
        group.limit_memory(1 << 20)
    assert caught.value.hint == "give the study a kernel with CONFIG_MEMCG"
    counted = leaf(tmp_path)
    assert (counted.peak_bytes(), counted.used()) == (None, RoleUse())  # a kernel without memory.peak
    with pytest.raises(MachineError, match="cannot limit the memory"):
        counted.limit_memory(1 << 20)


def test_a_group_that_cannot_be_killed_or_removed_says_so(tmp_path: Path) -> None:
    (tmp_path / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    with pytest.raises(MachineError, match="cannot kill what is in the cgroup"):
        leaf(tmp_path).kill()
    with pytest.raises(MachineError, match="cannot remove the cgroup"):
        leaf(tmp_path).remove()


def test_a_group_is_frozen_by_its_guests_kernel_alone(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="has no cgroup.freeze"):  # no process of this host is sent a signal
        leaf(tmp_path).freeze()
    (tmp_path / "cgroup.freeze").write_text("0")
    (tmp_path / "cgroup.events").write_text("populated 1\nfrozen 1\n")
    leaf(tmp_path).freeze()
    assert (tmp_path / "cgroup.freeze").read_text() == "1"
    (tmp_path / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    leaf(tmp_path).thaw()
    assert (tmp_path / "cgroup.freeze").read_text() == "0"
    (tmp_path / "cgroup.events").unlink()
    with pytest.raises(MachineError, match="the freezer of"):
        leaf(tmp_path).thaw()


def test_a_group_that_does_not_freeze_is_an_error_of_the_guest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hugewise.guests.machines._PATIENCE_S", 0.01)
    (tmp_path / "cgroup.freeze").write_text("0")
    (tmp_path / "cgroup.events").write_text("frozen 0\n")
    with pytest.raises(MachineError, match=f"{tmp_path} does not freeze within"):
        leaf(tmp_path).freeze()


def test_what_was_in_a_guest_that_is_gone_is_gone_too(tmp_path: Path) -> None:
    (tmp_path / "cgroup.events").write_text("populated 1\n")
    left = GuestLeaf((tmp_path,), None, LocalHost(), gone=lambda: True, discard=os.rmdir)
    assert left.kill() == 0
    left.remove()


def test_groups_of_a_kernel_without_any(tmp_path: Path) -> None:
    with live(tmp_path) as guest, pytest.raises(HugewiseError, match="cannot make the cgroup") as caught:
        Groups(guest.machine, str(tmp_path / "none")).create("sut")
    assert caught.value.hint == "give the study a kernel with CONFIG_CGROUPS"


@pytest.mark.host  # others look among the cgroups for what a run left
def test_programs_enter_a_group_and_die_with_it(tmp_path: Path) -> None:
    need_root()
    mounted = cgroup.find().get("2")
    need(mounted is not None, "a cgroup v2 file system")
    root = f"{mounted}/hugewise-{os.getpid()}-groups"
    with live(tmp_path, emulated=False) as guest:
        groups = Groups(guest.machine, root)
        sut, client = groups.create("sut"), groups.create("client")
        try:
            launch = job(tmp_path / "job", "/bin/sh", "-c", "sleep 600 & sleep 600", groups=sut.procs_files)
            running = guest.machine.start(launch)
            until(lambda: len(sut.processes()) == 3, "the shell and both sleepers are there", seen=sut.processes)
            assert client.processes() == []
            assert client.kill() == 0
            assert sut.kill() == 3
            assert sut.processes() == []
            assert running.wait(60) == 0
            running.close()
            assert (sut.used().cpu_s or 0) > 0
            with pytest.raises(HugewiseError, match="File exists"):
                groups.create("sut")
        finally:
            sut.kill()
            sut.remove()
            client.remove()
            guest.machine.remove(root)
    assert not Path(root).exists()
