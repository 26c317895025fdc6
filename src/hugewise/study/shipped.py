"""The studies that come with hugewise: of a checkout its folder `studies`, else what the wheel brought.

`hugewise run demo` means `demo.toml` of them, where no file is called `demo`.
"""

from __future__ import annotations

import sys
from pathlib import Path

__all__ = ["checkout", "folder", "named", "names"]


def folder() -> Path:
    """Where they lie."""
    source = checkout()
    return source / "studies" if source is not None else Path(sys.prefix, "share", "hugewise", "studies")


def checkout() -> Path | None:
    """The project's folder, where this hugewise is run from its source; None where it came with a wheel."""
    source = Path(__file__).parents[3]
    return source if (source / "studies").is_dir() else None


def names() -> list[str]:
    """Their names, in order."""
    return sorted(path.stem for path in folder().glob("*.toml"))


def named(path: Path) -> Path | None:
    """The file of the study that is called so, or None: a path with folders or an ending names none."""
    return folder() / f"{path}.toml" if str(path) in names() else None
