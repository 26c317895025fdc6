"""Which files Python code has opened, how often, and how."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

__all__ = ["opened_files"]


def opened_files(monkeypatch: pytest.MonkeyPatch) -> dict[Path, list[str]]:
    """From now on: the modes in which each file was opened by its path, in order."""
    found: dict[Path, list[str]] = defaultdict(list)
    real = Path.open

    def opened(path: Path, mode: str = "r", *others: Any, **more: Any) -> Any:
        found[path].append(mode)
        return real(path, mode, *others, **more)

    monkeypatch.setattr(Path, "open", opened)
    return found
