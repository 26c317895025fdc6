"""Files are written whole, are on disk before anything is built on them, and are handed to who called sudo."""

import os
import pwd
import stat
import struct
import subprocess
from pathlib import Path

import pytest

from hugewise import files
from hugewise.files import changeable, write_whole
from hugewise.model import guest
from hugewise.model.guest import GuestsRecord
from hugewise.report.write import write
from hugewise.store.folder import RunFolder
from tests.build.results import example
from tests.build.trials import attempt, begun
from tests.cli.conftest import HUGEWISE
from tests.durable import is_lasting, lasting
from tests.requirements import need, need_root


def test_a_file_is_the_old_one_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, b"old", 0o600)
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"old", 0o600)
    path.unlink()
    path.mkdir()
    with pytest.raises(OSError, match="directory"):
        write_whole(path, b"new")
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_what_a_run_is_built_on_is_synced_before_it_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """study.json, the seed, guests.json, attempts, their gathered form, the report."""
    done = lasting(monkeypatch)
    folder = begun(tmp_path / "results" / "deeper")
    kernels = GuestsRecord(arch="arm64", accelerator="tcg", why="w", counting=False, baseline="16k", kernels=())
    guest.write(folder.path, kernels)
    place = folder.accept(folder.draft("b1"), attempt("thp", 1.0, block=1))
    accepted = len(done)
    folder.compact()
    reports = write(example(), folder.path)
    for path in (
        *(folder.path / name for name in ("study.json", "seed", "guests.json", "attempts.parquet")),
        place,
        *reports.values(),
    ):
        assert is_lasting(done, path), path
    synced = [path for what, path, _ in done[:accepted] if what == "sync"]
    assert {tmp_path, tmp_path / "results", folder.path.parent.parent, folder.path.parent, folder.path} <= set(synced)
    assert folder.path / "run.jsonl" in synced
    assert os.path.commonpath(synced) == str(tmp_path)


# -- where a path leads


NOBODY = 65534


def test_whether_others_can_change_where_a_path_leads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_root()
    monkeypatch.delenv("SUDO_UID", raising=False)
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, NOBODY, NOBODY)
    ours = theirs.parent / "ours"
    ours.mkdir(mode=0o755)
    assert changeable(ours / "not there yet") is None
    assert changeable(Path("/tmp")) is None, "sticky"
    assert changeable(theirs / "x") == f"{theirs} belongs to the account {NOBODY}"
    (ours / "link").symlink_to("../theirs/x")
    assert changeable(ours / "link/y") == f"{theirs} belongs to the account {NOBODY}"
    (ours / "circle").symlink_to("circle")
    with pytest.raises(OSError, match="circle"):
        changeable(ours / "circle/x")
    (ours / "shared").mkdir()
    (ours / "shared").chmod(0o777)
    assert changeable(ours / "shared/x") == f"{ours}/shared can be written by others"
    (ours / "shared").chmod(0o1777)
    assert changeable(ours / "shared/x") is None
    (ours / "shared/x").mkdir()
    os.chown(ours / "shared/x", NOBODY, NOBODY)
    assert changeable(ours / "shared/x") == f"{ours}/shared/x belongs to the account {NOBODY}"
    monkeypatch.setenv("SUDO_UID", str(NOBODY))
    assert changeable(ours / "shared/x") is None, "who calls root through sudo decides what root does"


def access(folder: Path, *named: tuple[int, int, int], mask: int = 7) -> None:
    """Give it a POSIX ACL with those entries (tag, permissions, who) beside its owner's."""
    entries = ((1, 7, 0xFFFFFFFF), *named, (4, 5, 0xFFFFFFFF), (16, mask, 0xFFFFFFFF), (32, 5, 0xFFFFFFFF))
    held = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in sorted(entries))
    os.setxattr(folder, "system.posix_acl_access", held)


def test_an_acl_that_lets_others_write_is_seen_and_a_run_of_roots_is_refused(tmp_path: Path) -> None:
    need_root()
    place = tmp_path / "results"
    place.mkdir(0o755)
    try:
        access(place, (2, 7, NOBODY), mask=5)
    except OSError:
        need(False, "a file system with POSIX ACLs")
    assert changeable(place / "x") is None, "the mask grants no writing"
    access(place, (2, 7, NOBODY))
    why = f"{place} can be written by others (it has an access control list"
    assert str(changeable(place / "x")).startswith(why)
    command = [*HUGEWISE, "run", "--results", str(place), "--policy", "base,thp", "--blocks", "2", "--", "/bin/true"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "can be written by others (it has an access control list" in " ".join(done.stderr.split())
    assert "cure: " in done.stderr


def test_a_group_may_write_only_where_it_is_private_to_who_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_root()
    monkeypatch.delenv("SUDO_UID", raising=False)
    place = tmp_path / "shared"
    place.mkdir()
    place.chmod(0o775)
    assert changeable(place) is None, "root's own group, which has no other members"
    daemon, games = pwd.getpwnam("daemon"), pwd.getpwnam("games")
    os.chown(place, 0, games.pw_gid)
    assert changeable(place) == f"{place} can be written by others (the group {games.pw_gid})"
    monkeypatch.setenv("SUDO_UID", str(daemon.pw_uid))
    monkeypatch.setenv("SUDO_GID", str(games.pw_gid))
    assert changeable(place) == f"{place} can be written by others (the group {games.pw_gid})", "whatever sudo's group"
    os.chown(place, daemon.pw_uid, daemon.pw_gid)
    assert changeable(place) is None, "what an account with a group of its own makes under umask 002"


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


def test_a_folder_that_somebody_keeps_is_not_waited_for_without_end(tmp_path: Path) -> None:
    with (
        files.alone_in(tmp_path),
        pytest.raises(TimeoutError, match="another process holds it"),
        files.alone_in(tmp_path, patience=0.1),
    ):
        pass
    with files.alone_in(tmp_path):
        pass
