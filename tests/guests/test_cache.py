"""The cache: made once and whole, sealed, held; what it holds, and that only what nobody uses is removed."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from hugewise.cli.main import cli
from hugewise.errors import StorageError, UserError
from hugewise.guests import cache, counted
from hugewise.guests.counted import Survey
from hugewise.guests.kernels import store
from tests.build import known
from tests.build.guests import kernel
from tests.requirements import need_root


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

    found = cache.cached("images", {"a": 1, "b": [2]}, make)
    assert cache.cached("images", {"b": [2], "a": 1}, make) == found
    assert found == cache.entry_path("images", {"a": 1, "b": [2]})
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
        cache.cached("kernels", b"key", fail)
    assert not cache.entry_path("kernels", b"key").exists()
    # A process that was killed could not tidy up.
    left = cache.entry_path("kernels", b"key")
    left.with_name(f".{left.name}.new").mkdir()

    def make(path: Path) -> None:
        path.write_bytes(b"whole")

    assert cache.cached("kernels", b"key", make).read_bytes() == b"whole"
    assert sorted(each.name for each in (place / "kernels").iterdir()) == [f".{left.name}.lock", left.name]


def test_a_damaged_file_is_replaced_only_by_a_whole_one(place: Path) -> None:
    damaged = cache.cached("surveys", b"key", lambda path: path.touch())

    def fail(path: Path) -> None:
        path.write_bytes(b"half")
        raise ValueError("no room")

    with pytest.raises(ValueError, match="no room"):
        cache.replace_entry("surveys", b"key", fail)
    assert damaged.read_bytes() == b""

    def make(path: Path) -> None:
        path.write_bytes(b"whole")

    assert cache.replace_entry("surveys", b"key", make) == damaged
    assert damaged.read_bytes() == b"whole"
    assert [each.name for each in (place / "surveys").glob(".*.new")] == []


def test_two_that_want_the_same_wait_for_one(place: Path) -> None:
    begun, go_on, made = threading.Event(), threading.Event(), list[int]()

    def slow(path: Path) -> None:
        begun.set()
        assert go_on.wait(120)
        made.append(1)
        path.write_bytes(b"1")

    def other(path: Path) -> None:
        made.append(2)
        path.write_bytes(b"2")

    first = threading.Thread(target=cache.cached, args=("images", b"key", slow))
    first.start()
    assert begun.wait(120)
    second = threading.Thread(target=cache.cached, args=("images", b"key", other))
    second.start()
    go_on.set()
    first.join(120)
    second.join(120)
    assert made == [1]
    assert cache.entry_path("images", b"key").read_bytes() == b"1"


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


def handed_to_nobody(folder: Path) -> Path:
    folder.mkdir(parents=True)
    os.chown(folder, pwd.getpwnam("nobody").pw_uid, -1)
    return folder


@pytest.mark.parametrize(
    ("variable", "below", "cure"),
    [
        ("XDG_CACHE_HOME", "", "unset XDG_CACHE_HOME"),
        ("HUGEWISE_CACHE", "a/b", "unset HUGEWISE_CACHE"),
        ("HOME", "", "HOME"),
    ],
)
def test_root_refuses_a_cache_that_another_account_can_change(
    reached: Path, monkeypatch: pytest.MonkeyPatch, variable: str, below: str, cure: str
) -> None:
    """As `su` keeps the variables of who called it."""
    need_root()
    for name in ("HUGEWISE_CACHE", "XDG_CACHE_HOME", "SUDO_UID"):
        monkeypatch.delenv(name, raising=False)
    home = handed_to_nobody(reached / "home")
    monkeypatch.setenv(variable, str(home / below))
    with pytest.raises(
        UserError, match=f"as root, hugewise does not use the cache {home}.*: {home} .*nobody"
    ) as raised:
        cache.folder("kernels")
    assert cure in str(raised.value.hint)
    assert list(home.iterdir()) == []
    # Nor that of who called sudo, named by them: root's files would be in it.
    monkeypatch.setenv("SUDO_UID", str(pwd.getpwnam("nobody").pw_uid))
    if variable == "HUGEWISE_CACHE":
        with pytest.raises(UserError, match="as root, hugewise does not use the cache"):
            cache.folder()


def test_root_refuses_a_cache_behind_a_link_or_in_a_folder_of_all(
    reached: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_root()
    (reached / "link").symlink_to(handed_to_nobody(reached / "home"))
    monkeypatch.setenv("HUGEWISE_CACHE", str(reached / "link" / "cache"))
    with pytest.raises(UserError, match="as root, hugewise does not use the cache"):
        cache.folder()
    (reached / "all").mkdir()
    (reached / "all").chmod(0o777)
    monkeypatch.setenv("HUGEWISE_CACHE", str(reached / "all" / "cache"))
    with pytest.raises(UserError, match=f"{reached}/all can be written by others"):
        cache.folder()
    (reached / "all").chmod(0o1777)  # as /tmp: nobody can rename what is root's
    assert cache.folder() == reached / "all" / "cache"


def test_a_damaged_folder_is_said_and_made_anew(place: Path) -> None:
    lines: list[str] = []
    made: list[int] = []

    def make(path: Path) -> None:
        made.append(1)
        (path / "below").mkdir(parents=True)
        (path / "image").write_bytes(b"a kernel" + bytes(3 << 20) + b"its end")
        (path / "below" / "module").write_bytes(b"a module")

    found = cache.cached("kernels", b"key", make, lines.append)
    assert cache.damage(found) == ""
    assert (cache.cached("kernels", b"key", make, lines.append), made, lines) == (found, [1], [])
    for number, (what, harm) in enumerate(HARMS.items(), 2):
        harm(found)
        assert cache.damage(found) == what
        assert cache.cached("kernels", b"key", make, lines.append) == found
        assert (len(made), lines.pop()) == (number, f"{found} is damaged ({what}): it is made anew")
        assert cache.damage(found) == ""
    (found / "a-note").touch()  # what is put beside later is no damage
    assert cache.damage(found) == ""
    assert sorted(path.name for path in found.parent.iterdir()) == [f".{found.name}.lock", found.name]


HARMS: dict[str, Callable[[Path], object]] = {
    "image has other bytes than it was made with": lambda folder: os.truncate(folder / "image", 100),
    "below/module has other bytes than it was made with": lambda folder: (folder / "below/module").write_bytes(
        b"A module"
    ),
    "image is not there": lambda folder: (folder / "image").unlink(),
    ".sealed is not there": lambda folder: (folder / ".sealed").unlink(),
    ".sealed cannot be read": lambda folder: (folder / ".sealed").write_bytes(b"\xff{"),
}


def test_holes_are_as_good_as_zeros(place: Path) -> None:
    """The same content, on a file system that keeps holes and in a file that was written in full."""

    def sealed(name: bytes, make: Callable[[Path], None]) -> bytes:
        return (cache.cached("images", name, make) / ".sealed").read_bytes()

    def holes(path: Path) -> None:
        path.mkdir()
        with (path / "root").open("wb") as writing:
            writing.seek(5 << 20)
            writing.write(b"data")
            writing.truncate(9 << 20)

    def full(path: Path) -> None:
        path.mkdir()
        (path / "root").write_bytes(bytes(5 << 20) + b"data" + bytes((4 << 20) - 4))

    def other(path: Path) -> None:
        path.mkdir()
        (path / "root").write_bytes(bytes(6 << 20) + b"data" + bytes((3 << 20) - 4))

    first = sealed(b"1", holes)
    assert first == sealed(b"2", full)
    assert first != sealed(b"3", other)


def test_an_entry_is_on_disk_before_it_has_its_name(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[str, bool]] = []
    there = place / "kernels"

    def sync(path: Path) -> None:
        synced.append((path.name, any(not each.name.startswith(".") for each in there.iterdir())))

    monkeypatch.setattr(cache, "sync", sync)

    def make(path: Path) -> None:
        path.mkdir()
        (path / "image").write_bytes(b"x")

    found = cache.cached("kernels", b"key", make)
    before = {name for name, named in synced if not named}
    assert before == {"image", ".sealed", f".{found.name}.new"}
    assert [name for name, named in synced if named] == ["kernels"]


def test_a_folder_that_cannot_be_made_says_the_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HUGEWISE_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(StorageError, match="cannot make the cache folder") as raised:
        cache.folder()
    assert "HUGEWISE_CACHE" in str(raised.value.hint)


DAY = 86400.0
OLD = 40 * DAY


@pytest.fixture
def filled(place: Path) -> Path:
    """A cache with one kernel, its survey, an image, an initramfs, a package and lists of packages."""
    store.make_or_find({"asked": "k"}, {"made": "k"}, a_kernel)
    counted.keep_survey(kernel(), "max", Survey(release="6.12.1", page_size=4096, files={}))
    cache.cached("images", b"initramfs", an_initramfs)
    cache.cached("images", b"image", an_image)
    package = cache.folder("packages") / ("5" * 32) / "gcc_12_amd64.deb"
    package.parent.mkdir()
    package.write_bytes(b"")
    lists = cache.entry_path("apt", b"lists")
    lists.mkdir()
    (lists / "main.sources").write_text("Types: deb\nURIs: file:/x\nSuites: trixie\nArchitectures: amd64\n")
    return place


def a_kernel(folder: Path) -> None:
    folder.mkdir()
    (folder / store.IMAGE).write_bytes(b"image")
    store.write(folder, msgspec.structs.replace(kernel(), name="debian", image=store.IMAGE))


def an_initramfs(path: Path) -> None:
    path.write_bytes(b"0" * 70_000)


def an_image(folder: Path) -> None:
    folder.mkdir()
    (folder / "root.ext4").write_bytes(b"1" * 70_000)


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def names() -> list[str]:
    return [f"{entry.kind}: {entry.name.partition(' (')[0]}" for entry in cache.entries()]


def test_everything_is_listed_by_what_it_is_with_size_and_last_use(filled: Path) -> None:
    assert names() == [
        "apt: lists of deb trixie amd64",
        "images: initramfs",
        "images: image",
        "kernels: debian 6.12.1",
        "packages: gcc_12_amd64.deb",
        "surveys: of 6.12.1",
    ]
    by_kind = {entry.name.partition(" ")[0]: entry for entry in cache.entries() if entry.kind == "images"}
    assert by_kind["initramfs"].size >= 70_000
    assert by_kind["image"].size >= 70_000
    assert all(abs(entry.used - time.time()) < 600 for entry in cache.entries())
    output = CliRunner().invoke(cli, ["guest", "cache"]).output
    assert "debian 6.12.1 (" in output
    assert output.splitlines()[-1].startswith("6 entries, ")
    assert output.splitlines()[-1].endswith(f" in {filled}")


def test_what_is_damaged_or_unfinished_is_listed_too(filled: Path) -> None:
    (filled / "surveys" / ("a" * 32)).write_bytes(b"{")
    (filled / "kernels" / ("b" * 32 + ".log")).write_text("make: error")
    (filled / "kernels" / f".{'c' * 32}.new").mkdir()
    found = names()
    assert "surveys: damaged" in found
    assert "kernels: log of a build that failed" in found
    assert f"kernels: unfinished .{'c' * 32}.new" in found


def test_an_entry_is_used_when_it_is_asked_for(filled: Path) -> None:
    for each in cache.entries():
        for path in each.paths:
            age(path, OLD)
    found = known(store.find({"asked": "k"}))
    counted.find_survey(kernel(), "max")
    cache.cached("images", b"image", an_image)
    store.touch(found)
    store.touch(kernel())  # one of elsewhere
    recent = {
        f"{entry.kind}: {entry.name.partition(' (')[0]}" for entry in cache.entries() if entry.used > time.time() - DAY
    }
    assert recent == {"surveys: of 6.12.1", "images: image", "kernels: debian 6.12.1"}


def test_what_was_not_used_for_so_long_is_removed_and_made_again(filled: Path) -> None:
    old = cache.entry_path("images", b"image")
    age(old, OLD)
    (kept,) = next(entry.paths for entry in cache.entries() if entry.kind == "kernels")
    (filled / "kernels" / f"{kept.name}.log").write_text("took 800 s")
    assert [each.name.partition(" ")[0] for each in cache.remove_unused(30 * DAY)] == ["image"]
    assert not old.exists()
    assert not list(filled.glob(f"images/.{old.name}*"))
    assert len(names()) == 5
    assert cache.cached("images", b"image", an_image) == old
    assert (old / "root.ext4").exists()
    # A kernel goes with its log and with the note by which it is found.
    age(kept, OLD)
    age(filled / "kernels" / f"{kept.name}.log", OLD)
    cache.remove_unused(30 * DAY)
    assert [path.name for path in (filled / "kernels").iterdir()] == []
    assert store.find({"asked": "k"}) is None


def test_what_a_killed_process_left_goes_like_an_entry(filled: Path) -> None:
    left = filled / "kernels" / f".{'c' * 32}.new"
    (left / "source").mkdir(parents=True)
    half = filled / "images" / f".{'d' * 32}.removed"  # of a removal that was killed
    half.mkdir()
    assert cache.remove_unused(DAY) == []
    for path in (left, half):
        age(path, OLD)
    assert [each.unfinished for each in cache.remove_unused(DAY)] == [True, True]
    assert not left.exists()
    assert not half.exists()


def test_nothing_is_removed_while_another_process_uses_the_cache(filled: Path) -> None:
    holder = (
        "import time; from hugewise.guests import cache; cache.folder('images'); print('holds', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        assert known(running.stdout).readline() == "holds\n"
        with pytest.raises(UserError, match="another process of hugewise uses"):
            cache.remove_unused(0)
        assert len(names()) == 6  # to look is no harm
        running.communicate("\n")
    assert len(cache.remove_unused(0)) == 6
    assert names() == []


def test_who_asks_for_a_place_waits_until_a_removal_is_over(filled: Path) -> None:
    asks = "from hugewise.guests import cache; print('asks', flush=True); cache.folder('images'); print('has it')"
    with cache.exclusive() as top:
        assert top == filled
        running = subprocess.Popen([sys.executable, "-c", asks], stdout=subprocess.PIPE, text=True)
        assert known(running.stdout).readline() == "asks\n"
        with pytest.raises(subprocess.TimeoutExpired):
            running.wait(1)
    assert running.communicate(timeout=60)[0] == "has it\n"


def test_what_cannot_be_removed_is_named(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, target: Path) -> Path:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(StorageError, match="cannot remove .*: Permission denied") as raised:
        cache.remove_unused(0)
    assert (raised.value.hint or "").startswith(f"rm -r {filled}")


def test_the_command_says_what_it_removed_and_refuses_what_is_no_duration(filled: Path) -> None:
    run = CliRunner()
    assert (
        run.invoke(cli, ["guest", "cache", "--remove-unused-for", "30d"]).output
        == f"0 entries, 0 B removed from {filled}\n"
    )
    refused = run.invoke(cli, ["guest", "cache", "--remove-unused-for", "a month"]).exception
    assert isinstance(refused, UserError)
    assert "--remove-unused-for a month: not a duration" in refused.message
    assert "6 entries, " in run.invoke(cli, ["guest", "cache", "--remove-unused-for", "0s"]).output
    assert run.invoke(cli, ["guest", "cache"]).output == f"0 entries, 0 B in {filled}\n"


def test_a_build_under_way_is_told_from_one_that_failed(filled: Path) -> None:
    """Of both the log is all that there is yet; who makes the one holds its lock."""
    running, failed = cache.entry_path("kernels", b"running"), cache.entry_path("kernels", b"failed")
    for path in (running, failed):
        path.with_suffix(".log").write_text("make\n")
        path.with_name(f".{path.name}.lock").touch()
    unfinished = running.with_name(f".{running.name}.new")
    with cache.locked(running.with_name(f".{running.name}.lock")):
        unfinished.mkdir()
        said = [entry.name for entry in cache.entries() if entry.kind == "kernels" and "debian" not in entry.name]
        assert sorted(said) == sorted(
            [
                f"being made: {running.name[:8]}",
                f"log of a build that is under way ({running.name[:8]})",
                f"log of a build that failed ({failed.name[:8]})",
            ]
        )
    unfinished.rmdir()
    assert f"log of a build that failed ({running.name[:8]})" in [entry.name for entry in cache.entries()]


def test_no_other_account_can_hold_a_lock_of_roots_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache is readable by all, and flock(2) needs no more: root would wait for ever."""
    need_root()
    monkeypatch.setenv("HUGEWISE_CACHE", str(tmp_path / "cache"))
    place = cache.folder()
    (place / ".image.lock").touch(0o644)
    with cache.locked(place / ".image.lock"):
        pass
    found = {path.name: path.stat().st_mode & 0o777 for path in place.iterdir() if path.is_file()}
    assert len(found) == 2 and set(found.values()) == {0o600}, found
