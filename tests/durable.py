"""What was done to have files on disk: every sync and every rename of this process, in order."""

import os
from pathlib import Path

import pytest

__all__ = ["lasting"]


def lasting(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Path, Path]]:
    """From now on: ("sync", path, path) and ("rename", from, to)."""
    found: list[tuple[str, Path, Path]] = []
    fsync, replace, rename = os.fsync, os.replace, os.rename

    def synced(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        found.append(("sync", path, path))
        fsync(descriptor)

    def replaced(source: str | Path, target: str | Path) -> None:
        found.append(("rename", real(source), real(target)))
        replace(source, target)

    def renamed(source: str | Path, target: str | Path) -> None:
        found.append(("rename", real(source), real(target)))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    monkeypatch.setattr(os, "rename", renamed)
    return found


def real(path: str | Path) -> Path:
    """Where it leads now: root writes a run through a descriptor of its folder."""
    return Path(path).parent.resolve() / Path(path).name


def is_lasting(done: list[tuple[str, Path, Path]], path: Path) -> bool:
    """Whether `path` came to its place whole: synced before it was renamed, and its folder after."""
    path = path.resolve()
    for place, (what, source, target) in enumerate(done):
        if what == "rename" and target.resolve() == path:
            before = ("sync", source, source) in done[:place]
            after = ("sync", path.parent, path.parent) in done[place:]
            return before and after
    return False
