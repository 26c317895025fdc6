"""Guests with everything faked that boots: QEMU's words, what is kept, that nothing stays; and their cgroups."""

import os
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from hugewise.errors import HugewiseError, MachineError
from hugewise.guests.machines import Groups, GuestLeaf
from hugewise.host import cgroup
from hugewise.host.local_host import LocalHost
from hugewise.host.network import USER
from hugewise.host.pool import Pools
from hugewise.model.pages import PageTarget
from hugewise.model.procedure import RoleUse
from tests.build.live_agent import job, live
from tests.build.studies import workloads
from tests.guests.boarded import GIB, PROVEN, Yard, arm, cell, trial
from tests.requirements import need, need_root
from tests.wait import until


def test_qemu_is_told_what_the_study_says(yard: Yard, tmp_path: Path) -> None:
    machine = yard.boarding().board(cell(), arm(), trial(), 1, tmp_path / ".b00001-0-shp1g-1")
    ((guest, hosting, timeout),) = yard.boots
    assert (guest.memory, guest.cpus, guest.cpu, guest.accelerator) == (GIB, 2, "max", "tcg")
    assert (guest.backing.pages, guest.append, guest.counting) == ("hugetlb-1g", ("nosoftlockup",), False)
    assert (hosting.cpus, hosting.outputs, timeout) == ((3, 5), tmp_path / ".b00001-0-shp1g-1", None)
    assert (hosting.run, hosting.hugetlbfs) == (yard.place / "g0", {1 << 30: "/mounted"})
    assert hosting.run.is_dir()
    assert [leaf.name for leaf in yard.leaves] == ["qemu-b00001-0-shp1g-1"]
    site = machine.site
    assert (site.base_size, site.machine.emulated, site.machine.counters) == (4096, True, False)
    assert site.peer.bind == "127.0.0.1"
    machine.close()


def test_the_key_boot_is_how_long_a_guest_may_take(yard: Yard, tmp_path: Path) -> None:
    """One that counts is heard when it has done its orders: it has the time of its workload beside."""
    yard.boarding(boot=300.0).board(cell(), arm(), trial(), 1, tmp_path / "x").close()
    outputs = tmp_path / "y"
    outputs.mkdir()
    counting = yard.boarding(counting=True, boot=300.0).board(cell(), arm(), trial(), 1, outputs)
    counting._boot(b"").hello()
    counting.close()
    assert [timeout for _, _, timeout in yard.boots] == [300.0, 300.0 + cell().timeout]


def test_guests_of_a_block_that_run_together_have_the_cpu_of_their_slot(yard: Yard, tmp_path: Path) -> None:
    for slot in (0, 1):
        yard.boarding().board(cell(together=True), arm(), trial(order=slot, slot=slot), 1, tmp_path / str(slot)).close()
    assert [hosting.cpus for _, hosting, _ in yard.boots] == [(3,), (5,)]
    assert [hosting.run.name for _, hosting, _ in yard.boots] == ["g0", "g1"]


def test_every_attempt_has_a_seed_of_its_own_and_the_same_again(yard: Yard, tmp_path: Path) -> None:
    made = yard.boarding()
    tries = [(1, 0, 1), (1, 1, 1), (2, 0, 1), (1, 0, 2), (1, 0, 1)]
    for block, order, number in tries:
        made.board(cell(), arm(), trial(block, order), number, tmp_path / "x").close()
    seeds = [guest.seed for guest, _, _ in yard.boots]
    assert len(set(seeds)) == len(tries) - 1
    assert seeds[0] == seeds[-1]
    assert all(0 <= seed < 1 << 53 for seed in seeds)
    for seed in (b"one", b"one", b"another"):
        yard.boarding(seed=seed).board(cell(), arm(), trial(), 1, tmp_path / "x").close()
    first, again, other = (guest.seed for guest, _, _ in yard.boots[-3:])
    assert first == again != other


def test_under_the_method_exact_both_sides_of_a_pair_have_one_seed(yard: Yard, tmp_path: Path) -> None:
    """Whichever came first, and however often a side was tried; another block has another."""
    places = [(1, 0, 1), (1, 1, 1), (1, 1, 2), (2, 0, 1)]
    for paired in (True, False):
        boarding = replace(yard.boarding(), paired=paired)
        for block, order, number in places:
            drawn = msgspec.structs.replace(trial(), block=block, order=order)
            boarding.board(cell(), arm(), drawn, number, tmp_path / "x").close()
    seeds = [guest.seed for guest, _, _ in yard.boots]
    assert (len(set(seeds[:3])), len(set(seeds[:4])), len(set(seeds[4:]))) == (1, 2, 4)


def test_a_guest_with_a_network_is_given_its_address_and_sees_this_host(yard: Yard, tmp_path: Path) -> None:
    machine = yard.boarding(USER, network="user").board(cell(), arm(), trial(), 1, tmp_path / "x")
    (told,) = [heard for heard in yard.booted[0].guest.heard if heard["do"] == "network"]
    assert (told["interface"], told["address"]) == (USER.interface, USER.address)
    assert (machine.site.peer.bind, machine.site.peer.address) == (USER.bind, USER.host)
    assert yard.boots[0][0].network == "user"
    machine.close()


