"""Where root takes its lock: folders of which the host has one, as mountinfo and the kernel say it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hugewise.host import lock
from hugewise.host.lock import LockPlace
from tests.requirements import need_root


def mounted(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """Have /proc/self/mountinfo say so, and the kernel mount nothing."""

    def refuse(kind: str) -> int:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    text = "".join(f"{line}\n" for line in ("21 1 0:20 / /proc rw - proc proc rw", *lines))
    monkeypatch.setattr(lock, "kernel_text", lambda path: text)
    monkeypatch.setattr(lock, "_mounted_nowhere", refuse)


def line(folder: Path, *, kind: str = "debugfs", root: str = "/", minor: int = 0) -> str:
    device = folder.stat().st_dev
    return f"22 1 {os.major(device)}:{os.minor(device) + minor} {root} {folder} rw shared:2 - {kind} none rw"


def own(folder: Path, mode: int = 0o700) -> Path:
    folder.mkdir()
    folder.chmod(mode)
    return folder


def opened() -> list[str]:
    """What this process has open."""
    return sorted(each.name for each in Path("/proc/self/fd").iterdir())


def of(name: str) -> LockPlace:
    (found,) = (place for place in lock.PLACES if place.name == name)
    return found


def test_what_cannot_be_mounted_is_opened_where_it_is_mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_root()
    part, over, whole = (own(tmp_path / name) for name in ("part", "over", "whole"))
    mounted(
        monkeypatch,
        line(part, root="/part"),  # a part of it alone
        line(over, minor=1),  # something else is mounted over it
        line(part, kind="tracefs"),
        line(whole),
    )
    before = opened()
    descriptor = of("debugfs").open()
    assert Path(f"/proc/self/fd/{descriptor}").readlink() == whole
    os.close(descriptor)
    assert opened() == before


@pytest.mark.parametrize(
    ("says", "error"),
    [
        (lambda folder: line(folder, root="/part"), FileNotFoundError),
        (lambda folder: line(folder, minor=1), FileNotFoundError),
        (lambda folder: line(folder, kind="tracefs"), FileNotFoundError),
        (lambda folder: line(folder).replace(str(folder), f"{folder}-gone"), FileNotFoundError),
    ],
    ids=["a part of it", "mounted over", "another one", "not to be seen"],
)
def test_what_is_not_the_whole_one_is_no_place_for_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: Callable[[Path], str], error: type[OSError]
) -> None:
    mounted(monkeypatch, says(own(tmp_path / "folder")))
    before = opened()
    with pytest.raises(error):
        of("debugfs").open()
    assert opened() == before


def test_a_folder_that_others_can_open_too_is_no_place_for_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted(monkeypatch, line(own(tmp_path / "folder", 0o755)))
    before = opened()
    with pytest.raises(PermissionError, match="others can open it too"):
        of("debugfs").open()
    assert opened() == before
