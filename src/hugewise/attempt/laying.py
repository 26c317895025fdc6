"""What the layout library did for an attempt: a file to which it appends a line for each process that loads it.

The file is in the attempt's private folder and the account's own, as the library demands; it is read below a descriptor
when the command has ended. The program has the file's name in its environment and may write anything to it: what makes
no sense is no report. docs/concepts/layouts.md says what stands in it.
"""

from __future__ import annotations

import pwd
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from hugewise import reading
from hugewise.beneath import Folder
from hugewise.errors import StorageError
from hugewise.host.scratch import fresh
from hugewise.machine.layouts import REPORT
from hugewise.machine.load_generator import Natural
from hugewise.model.policy import Treatment
from hugewise.quantity import format_size
from hugewise.reading import UnreadableError

__all__ = ["LayoutLine", "reported", "reporting", "summary", "undelivered"]

_NAME = "report"
_MOST = 8 << 20  # bytes: some 40,000 processes
_CUT = (  # the heap is not glibc's; pieces that such an allocator maps are cut from a region of the layout
    "malloc is not glibc's",
    "malloc does not take its memory from the heap",
)


class LayoutLine(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the layout in one process. `why` is null where all of it was had.

    heap_bytes   that are laid out, 0 where none are
    short_bytes  that were to be of a pool, and are base pages
    ranges       whose pages were chosen; `refused`: for which the kernel did not
    """

    pid: Natural
    layout: str
    heap_bytes: Natural
    heap_from: Natural
    short_bytes: Natural
    ranges: Natural = 0
    refused: Natural = 0
    why: str | None = None


_LINE = msgspec.json.Decoder(LayoutLine)


def reporting(below: Path, order: int, account: pwd.struct_passwd | None) -> tuple[Path, Mapping[str, str]]:
    """A folder of the account's (None: the caller's) for the report of the attempt that has this `order` in its block,
    and the variable that names the file. Raises StorageError.
    """
    user, group = (None, None) if account is None else (account.pw_uid, account.pw_gid)

    def fill(made: Folder) -> None:
        made.put(_NAME, b"", 0o600, user, group)

    folder = below / f"layout-{order}"
    fresh(folder, user, group, fill)
    return folder, {REPORT: str(folder / _NAME)}


def reported(folder: Path) -> list[LayoutLine]:
    """The lines of the report that make sense; none where there is no such file any more."""
    found = bytearray()
    with suppress(OSError, StorageError), Folder.open(folder) as held, held.file(_NAME) as file:
        while len(found) < _MOST and (piece := file.read(_MOST - len(found))):
            found += piece
    lines = []
    for line in found.splitlines():
        with suppress(UnreadableError):
            lines.append(reading.decoded(_LINE, bytes(line)))
    return lines


def summary(lines: Sequence[LayoutLine]) -> dict[str, int | str]:
    """For the attempt's record: how many processes said something, and the sums of what they said."""
    found: dict[str, int | str] = {"processes": len(lines)}
    for name in ("heap_bytes", "short_bytes", "ranges", "refused"):
        found[name] = sum(getattr(line, name) for line in lines)
    if why := next((line.why for line in lines if line.why), None):
        found["why"] = why[:200]
    return found


def undelivered(lines: Sequence[LayoutLine], treatment: Treatment) -> str | None:
    """Why the layout of `treatment` was not had, or None where the library had it as it was to be.

    Of a process that became another program the last one counts.
    """
    if not lines:
        return "the layout library said nothing: the program did not load it"
    lines = list({line.pid: line for line in lines}.values())
    unlaid = [line for line in lines if not line.heap_bytes]
    if len(unlaid) == len(lines):
        why = unlaid[0].why or "the library does not say why"
        return None if why.startswith(_CUT) and "hugetlb" not in treatment.layout else f"no heap was laid out: {why}"
    short = [line for line in lines if line.heap_bytes and line.short_bytes]
    if short:
        size = format_size(sum(line.short_bytes for line in short))
        return f"the pool was short: {size} are base pages, {_of(short, lines)}"
    refused = [line for line in lines if line.refused]
    return None if not refused else f"the kernel refused the advice, {_of(refused, lines)}"


def _of(some: Sequence[LayoutLine], lines: Sequence[LayoutLine]) -> str:
    return f"in {len(some)} of {len(lines)} processes"
