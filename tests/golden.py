"""Texts kept below tests/golden; HUGEWISE_WRITE_GOLDEN=1 writes them anew."""

import os
from pathlib import Path

__all__ = ["GOLDEN", "same"]

GOLDEN = Path(__file__).parent / "golden"


def same(text: str, path: Path) -> None:
    """The text is the one that is kept."""
    if os.environ.get("HUGEWISE_WRITE_GOLDEN") == "1":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
