"""One guest for all attempts: booted once, proven each time, and never replaced in silence."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from hugewise.errors import HugewiseError, MachineError
from hugewise.guests.boarding import OwnSettings, ResidentBoarding
from hugewise.host.pool import Pools
from hugewise.model.pages import THP, PageTarget
from hugewise.plan.plan import Cell
from tests.build import known
from tests.build.hosts import FakeHost
from tests.build.studies import an_arm, cell_of, workloads
from tests.guests.boarded import PROVEN, Yard, arm, cell, trial

ENABLED = f"{THP}/enabled"


def resident(yard: Yard, *cells: Cell, session: int = 1) -> ResidentBoarding:
    return ResidentBoarding(yard.boarding(), cells or (cell(),), session, "results/s/run")


def attempt_of(made: ResidentBoarding, folder: Path, block: int = 1, order: int = 0) -> Path:
    """An attempt that boards and leaves; the folder that has its files."""
    outputs = folder / f"b{block}-{order}"
    outputs.mkdir()
    aboard = made.board(cell(), arm(), trial(block, order), 1, outputs)
    aboard.leave()
    aboard.close()
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
    aboard = made.board(cell(), arm(), trial(2), 1, tmp_path)
    assert aboard.leave().problem == "backing hugetlb-1g: half of it"
    assert yard.booted[0].stopped == 0


def test_each_attempt_is_told_which_boot_it_was_and_how_old(yard: Yard, tmp_path: Path) -> None:
    made = resident(yard)
    facts = []
    for block in (1, 2):
        aboard = made.board(cell(), arm(), trial(block), 1, tmp_path)
        facts.append(aboard.leave().facts)
    assert [each["resident_boot"] for each in facts] == ["b", "b"]
    assert [each["resident_attempts"] for each in facts] == [0, 1]
    assert float(facts[0]["resident_s"]) <= float(facts[1]["resident_s"])
    assert facts[0]["guest_seed"] == facts[1]["guest_seed"]


def test_each_session_boots_another_guest(yard: Yard, tmp_path: Path) -> None:
    for session in (1, 2):
        made = resident(yard, session=session)
        made.board(cell(), arm(), trial(), 1, tmp_path)
        made.end()
        (yard.place / "resident").rmdir()
    one, other = (guest.seed for guest, _, _ in yard.boots)
    assert one != other


def test_what_the_console_says_is_kept_with_the_attempt_that_it_was_said_in(yard: Yard, tmp_path: Path) -> None:
    made, outputs = resident(yard), yard.place / "resident"
    said = []
    for block, words in ((1, "first\n"), (2, "second\n")):
        folder = tmp_path / str(block)
        folder.mkdir()
        aboard = made.board(cell(), arm(), trial(block), 1, folder)
        (outputs / "guest-argv.json").write_text("[]")
        with (outputs / "console.txt").open("a") as console:
            console.write(words)
        aboard.leave()
        said.append(((folder / "console.txt").read_text(), (folder / "guest-argv.json").read_text()))
    assert said == [("first\n", "[]"), ("second\n", "[]")]


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
    aboard = made.board(cell(), arm(), trial(), 1, tmp_path)
    yard.booted[0].proof, yard.booted[0].dead = MachineError("QEMU has ended"), True
    left = aboard.leave()
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
    settings = OwnSettings(host)
    settings.apply({ENABLED: "always"})
    host.turn(ENABLED, "never")  # by a program of the attempt: no foreign hand, as on a host
    assert settings.apply({ENABLED: "always"}) == []
    assert settings.values()[ENABLED] == "always"
    host.turn(ENABLED, "never")
    assert settings.apply({}) == []
    assert host.read(ENABLED) == FakeHost().read(ENABLED)
