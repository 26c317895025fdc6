"""What the cache holds, and that only what nobody uses is removed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from hugewise.cli.main import cli
from hugewise.errors import StorageError, UserError
from hugewise.guests import cache, cache_listing, survey
from hugewise.guests.kernels import store
from hugewise.guests.survey import Survey
from tests.build import known
from tests.build.guests import kernel

DAY = 86400.0
OLD = 40 * DAY


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with one kernel, its survey, an image, an initramfs, a package and lists of packages."""
    monkeypatch.setenv("HUGEWISE_CACHE", str(tmp_path / "cache"))
    store.have({"asked": "k"}, {"made": "k"}, a_kernel)
    survey.keep_survey(kernel(), "max", Survey(release="6.12.1", page_size=4096, files={}))
    cache.cached("images", b"initramfs", an_initramfs)
    cache.cached("images", b"image", an_image)
    package = cache.folder("packages") / ("5" * 32) / "gcc_12_amd64.deb"
    package.parent.mkdir()
    package.write_bytes(b"")
    lists = cache.entry("apt", b"lists")
    lists.mkdir()
    (lists / "main.sources").write_text("Types: deb\nURIs: file:/x\nSuites: trixie\nArchitectures: amd64\n")
    return tmp_path / "cache"


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
    return [f"{each.kind}: {each.name.partition(' (')[0]}" for each in cache_listing.entries()]


def test_everything_is_listed_by_what_it_is_with_size_and_last_use(place: Path) -> None:
    assert names() == [
        "apt: lists of deb trixie amd64",
        "images: initramfs",
        "images: image",
        "kernels: debian 6.12.1",
        "packages: gcc_12_amd64.deb",
        "surveys: of 6.12.1",
    ]
    by_kind = {each.name.partition(" ")[0]: each for each in cache_listing.entries() if each.kind == "images"}
    assert by_kind["initramfs"].size >= 70_000
    assert by_kind["image"].size >= 70_000
    assert all(abs(each.used - time.time()) < 600 for each in cache_listing.entries())
    said = CliRunner().invoke(cli, ["guest", "cache"]).output
    assert "debian 6.12.1 (" in said
    assert said.splitlines()[-1].startswith("6 entries, ")
    assert said.splitlines()[-1].endswith(f" in {place}")


def test_what_is_damaged_or_unfinished_is_listed_too(place: Path) -> None:
    (place / "surveys" / ("a" * 32)).write_bytes(b"{")
    (place / "kernels" / ("b" * 32 + ".log")).write_text("make: error")
    (place / "kernels" / f".{'c' * 32}.new").mkdir()
    found = names()
    assert "surveys: damaged" in found
    assert "kernels: log of a build that failed" in found
    assert f"kernels: unfinished .{'c' * 32}.new" in found


def test_an_entry_is_used_when_it_is_asked_for(place: Path) -> None:
    for each in cache_listing.entries():
        for path in each.paths:
            age(path, OLD)
    found = known(store.find({"asked": "k"}))
    survey.find(kernel(), "max")
    cache.cached("images", b"image", an_image)
    store.used(found)
    store.used(kernel())  # one of elsewhere
    recent = {
        f"{each.kind}: {each.name.partition(' (')[0]}"
        for each in cache_listing.entries()
        if each.used > time.time() - DAY
    }
    assert recent == {"surveys: of 6.12.1", "images: image", "kernels: debian 6.12.1"}


def test_what_was_not_used_for_so_long_is_removed_and_made_again(place: Path) -> None:
    old = cache.entry("images", b"image")
    age(old, OLD)
    (kept,) = next(each.paths for each in cache_listing.entries() if each.kind == "kernels")
    (place / "kernels" / f"{kept.name}.log").write_text("took 800 s")
    assert [each.name.partition(" ")[0] for each in cache_listing.remove_unused(30 * DAY)] == ["image"]
    assert not old.exists()
    assert not list(place.glob(f"images/.{old.name}*"))
    assert len(names()) == 5
    assert cache.cached("images", b"image", an_image) == old
    assert (old / "root.ext4").exists()
    # A kernel goes with its log and with the note by which it is found.
    age(kept, OLD)
    age(place / "kernels" / f"{kept.name}.log", OLD)
    cache_listing.remove_unused(30 * DAY)
    assert [path.name for path in (place / "kernels").iterdir()] == []
    assert store.find({"asked": "k"}) is None