def test_what_a_guest_was_is_kept_with_the_proof_of_its_memory(yard: Yard, tmp_path: Path) -> None:
    machine = yard.boarding().board(cell(), arm(), trial(), 1, tmp_path / "x")
    backed = machine.leave()
    assert backed.problem is None
    facts = backed.facts
    assert (facts["backing"], facts["backing_share"], facts[f"backing_hugetlb:{GIB}"]) == ("hugetlb-1g", 1.0, GIB)
    assert (facts["accelerator"], facts["qemu"], facts["cpu_model"]) == ("tcg", "7.2.22", "max,-cx16")
    assert (facts["kernel"], facts["kernel_sha256"], facts["image"]) == ("k", "0" * 64, "d" * 64)
    assert (facts["initramfs_sha256"], yard.images) == ("a" * 64, [yard.place / "initramfs"])
    assert facts["guest_seed"] == yard.boots[0][0].seed
    assert "ended" not in facts
    machine.close()


def test_a_guest_without_its_backing_or_its_proof_is_a_problem(yard: Yard, tmp_path: Path) -> None:
    why = "512 MiB of 1 GiB are base pages"
    yard.proof, yard.obeys = msgspec.structs.replace(PROVEN, accepted=False, share=0.5, why=why), False
    machine = yard.boarding().board(cell(), arm(), trial(), 1, tmp_path / "x")
    backed = machine.leave()
    assert backed.problem == f"backing hugetlb-1g: {why}"
    assert backed.facts["ended"] == "killed: it did not end when it was told to"
    machine.close()
    yard.proof = MachineError("QEMU's smaps cannot be read")
    machine = yard.boarding().board(cell(), arm(), trial(), 1, tmp_path / "x")
    backed = machine.leave()
    assert "cannot be read" in (backed.problem or "")
    assert backed.facts["kernel_release"] == "6.12.1"
    assert "backing_share" not in backed.facts
    machine.close()


def test_close_ends_everything_and_may_be_called_again(yard: Yard, tmp_path: Path) -> None:
    machine = yard.boarding().board(cell(), arm(), trial(), 1, tmp_path / "x")
    machine.close()
    machine.close()
    (booted,) = yard.booted
    assert booted.stopped >= 1
    assert machine.agent is not None
    assert machine.agent.ended()
    assert yard.leaves[0].acts[:2] == ["kill", "remove"]


def test_a_guest_that_does_not_boot_leaves_nothing(yard: Yard, tmp_path: Path) -> None:
    yard.refuses = MachineError("the guest did not say hello\n  console: Kernel panic")
    with pytest.raises(MachineError, match="Kernel panic"):
        yard.boarding().board(cell(), arm(), trial(), 1, tmp_path / "x")
    assert yard.leaves[0].acts == ["kill", "remove"]


def test_a_guest_that_lacks_pages_for_its_workload_is_refused_with_its_console(
    yard: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pools, "fill", lambda *_: {2 << 20: 3})
    used = workloads()["fault"]
    monkeypatch.setattr(used, "pool", lambda *_: 8 << 20, raising=False)
    pool = msgspec.structs.replace(arm().treatment, target=PageTarget("hugetlb", 2 << 20))
    wanted = msgspec.structs.replace(cell(), workload=used)
    with pytest.raises(MachineError, match=r"needs 4 pages of 2m; its kernel granted 3(.|\n)*the last line"):
        yard.boarding().board(wanted, msgspec.structs.replace(arm(), treatment=pool), trial(), 1, tmp_path / "x")
    assert yard.booted[0].stopped == 1


def test_one_that_counts_is_booted_with_all_its_orders(yard: Yard, tmp_path: Path) -> None:
    outputs = tmp_path / "x"
    outputs.mkdir()
    machine = yard.boarding(counting=True, settle=10.0).board(cell(), arm(), trial(), 1, outputs)
    assert yard.boots == []
    site = machine.site
    assert (site.contain("sut").procs_files, site.machine.cpus(), site.base_size) == ((), (0,), 4096)
    with pytest.raises(MachineError, match="it has no folder /dev/shm"):
        site.scratch("/dev/shm")
    never = machine.leave()  # nothing was launched in it
    assert never.problem == "it was never booted"
    assert never.facts == {}
    orders = b'{"id":1,"do":"settle","seconds":1}\n'
    assert machine._boot(orders).hello().release == "6.12"
    # Not in the cache, as it is of this attempt alone; nor where QEMU's account could put a link in its place.
    assert yard.images[0] == outputs / "initramfs.orders"
    assert orders in yard.contents[0]
    assert list(outputs.iterdir()) == []  # gone once it has booted
    ((guest, hosting, timeout),) = yard.boots
    assert guest.counting
    assert hosting.cpus == (5,)  # one CPU, or QEMU's threads would race for its clock
    assert timeout is not None
    assert timeout > cell().timeout  # it says hello when its orders are done
    machine.close()


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


def test_a_group_that_cannot_be_killed_frozen_or_removed_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    with pytest.raises(MachineError, match="cannot kill what is in the cgroup"):
        leaf(tmp_path).kill()
    with pytest.raises(MachineError, match="cannot remove the cgroup"):
        leaf(tmp_path).remove()
    monkeypatch.setattr("hugewise.guests.machines._PATIENCE_S", 0.01)
    (tmp_path / "cgroup.freeze").write_text("0")
    with pytest.raises(MachineError, match=f"{tmp_path} does not freeze within"):
        leaf(tmp_path).freeze()


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
