"""What root made for who called sudo becomes theirs, and nothing else does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hugewise import files
from hugewise.store.folder import RunFolder
from tests.requirements import need_root

THEM = 65534


@pytest.fixture
def home(reached: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the account that called sudo."""
    need_root()
    for name, value in (("SUDO_UID", str(THEM)), ("SUDO_GID", ""), ("SUDO_USER", "")):
        monkeypatch.setenv(name, value)
    folder = reached / "home"
    folder.mkdir()
    os.chown(folder, THEM, THEM)
    return folder


def owner(path: Path) -> int:
    return path.lstat().st_uid


def test_new_folders_in_theirs_are_theirs_and_those_of_root_stay(home: Path, reached: Path) -> None:
    files.made_folder(home / "results" / "study", theirs=True)
    assert [owner(home / "results"), owner(home / "results" / "study")] == [THEM, THEM]
    files.made_folder(reached / "roots" / "study", theirs=True)
    assert owner(reached / "roots") == 0
    files.made_folder(home / "run")
    assert owner(home / "run") == 0


def test_a_run_is_roots_until_it_has_ended_and_theirs_then(home: Path) -> None:
    folder = RunFolder.create(home / "results", "s", study_json=b"{}", study_toml=None, seed=bytes(16))
    assert [owner(home / "results"), owner(home / "results" / "s")] == [THEM, THEM]
    every = [folder.path, *folder.path.rglob("*")]
    assert {owner(path) for path in every} == {0}
    folder.hand_over()
    assert {owner(path) for path in every} == {THEM}
    folder.close()


def test_links_and_what_is_anothers_are_left(home: Path, tmp_path: Path) -> None:
    victim = tmp_path / "roots"
    victim.write_text("x")
    made = home / "made"
    made.mkdir()
    (made / "link").symlink_to(victim)
    (made / "hard").hardlink_to(victim)
    (made / "theirs").write_text("y")
    os.chown(made / "theirs", 1, 1)
    (made / "own").write_text("z")
    files.hand_over(made)
    assert owner(victim) == 0
    assert [owner(made / name) for name in ("link", "hard", "theirs", "own")] == [0, 0, 1, THEM]
    assert owner(made) == THEM


def test_a_folder_that_was_put_there_is_not_given_away(home: Path, tmp_path: Path) -> None:
    full = home / "full"
    full.mkdir()
    (full / "secret").write_text("x")
    files._hand_over_empty(full)
    (home / "link").symlink_to(tmp_path)
    with pytest.raises(OSError, match="link"):
        files._hand_over_empty(home / "link")
    assert [owner(full), owner(tmp_path)] == [0, 0]


@pytest.mark.parametrize("said", ["", "0", "x", "-1", "4294967294"])
def test_where_nobody_called_nothing_is_given_away(home: Path, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    monkeypatch.setenv("SUDO_UID", said)
    files.made_folder(home / "results", theirs=True)
    files.hand_over(home / "results")
    assert owner(home / "results") == 0
    assert files.caller() is None


def test_a_group_that_is_none_of_theirs_is_not_taken(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_GID", "0")
    assert files.caller() == (THEM, THEM)