def test_what_a_killed_process_left_goes_like_an_entry(place: Path) -> None:
    left = place / "kernels" / f".{'c' * 32}.new"
    (left / "source").mkdir(parents=True)
    half = place / "images" / f".{'d' * 32}.removed"  # of a removal that was killed
    half.mkdir()
    assert cache_listing.remove_unused(DAY) == []
    for path in (left, half):
        age(path, OLD)
    assert [each.unfinished for each in cache_listing.remove_unused(DAY)] == [True, True]
    assert not left.exists()
    assert not half.exists()


def test_nothing_is_removed_while_another_process_uses_the_cache(place: Path) -> None:
    holder = (
        "import time; from hugewise.guests import cache; cache.folder('images'); print('holds', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        assert known(running.stdout).readline() == "holds\n"
        with pytest.raises(UserError, match="another process of hugewise uses"):
            cache_listing.remove_unused(0)
        assert len(names()) == 6  # to look is no harm
        running.communicate("\n")
    assert len(cache_listing.remove_unused(0)) == 6
    assert names() == []


def test_who_asks_for_a_place_waits_until_a_removal_is_over(place: Path) -> None:
    asks = "from hugewise.guests import cache; print('asks', flush=True); cache.folder('images'); print('has it')"
    with cache.alone() as top:
        assert top == place
        running = subprocess.Popen([sys.executable, "-c", asks], stdout=subprocess.PIPE, text=True)
        assert known(running.stdout).readline() == "asks\n"
        with pytest.raises(subprocess.TimeoutExpired):
            running.wait(1)
    assert running.communicate(timeout=60)[0] == "has it\n"


def test_what_cannot_be_removed_is_named(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, target: Path) -> Path:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(StorageError, match="cannot remove .*: Permission denied") as raised:
        cache_listing.remove_unused(0)
    assert (raised.value.hint or "").startswith(f"rm -r {place}")


def test_the_command_says_what_it_removed_and_refuses_what_is_no_duration(place: Path) -> None:
    run = CliRunner()
    assert (
        run.invoke(cli, ["guest", "cache", "--remove-unused-for", "30d"]).output
        == f"0 entries, 0 B removed from {place}\n"
    )
    refused = run.invoke(cli, ["guest", "cache", "--remove-unused-for", "a month"]).exception
    assert isinstance(refused, UserError)
    assert "--remove-unused-for a month: not a duration" in refused.message
    assert "6 entries, " in run.invoke(cli, ["guest", "cache", "--remove-unused-for", "0s"]).output
    assert run.invoke(cli, ["guest", "cache"]).output == f"0 entries, 0 B in {place}\n"


def test_a_build_under_way_is_told_from_one_that_failed(place: Path) -> None:
    """Of both the log is all that there is yet; who makes the one holds its lock."""
    running, failed = cache.entry("kernels", b"running"), cache.entry("kernels", b"failed")
    for path in (running, failed):
        path.with_suffix(".log").write_text("make\n")
        path.with_name(f".{path.name}.lock").touch()
    unfinished = running.with_name(f".{running.name}.new")
    with cache.locked(running.with_name(f".{running.name}.lock")):
        unfinished.mkdir()
        said = [each.name for each in cache_listing.entries() if each.kind == "kernels" and "debian" not in each.name]
        assert sorted(said) == sorted(
            [
                f"being made: {running.name[:8]}",
                f"log of a build that is under way ({running.name[:8]})",
                f"log of a build that failed ({failed.name[:8]})",
            ]
        )
    unfinished.rmdir()
    assert f"log of a build that failed ({running.name[:8]})" in [each.name for each in cache_listing.entries()]
