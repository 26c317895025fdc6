"""Which files Python code has opened, how often, and how."""

import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

__all__ = ["opened_files"]


def opened_files(monkeypatch: pytest.MonkeyPatch) -> dict[Path, list[str]]:
    """From now on: the modes in which each file was opened by its path, in order."""
    found: dict[Path, list[str]] = defaultdict(list)
    real, by_system = Path.open, os.open

    def opened(path: Path, mode: str = "r", *others: Any, **more: Any) -> Any:
        found[path].append(mode)
        return real(path, mode, *others, **more)

    def read(path: Any, flags: int, *others: Any, **more: Any) -> int:
        if flags & (os.O_ACCMODE | os.O_DIRECTORY | os.O_NOFOLLOW) == os.O_RDONLY | os.O_NOFOLLOW:  # reading.opened
            found[Path(path)].append("rb")
        return by_system(path, flags, *others, **more)

    monkeypatch.setattr(Path, "open", opened)
    monkeypatch.setattr(os, "open", read)
    return found
