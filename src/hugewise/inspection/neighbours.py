"""Other running programs: the memory that a host-wide setting would put into huge pages.

Everything is read from /proc, of every process that the caller may read; none is stopped, and one that ends meanwhile
is passed over. Counted is resident private anonymous memory in base pages, in mappings with room for a page of that
size, of programs that have not turned such pages off for themselves or for the mapping.

Programs decide how many mappings they have: a limited number is read for each account, and the rest counts as not read,
as does what cannot be read in time. So no account can keep root busy with mappings, or have it wait for ever.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import msgspec

from hugewise.inspection.smaps import BackedMapping, backed_mappings
from hugewise.machine.proc import Patience, StuckError

_SHOWN = 5
_PATIENCE_S = 20.0  # for one process
_ROOT = "0"
_LONGEST = 64  # characters of a name
_MOST_MAPPINGS = 1 << 17  # of one account's processes; root's are not counted. One process may have 65,530 by default
_NOT_MEMORY = ("/", "[vdso]", "[vvar]", "[vsyscall]")


class ProgramBeside(msgspec.Struct, frozen=True, kw_only=True):
    """A program that runs: bytes over all of its processes.

    eligible   resident memory that would be in huge pages
    growth     by how much they could grow at most: each block that has a page of theirs becomes a whole huge page
    """

    name: str
    processes: int
    eligible: int
    growth: int


class Neighbours(msgspec.Struct, frozen=True, kw_only=True):
    """All of them: those with most first, and sums over all. `unread`: processes that cannot be looked into."""

    size: int
    programs: tuple[ProgramBeside, ...]
    processes: int
    eligible: int
    growth: int
    unread: int


def neighbours(size: int, proc: Path = Path("/proc"), without: Iterable[int] = ()) -> Neighbours:
    """Return running programs that huge pages of `size` bytes may affect; not this one, and not those in `without`."""
    base = os.sysconf("SC_PAGE_SIZE")
    gone = {os.getpid(), *without}
    sums: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    unread = 0
    patience = Patience(_PATIENCE_S)
    looked: Counter[str] = Counter()
    for pid in sorted(int(each.name) for each in proc.iterdir() if each.name.isdecimal()):
        if pid in gone:
            continue
        try:
            folder = proc / str(pid)
            status = (folder / "status").read_text(encoding="utf-8", errors="replace")
            if "\nVmRSS:" not in status or "\nTHP_enabled:\t0" in status:  # a thread of the kernel; or it has none
                continue
            account = _account(status)
            most = None if account == _ROOT else max(0, _MOST_MAPPINGS - looked[account])
            mappings = backed_mappings(patience.lines(folder / "smaps"))
            sizes = [eligible(each, size, base) for each in islice(mappings, most)]
            looked[account] += len(sizes)
            if most is not None and len(sizes) >= most:
                unread += 1
                continue
        except (PermissionError, StuckError):
            unread += 1
            continue
        except OSError:  # the process has ended
            continue
        name = status.partition("\n")[0].partition(":")[2].strip()[:_LONGEST]
        added = (1, sum(here for here, _ in sizes), sum(more for _, more in sizes))
        sums[name] = [kept + new for kept, new in zip(sums[name], added, strict=True)]
    made = sorted(_programs(sums.items()), key=lambda one: (-one.eligible, one.name))
    return Neighbours(
        size=size,
        programs=tuple(one for one in made[:_SHOWN] if one.eligible),
        processes=sum(one.processes for one in made),
        eligible=sum(one.eligible for one in made),
        growth=sum(one.growth for one in made),
        unread=unread,
    )


def _account(status: str) -> str:
    """Return the account of a process; root's where that is unknown."""
    words = next((line.split() for line in status.split("\n") if line.startswith("Uid:")), [])
    return words[1] if len(words) > 1 else _ROOT


def _programs(sums: Iterable[tuple[str, list[int]]]) -> Iterator[ProgramBeside]:
    for name, (processes, here, more) in sums:
        yield ProgramBeside(name=name, processes=processes, eligible=here, growth=more)


def eligible(mapping: BackedMapping, size: int, base: int) -> tuple[int, int]:
    """Return bytes of a mapping that would be in huge pages of `size`, and by how many it could grow at most. Pure.

    Which of its pages are resident is not in smaps: as many as can lie within whole aligned blocks are taken to, and
    for the growth each is taken to lie in a block of its own.
    """
    room = mapping.room(size)
    private = mapping.permissions.endswith("p") and not mapping.name.startswith(_NOT_MEMORY)
    small = mapping.anonymous - mapping.huge
    if not private or "nh" in mapping.flags or mapping.page > base or room == 0 or small <= 0:
        return 0, 0
    within = max(0, room - mapping.huge)
    here = min(small, within)
    outside = mapping.size - room  # at most so many bytes lie in no whole block
    surely = min(within, max(0, small - outside))
    return here, max(0, min(within - surely, here // base * (size - base)))
