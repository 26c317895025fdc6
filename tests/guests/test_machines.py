"""Guests with everything faked that boots: what QEMU is told, what is kept of a guest, and that nothing stays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from hugewise.errors import HugewiseError, MachineError, SettingError
from hugewise.guests.machines import GuestPerSession, GuestSettings, ResidentSettings
from hugewise.host.network import USER
from hugewise.host.pool import Pools
from hugewise.model.pages import THP, PageTarget
from hugewise.plan.plan import Cell
from tests.build import known
from tests.build.hosts import FakeHost
from tests.build.studies import an_arm, cell_of, workloads
from tests.guests.boarded import GIB, PROVEN, Yard, arm, cell, trial


def test_qemu_is_told_what_the_study_says(yard: Yard, tmp_path: Path) -> None:
    machine = yard.boarding().board(cell(), arm(), trial(), 1, tmp_path / ".b00001-0-shp1g-1")
    ((guest, hosting, timeout),) = yard.boots
    assert (guest.memory, guest.cpus, guest.cpu, guest.accelerator) == (GIB, 2, "max", "tcg")
    assert (guest.backing.pages, guest.append, guest.counting) == ("hugetlb-1g", ("nosoftlockup",), False)
    assert (hosting.cpus, hosting.outputs, timeout) == ((3, 5), tmp_path / ".b00001-0-shp1g-1", None)
    assert hosting.run == yard.place / "g0"
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


def test_a_guest_is_told_the_folders_by_page_size(yard: Yard, tmp_path: Path) -> None:
    for pages in ("hugetlb-1g", "hugetlb-2m", "thp"):
        yard.boarding().board(cell(), arm(pages), trial(), 1, tmp_path / "x").close()
    assert [hosting.hugetlbfs for _, hosting, _ in yard.boots] == [{1 << 30: "/mounted"}] * 3


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


def test_a_guest_without_its_backing_is_a_problem(yard: Yard, tmp_path: Path) -> None:
    why = "512 MiB of 1 GiB are base pages"
    yard.proof, yard.obeys = msgspec.structs.replace(PROVEN, accepted=False, share=0.5, why=why), False
    machine = yard.boarding().board(cell(), arm(), trial(), 1, tmp_path / "x")
    backed = machine.leave()
    assert backed.problem == f"backing hugetlb-1g: {why}"
    assert backed.facts["ended"] == "killed: it did not end when it was told to"
    machine.close()


def test_one_that_is_gone_before_its_proof_is_known_all_the_same(yard: Yard, tmp_path: Path) -> None:
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


ENABLED = f"{THP}/enabled"


def resident(yard: Yard, *cells: Cell, session: int = 1) -> GuestPerSession:
    return GuestPerSession(yard.boarding(), cells or (cell(),), session, "results/s/run")


def attempt_of(made: GuestPerSession, folder: Path, block: int = 1, order: int = 0) -> Path:
    """An attempt that boards and leaves; the folder that has its files."""
    outputs = folder / f"b{block}-{order}"
    outputs.mkdir()
    machine = made.board(cell(), arm(), trial(block, order), 1, outputs)
    machine.leave()
    machine.close()
    return outputs


def test_all_attempts_are_in_one_guest_and_each_has_its_proof(yard: Yard, tmp_path: Path) -> None:
    made = resident(yard)
    folders = [attempt_of(made, tmp_path, block, order) for block in (1, 2) for order in (0, 1)]
    ((guest, hosting, _),) = yard.boots
    (booted,) = yard.booted
    assert booted.proven == folders
    assert booted.stopped == 0
    assert hosting.outputs == yard.place / "resident"
    assert guest.backing.pages == "hugetlb-1g"
    made.end()
    assert booted.stopped >= 1
    assert yard.leaves[0].acts[:2] == ["kill", "remove"]


def test_an_attempt_without_its_backing_is_a_problem_and_the_guest_stays(yard: Yard, tmp_path: Path) -> None:
    made = resident(yard)
    attempt_of(made, tmp_path)
    yard.booted[0].proof = msgspec.structs.replace(PROVEN, accepted=False, share=0.5, why="half of it")
    machine = made.board(cell(), arm(), trial(2), 1, tmp_path)
    assert machine.leave().problem == "backing hugetlb-1g: half of it"
    assert yard.booted[0].stopped == 0


def test_each_attempt_is_told_which_boot_it_was_and_how_old(yard: Yard, tmp_path: Path) -> None:
    made = resident(yard)
    facts = []
    for block in (1, 2):
        machine = made.board(cell(), arm(), trial(block), 1, tmp_path)
        facts.append(machine.leave().facts)
    assert [fact["resident_boot"] for fact in facts] == ["b", "b"]
    assert [fact["resident_attempts"] for fact in facts] == [0, 1]
    assert float(facts[0]["resident_s"]) <= float(facts[1]["resident_s"])
    assert facts[0]["guest_seed"] == facts[1]["guest_seed"]


def test_each_session_boots_another_guest(yard: Yard, tmp_path: Path) -> None:
    for session in (1, 2):
        made = resident(yard, session=session)
        made.board(cell(), arm(), trial(), 1, tmp_path)
        made.end()
        (yard.place / "resident").rmdir()
    first, other = (guest.seed for guest, _, _ in yard.boots)
    assert first != other


def test_what_the_console_says_is_kept_with_the_attempt_that_it_was_said_in(yard: Yard, tmp_path: Path) -> None:
    made, outputs = resident(yard), yard.place / "resident"
    lines = []
    for block, words in ((1, "first\n"), (2, "second\n")):
        folder = tmp_path / str(block)
        folder.mkdir()
        machine = made.board(cell(), arm(), trial(block), 1, folder)
        (outputs / "guest-argv.json").write_text("[]")
        with (outputs / "console.txt").open("a") as console:
            console.write(words)
        machine.leave()
        lines.append(((folder / "console.txt").read_text(), (folder / "guest-argv.json").read_text()))
    assert lines == [("first\n", "[]"), ("second\n", "[]")]


@pytest.mark.parametrize("how", ["its QEMU died", "its agent is silent"])
def test_a_guest_that_is_gone_ends_the_run_with_its_reason_and_boots_no_other(
    yard: Yard, tmp_path: Path, how: str
) -> None:
    made = resident(yard)
    attempt_of(made, tmp_path)
    if how == "its QEMU died":
        yard.booted[0].dead = True
    else:
        known(known(made.guest).agent).give_up("it does not answer (status /)")
    for _ in range(2):
        with pytest.raises(HugewiseError) as caught:
            made.board(cell(), arm(), trial(2), 1, tmp_path)
        # No MachineError: such a try would be made again, and held against the arm that happens to be next.
        assert not isinstance(caught.value, MachineError)
        assert "the guest of all attempts is gone after 1 of them: guest resident-1: " in caught.value.message
        assert ("QEMU has ended" if how == "its QEMU died" else "does not answer") in caught.value.message
        assert "console: the last line" in caught.value.message
        assert "hugewise resume results/s/run boots another" in (caught.value.hint or "")
    assert len(yard.boots) == 1
    assert yard.booted[0].stopped >= 1  # nothing of it stays, whoever gave it up


def test_a_guest_that_dies_in_an_attempt_is_ended_at_once_and_what_it_was_is_known(yard: Yard, tmp_path: Path) -> None:
    made = resident(yard)
    machine = made.board(cell(), arm(), trial(), 1, tmp_path)
    yard.booted[0].proof, yard.booted[0].dead = MachineError("QEMU has ended"), True
    left = machine.leave()
    assert (left.facts["kernel"], left.problem) == ("k", "backing hugetlb-1g: QEMU has ended")
    assert yard.booted[0].stopped >= 1


def test_a_guest_that_does_not_boot_ends_the_run(yard: Yard, tmp_path: Path) -> None:
    yard.refuses = MachineError("the guest did not say hello\n  console: Kernel panic", hint="more memory")
    with pytest.raises(HugewiseError, match="the guest of all attempts did not boot: (.|\n)*Kernel panic") as caught:
        resident(yard).board(cell(), arm(), trial(), 1, tmp_path)
    assert not isinstance(caught.value, MachineError)
    assert caught.value.hint == "more memory"
    assert yard.leaves[0].acts == ["kill", "remove"]


def test_its_own_pools_are_filled_once_for_the_largest_need(
    yard: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled = []

    def fill(_: Pools, wanted: Mapping[int, int]) -> dict[int, int]:
        filled.append(wanted)
        return {2 << 20: 6}

    monkeypatch.setattr(Pools, "fill", fill)
    used = workloads()["fault"]
    monkeypatch.setattr(used, "pool", lambda treatment, _: treatment.parameters.get("mib", 0) << 20, raising=False)
    needs = {
        name: an_arm(name, PageTarget("hugetlb", 2 << 20), kernel="k", parameters={"mib": mib})
        for name, mib in {"small": 8, "large": 16}.items()
    }
    arms = {name: msgspec.structs.replace(each, backing=arm().backing) for name, each in needs.items()}
    wanted = cell_of(used, *arms.values())
    made = resident(yard, wanted)
    made.board(wanted, arms["small"], trial(), 1, tmp_path)
    with pytest.raises(MachineError, match=r"needs 8 pages of 2m; its kernel granted 6"):
        made.board(wanted, arms["large"], trial(), 1, tmp_path)
    assert filled == [{2 << 20: 8}]
    assert yard.booted[0].stopped == 0


def test_what_an_attempt_turned_in_the_guest_is_turned_back() -> None:
    host = FakeHost()
    settings = ResidentSettings(host)
    settings.apply({ENABLED: "always"})
    host.turn(ENABLED, "never")  # by a program of the attempt: no foreign hand, as on a host
    assert settings.apply({ENABLED: "always"}) == []
    assert settings.values()[ENABLED] == "always"
    host.turn(ENABLED, "never")
    assert settings.apply({}) == []
    assert host.read(ENABLED) == FakeHost().read(ENABLED)


def test_only_what_differs_is_written() -> None:
    host = FakeHost()
    settings = GuestSettings(host)
    assert settings.apply({ENABLED: "madvise"}) == []
    assert host.writes == []
    assert settings.apply({ENABLED: "always", f"{THP}/hugepages-64kB/enabled": "inherit"}) == []
    assert host.writes == [(ENABLED, "always"), (f"{THP}/hugepages-64kB/enabled", "inherit")]
    assert settings.values()[ENABLED] == "always"
    assert settings.drift() == []


def test_what_the_guest_turns_by_itself_is_drift() -> None:
    host = FakeHost()
    settings = GuestSettings(host)
    settings.apply({ENABLED: "always"})
    host.turn(ENABLED, "never")
    assert [str(each) for each in settings.drift()] == [f"{ENABLED} is never, not always"]


def test_what_the_kernel_does_not_take_is_an_error() -> None:
    settings = GuestSettings(FakeHost(capacity={2 << 20: 10}))
    with pytest.raises(SettingError, match="cannot set"):
        settings.apply({ENABLED: "sometimes"})
    with pytest.raises(SettingError, match=r"did not take .*nr_hugepages = 20: it is 10"):
        settings.apply({"/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "20"})
    with pytest.raises(SettingError, match="no such page setting"):
        settings.apply({f"{THP}/hugepages-7kB/enabled": "always"})
