"""Folders held by a descriptor: what is in them is another account's, and none of it reaches root."""

import errno
import itertools
import os
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hugewise.beneath import DirFd, discard
from hugewise.errors import StorageError
from tests.requirements import need_program, need_root

NOBODY = 65534
SECRET = b"root:$6$secret"


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A folder of the account `nobody`, with a file of root's beside it."""
    need_root()
    path = tmp_path / "theirs"
    path.mkdir()
    os.chown(path, NOBODY, NOBODY)
    (tmp_path / "secret").write_bytes(SECRET)
    (tmp_path / "secret").chmod(0o600)
    return path


def untouched(victim: Path) -> None:
    """The file is root's alone as before."""
    found = victim.stat()
    assert (victim.read_bytes(), found.st_uid, stat.S_IMODE(found.st_mode)) == (SECRET, 0, 0o600)


def nest(top: Path, depth: int, name: str = "d") -> None:
    """Folders in folders, in the end deeper than a path may be long."""
    top.mkdir(exist_ok=True)
    here = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=here)
        below = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


# -- reading


def pipe(theirs: Path) -> None:
    os.mkfifo(theirs / "f")
    os.chown(theirs / "f", NOBODY, NOBODY)


PLANTED: dict[str, Callable[[Path], None]] = {
    "symbolic link": lambda theirs: (theirs / "f").symlink_to("../secret"),
    "hard link": lambda theirs: os.link(theirs.parent / "secret", theirs / "f"),
    "pipe": pipe,
    "folder": lambda theirs: (theirs / "f").mkdir(),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_what_is_no_file_of_theirs_is_not_read(theirs: Path, kind: str) -> None:
    PLANTED[kind](theirs)
    with DirFd.open(theirs) as held, pytest.raises((OSError, StorageError), match="theirs/f"):
        held.read("f", 1000)


def test_a_file_is_read_up_to_a_limit(theirs: Path) -> None:
    (theirs / "f").write_bytes(b"x" * 1000)
    os.chown(theirs / "f", NOBODY, NOBODY)
    with DirFd.open(theirs) as held:
        assert len(held.read("f", 1000)) == 1000
        with pytest.raises(StorageError, match=r"theirs/f .* more than 999 bytes"):
            held.read("f", 999)


def test_a_folder_below_is_reached_through_folders_of_theirs_only(theirs: Path) -> None:
    (theirs / "a").mkdir()
    (theirs / "a/b").mkdir()
    (theirs / "link").symlink_to("..")
    for path in (theirs / "a", theirs / "a/b"):
        os.chown(path, NOBODY, NOBODY)
    with DirFd.open(theirs) as held:
        with held.folder("a/b") as found:
            assert found.names() == []
        with pytest.raises(OSError, match="theirs/link"):
            held.folder("link")
        os.chown(theirs / "a", 0, 0)
        with pytest.raises(StorageError, match="theirs/a .* the account 0"):
            held.folder("a/b")
        for relative in ("../x", "/etc", "", "a/../../x", "."):
            with pytest.raises(StorageError, match="below"):
                held.folder(relative)


# -- writing


@pytest.mark.parametrize("hard", [False, True])
def test_a_link_that_is_there_is_replaced_and_never_followed(theirs: Path, hard: bool) -> None:
    (theirs / "a").mkdir()
    os.chown(theirs / "a", NOBODY, NOBODY)
    if hard:
        os.link(theirs.parent / "secret", theirs / "a/f")
    else:
        (theirs / "a/f").symlink_to("../../secret")
    with DirFd.open(theirs) as held:
        held.put("a/f", b"ours", 0o644, NOBODY, NOBODY)
    untouched(theirs.parent / "secret")
    assert ((theirs / "a/f").read_bytes(), (theirs / "a/f").stat().st_uid) == (b"ours", NOBODY)


def test_a_link_in_the_middle_is_an_error(theirs: Path) -> None:
    (theirs.parent / "elsewhere").mkdir()
    (theirs / "a").symlink_to("../elsewhere")
    with DirFd.open(theirs) as held, pytest.raises(OSError, match="theirs/a"):
        held.put("a/f", b"ours", 0o644, NOBODY, NOBODY)
    assert list((theirs.parent / "elsewhere").iterdir()) == []


def test_a_file_and_the_folders_made_for_it_are_theirs_and_keep_no_special_bits(theirs: Path) -> None:
    theirs.chmod(0o2777)
    with DirFd.open(theirs) as held:
        held.put("a/b/f", b"ours", 0o6755, NOBODY, NOBODY)
    for name, mode in (("a", 0o700), ("a/b", 0o700), ("a/b/f", 0o755)):
        found = (theirs / name).stat()
        assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (NOBODY, NOBODY, mode)


# -- removing


@pytest.mark.parametrize(("depth", "name"), [(1_100, "d" * 250), pytest.param(100_000, "d", marks=pytest.mark.soak)])
def test_folders_of_any_depth_are_removed(depth: int, name: str) -> None:
    top = Path(tempfile.mkdtemp(dir="/dev/shm"))  # on a disk it takes ten times as long
    nest(top / "deep", depth, name)
    (top / "deep/file").touch()
    before = descriptors()
    discard(top)
    assert (top.exists(), descriptors()) == (False, before)


def descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def test_links_are_removed_and_not_what_they_lead_to(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/file").touch()
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone/link").symlink_to("../kept")
    discard(tmp_path / "gone")
    (tmp_path / "link").symlink_to("kept")
    discard(tmp_path / "link")
    discard(tmp_path / "never there")
    discard(tmp_path / "never/there")
    assert [path.name for path in tmp_path.rglob("*")] == ["kept", "file"]


def test_what_cannot_be_removed_is_named_and_the_rest_goes(theirs: Path) -> None:
    """A mount is never entered: what is in it is somebody else's."""
    need_program("mount", "mount")
    (theirs / "a/b/mounted").mkdir(parents=True)
    (theirs / "a/file").touch()
    subprocess.run(["mount", "-t", "tmpfs", "none", str(theirs / "a/b/mounted")], check=True)
    try:
        (theirs / "a/b/mounted/file").touch()
        (theirs / "a/b/file").touch()
        with pytest.raises(OSError, match="'mounted', in it.*theirs") as failed:
            discard(theirs)
        assert failed.value.errno == errno.EBUSY
        assert sorted(path.name for path in theirs.rglob("*") if path.is_file()) == ["file"], "the one in the mount"
    finally:
        _unmount_below(theirs)
    discard(theirs)
    assert not theirs.exists()


def _unmount_below(folder: Path) -> None:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if (point := line.split()[4]).startswith(f"{folder}/"):
            subprocess.run(["umount", point], check=True)


WRITER = """
import os, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
held = [os.open(".", os.O_RDONLY)]
for _ in range(50):
    os.mkdir("d", dir_fd=held[-1]); held.append(os.open("d", os.O_RDONLY, dir_fd=held[-1]))
print("ready", flush=True)
number = 0
while True:
    number += 1
    for each in held:
        try:
            os.mkdir(f"n{number}", dir_fd=each)
            os.close(os.open(f"f{number}", os.O_CREAT, dir_fd=each))
        except OSError:
            pass
"""


def test_a_folder_in_which_somebody_writes_is_removed(theirs: Path) -> None:
    """It holds descriptors and makes names as fast as it can: what it may write in is taken from it first."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER], cwd=theirs, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        try:
            with DirFd.open(theirs.parent) as held:
                held.remove("theirs", patience=240)
        finally:
            writer.kill()
    assert not theirs.exists()


def test_every_folder_in_which_there_are_folders_is_taken_before_anything_is_removed(
    theirs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever writes in the deepest one would else put in new things for as long as those above it are removed."""
    for depth in range(20):
        here = theirs.joinpath(*["d"] * depth)
        here.mkdir(exist_ok=True)
        for number in range(5):
            (here / f"n{number}").mkdir()
            (here / f"f{number}").touch()
    done: list[str] = []

    def told(name: str) -> None:
        real = getattr(os, name)

        def call(*args: object, **more: object) -> None:
            real(*args, **more)
            done.append(name)

        monkeypatch.setattr(os, name, call)

    for name in ("fchmod", "rmdir", "unlink"):
        told(name)
    discard(theirs)
    assert not theirs.exists()
    assert done[:20] == ["fchmod"] * 20
    assert done.count("rmdir") == 20 + 20 * 5
    assert done.count("unlink") == 20 * 5


def test_what_was_in_the_way_at_first_and_then_was_not_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = tmp_path / "top"
    (top / "x/a/b/c").mkdir(parents=True)
    (top / "x/a/b/c/f").touch()
    moved, failures = os.rename, [OSError(errno.EXDEV, os.strerror(errno.EXDEV))]

    def once(*names: Any, **folders: Any) -> None:
        if failures:
            raise failures.pop()
        moved(*names, **folders)

    monkeypatch.setattr(os, "rename", once)
    discard(top)
    assert not failures
    assert not top.exists()


def test_a_removal_is_given_up_in_the_middle_of_a_folder_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "many/files").mkdir(parents=True)
    for number in range(100):
        (tmp_path / f"many/files/{number}").touch()
    ticks = itertools.count()
    monkeypatch.setattr(time, "monotonic", lambda: float(next(ticks)))
    with DirFd.open(tmp_path) as held, pytest.raises(TimeoutError, match="keeps writing.*many"):
        held.remove("many", patience=50)
    assert 0 < len([*(tmp_path / "many/files").iterdir()]) < 100


def test_a_removal_is_given_up_in_the_end(tmp_path: Path) -> None:
    nest(tmp_path / "deep", 100)
    with DirFd.open(tmp_path) as held, pytest.raises(TimeoutError, match="keeps writing.*deep"):
        held.remove("deep", patience=0)
