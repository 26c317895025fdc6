"""The folder of an advice that root writes for who called sudo, while that account does what it can."""

import os
from pathlib import Path

import msgspec
import pytest

from hugewise.advise import advise as phases
from hugewise.advise import of_study
from hugewise.advise.advice import AdviceFolder
from hugewise.errors import StorageError, UserError
from hugewise.session import progress, session
from hugewise.store.folder import RunFolder
from hugewise.study.study import Study
from tests.advise.test_of_study import begun
from tests.advise.test_phases import ASKED, Machine, machine
from tests.test_files import THEM, home

__all__ = ["home", "machine"]


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """Root's own."""
    folder = tmp_path / "etc"
    (folder / "below").mkdir(parents=True)
    (folder / "shadow").write_text("x")
    (folder / "below" / "key").write_text("x")
    return folder


def owners(folder: Path) -> set[int]:
    return {path.lstat().st_uid for path in (folder, *folder.rglob("*"))}


def swapping(machine: Machine, monkeypatch: pytest.MonkeyPatch, advice: Path, victim: Path, phase: str) -> None:
    """The program that is measured in that phase puts a link to the victim in the place of the advice."""

    def run(
        study: Study, results: Path, *, listener: progress.Listener, lock: object, command: tuple[str, ...]
    ) -> RunFolder:
        (place,) = advice.iterdir() if advice.is_dir() else (advice,)
        if study.name == phase and not place.is_symlink():
            place.rename(advice.parent / "away")
            place.symlink_to(victim)
        return machine.run(study, results, listener=listener, lock=lock, command=command)

    monkeypatch.setattr(session, "run", run)


@pytest.mark.parametrize("phase", ["advise-screening", "advise-confirmation", "of a study"])
def test_what_is_put_in_its_place_is_neither_written_nor_given_away(
    machine: Machine, home: Path, victim: Path, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    of_a_study, results = phase == "of a study", home / "results"
    last = "advise-confirmation" if of_a_study else phase
    swapping(machine, monkeypatch, results / "advice", victim, last)
    found, _ = of_study.advise(begun(), results) if of_a_study else phases.advise(ASKED, results)
    assert found.arrived == "finished"
    assert owners(victim) == {0}
    assert sorted(path.name for path in victim.iterdir()) == ["below", "shadow"]
    away = results / "away"
    there = {path.name for path in away.iterdir()}
    assert "study.json" in there if of_a_study else there == {"advice.json", "details.txt"}, "the folder has all of it"
    assert owners(away) == {THEM}


def test_a_finished_one_is_read_and_not_written_again(machine: Machine, home: Path) -> None:
    found, folder = phases.advise(ASKED, home / "results")
    assert owners(folder) == {THEM}
    before = (folder / "advice.json").stat()
    again, _ = phases.resume(folder)
    assert again == found
    after = (folder / "advice.json").stat()
    assert (after.st_ino, after.st_mtime_ns, after.st_uid) == (before.st_ino, before.st_mtime_ns, THEM)


@pytest.mark.parametrize("of_a_study", [False, True])
def test_root_goes_on_with_no_advice_of_another_account(machine: Machine, home: Path, of_a_study: bool) -> None:
    machine.stops["advise-confirmation"] = 2
    results = home / "results"
    _, folder = of_study.advise(begun(), results) if of_a_study else phases.advise(ASKED, results)
    assert of_a_study or owners(folder) == {0}
    for path in (*folder.rglob("*"), folder):
        os.chown(path, THEM, THEM)
    with pytest.raises(UserError, match="not root's own") as caught:
        (of_study if of_a_study else phases).resume(folder)
    assert caught.value.hint
    assert machine.resumed == [], "nothing is begun"


def test_a_link_is_no_folder_of_an_advice(home: Path, victim: Path) -> None:
    (home / "link").symlink_to(victim)
    with pytest.raises(StorageError):
        AdviceFolder(home / "link").put("advice.json", b"{}")
    assert sorted(path.name for path in victim.iterdir()) == ["below", "shadow"]


def test_a_place_in_use_is_said_as_people_call_it(tmp_path: Path) -> None:
    made = AdviceFolder(tmp_path / "one")
    below = AdviceFolder(tmp_path / "one" / "1-cell", made)
    below.put("advice.json", msgspec.json.encode({}))
    assert (tmp_path / "one" / "1-cell" / "advice.json").read_bytes() == b"{}"
    assert below.has("advice.json")
    assert not made.has("advice.json")
    below.close()
    assert below.path == tmp_path / "one" / "1-cell"
