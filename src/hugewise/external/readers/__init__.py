"""Formats of measurements made elsewhere, one a file; found by being there (see `hugewise.external.reader`)."""

from __future__ import annotations

import importlib
import pkgutil
from typing import cast

from hugewise.external.reader import Reader

__all__ = ["discover"]


def discover() -> dict[str, Reader]:
    """Return all readers by name, sorted: the modules of this folder."""
    names = sorted(info.name for info in pkgutil.iter_modules(__path__) if not info.name.startswith("_"))
    modules = (cast(Reader, importlib.import_module(f"{__name__}.{name}")) for name in names)
    return {module.NAME: module for module in modules}
