"""The cache: whole or not at all, one maker at a time, and whose it is."""

from __future__ import annotations

import os
import pwd
import threading
from pathlib import Path

import pytest

from hugewise.errors import StorageError
from hugewise.guests import cache


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HUGEWISE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_an_entry_is_made_once_and_everybody_may_read_it(place: Path) -> None:
    made: list[Path] = []

    def make(path: Path) -> None:
        made.append(path)
        path.mkdir(mode=0o700)
        (path / "one").write_text("1")
        (path / "one").chmod(0o600)

    found = cache.kept("images", {"a": 1, "b": [2]}, make)
    assert cache.kept("images", {"b": [2], "a": 1}, make) == found
    assert found == cache.entry("images", {"a": 1, "b": [2]})
    assert len(made) == 1
    assert made[0].name.startswith(".")
    assert (found / "one").stat().st_mode & 0o777 == 0o644
    assert [each.stat().st_mode & 0o777 for each in (place, place / "images", found)] == [0o755] * 3


def test_what_fails_leaves_no_entry_and_the_next_one_begins_anew(place: Path) -> None:
    def fail(path: Path) -> None:
        path.mkdir()
        (path / "half").touch()
        raise ValueError("no room")

    with pytest.raises(ValueError, match="no room"):
        cache.kept("kernels", b"key", fail)
    assert not cache.entry("kernels", b"key").exists()
    # A process that was killed could not tidy up.
    left = cache.entry("kernels", b"key")
    left.with_name(f".{left.name}.new").mkdir()

    def make(path: Path) -> None:
        path.write_bytes(b"whole")

    assert cache.kept("kernels", b"key", make).read_bytes() == b"whole"
    assert sorted(each.name for each in (place / "kernels").iterdir()) == [f".{left.name}.lock", left.name]


def test_a_damaged_file_is_replaced_only_by_a_whole_one(place: Path) -> None:
    damaged = cache.kept("surveys", b"key", lambda path: path.touch())

    def fail(path: Path) -> None:
        path.write_bytes(b"half")
        raise ValueError("no room")

    with pytest.raises(ValueError, match="no room"):
        cache.replaced("surveys", b"key", fail)
    assert damaged.read_bytes() == b""

    def make(path: Path) -> None:
        path.write_bytes(b"whole")

    assert cache.replaced("surveys", b"key", make) == damaged
    assert damaged.read_bytes() == b"whole"
    assert [each.name for each in (place / "surveys").glob(".*.new")] == []


def test_two_that_want_the_same_wait_for_one(place: Path) -> None:
    begun, go_on, made = threading.Event(), threading.Event(), list[int]()

    def slow(path: Path) -> None:
        begun.set()
        assert go_on.wait(30)
        made.append(1)
        path.write_bytes(b"1")

    def other(path: Path) -> None:
        made.append(2)
        path.write_bytes(b"2")

    first = threading.Thread(target=cache.kept, args=("images", b"key", slow))
    first.start()
    assert begun.wait(30)
    second = threading.Thread(target=cache.kept, args=("images", b"key", other))
    second.start()
    go_on.set()
    first.join(30)
    second.join(30)
    assert made == [1]
    assert cache.entry("images", b"key").read_bytes() == b"1"


def test_whose_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HUGEWISE_CACHE", "SUDO_UID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.folder() == tmp_path / "xdg" / "hugewise"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.folder("kernels") == tmp_path / ".cache" / "hugewise" / "kernels"
    monkeypatch.setenv("SUDO_UID", "1000")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: pwd.struct_passwd(("root", "x", uid, 0, "", f"{tmp_path}/r", "")))
    assert cache.folder() == tmp_path / "r" / ".cache" / "hugewise"


def test_a_folder_that_cannot_be_made_says_the_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HUGEWISE_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(StorageError, match="cannot make the cache folder") as raised:
        cache.folder()
    assert "HUGEWISE_CACHE" in str(raised.value.hint)
