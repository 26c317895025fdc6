"""The studies that come with hugewise: of a checkout its folder `studies`, else what the wheel brought.

`hugewise run demo` means `demo.toml` of them, where no file is called `demo`.
"""

from __future__ import annotations

import sys
from pathlib import Path

__all__ = ["folder", "named", "names"]


def folder() -> Path:
    """Where they lie."""
    checkout = Path(__file__).parents[3] / "studies"
    return checkout if checkout.is_dir() else Path(sys.prefix, "share", "hugewise", "studies")


def names() -> list[str]:
    """Their names, in order."""
    return sorted(path.stem for path in folder().glob("*.toml"))


def named(path: Path) -> Path | None:
    """The file of the study that is called so, or None: a path with folders or an ending names none."""
    return folder() / f"{path}.toml" if str(path) in names() else None
