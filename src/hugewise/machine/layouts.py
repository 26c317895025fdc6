"""The layout library: where it is, whom it reaches, and the environment that has a program load it.

It lays out the heap of an unmodified, dynamically linked program of glibc; docs/concepts/layouts.md says how.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hugewise import files
from hugewise.errors import UserError
from hugewise.machine import loader, programs
from hugewise.model.policy import Treatment

__all__ = ["LAYOUT", "LIBRARY", "REPORT", "environment", "find", "unreached"]

LAYOUT = "HUGEWISE_LAYOUT"
"""The variable that has the layout's words."""

REPORT = "HUGEWISE_LAYOUT_REPORT"
"""The variable that names a file to which the library appends a line of JSON for each process."""

LIBRARY = "HUGEWISE_LAYOUT_LIBRARY"
"""The variable that names another library than the one beside this Python."""

_OWN_PAGES = "glibc.malloc.hugetlb="


def find() -> Path:
    """The library: $HUGEWISE_LAYOUT_LIBRARY, or the one of this installation; without links.

    Raises UserError where it is not there, where root is to load one that another account can change, or where the
    account that a command runs as may not read it.
    """
    named = os.environ.get(LIBRARY)
    path = Path(named or Path(sys.prefix, "share", "hugewise", "libhugewise-layout.so"))
    try:
        path = path.resolve(strict=True)
    except (OSError, RuntimeError):
        raise UserError(f"the layout library {path} is not there", hint="build it: make setup") from None
    if named:
        files.own(path, f"{LIBRARY}: {path}", "root loads it: unset it, or have it owned by root")
    if any(each in str(path) for each in ": \t\n"):
        raise UserError(
            f"the layout library {path} has a blank or a colon in its path, which LD_PRELOAD cannot name",
            hint=f"copy it elsewhere, and name it: {LIBRARY}=PATH",
        )
    if os.geteuid() == 0 and (closed := _closed(path)) is not None:
        raise UserError(
            f"the layout library {path} cannot be read by other accounts, as which commands run: see {closed}",
            hint="set hugewise up in a folder that other accounts may enter",
        )
    return path


def _closed(path: Path) -> Path | None:
    """What keeps other accounts from reading the file, or None."""
    needed = ((each, stat.S_IXOTH) for each in path.parents)
    for each, bit in (*needed, (path, stat.S_IROTH)):
        if not each.stat().st_mode & bit:
            return each
    return None


def unreached(command: Sequence[str], treatment: Treatment) -> str | None:
    """Why the layout of `treatment` cannot be had for what this command executes, or None when it can."""
    if programs.place() is not None:
        return "layouts reach programs of this host, not those in guests"
    given = {**os.environ, **treatment.environment}.get("GLIBC_TUNABLES", "").split(":")
    if any(each.startswith(_OWN_PAGES) and each != f"{_OWN_PAGES}0" for each in given):
        return f"GLIBC_TUNABLES has {_OWN_PAGES.rstrip('=')}, which chooses the pages of the same memory: take it out"
    if programs.which(command[0]) is None:
        return None  # said by the workload
    try:
        find()
    except UserError as error:
        return f"{error.message}; {error.hint}"
    refusal = loader.unpreloaded(command)
    return None if refusal is None else f"a layout does not reach {refusal}"


def environment(treatment: Treatment, heap: int) -> Mapping[str, str]:
    """The variables of a program under the treatment, with its layout where it has one.

    Its heap is of `heap` bytes (0: the usual), unless the layout says it.

    Libraries that were preloaded already stay. Raises UserError as `find`.
    """
    if not treatment.layout:
        return treatment.environment
    others = treatment.environment.get("LD_PRELOAD", os.environ.get("LD_PRELOAD", "")).replace(":", " ").split()
    preload = ":".join(dict.fromkeys((str(find()), *others)))
    return {**treatment.environment, "LD_PRELOAD": preload, LAYOUT: treatment.laid_out(heap)}
