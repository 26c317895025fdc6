"""Rules that choose the settings to try on a program, and the reasons against others: rules as data, the narrowest
reach first. Pure.

A rule gives a candidate, or the reason against it. Settings that a per-process mechanism cannot deliver to a program's
allocator are left out by name (docs/concepts/advice.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from hugewise.quantity import format_size, readable_size

Reach = Literal["process", "pool", "host"]
"""Reach of a setting: the program alone, a pool that is reserved beside it, or every program of the host."""

_SOME = 0.005  # share of memory in huge pages below which there are none to speak of
_MUCH = 0.1  # share of memory that is shared, above which it is worth a setting of its own
_MOSTLY = 0.5
_MOST = 0.95  # and above which there is nothing left to gain by more of them
_LAID_PMD = 2 << 20
_CUT = ("CPython", "jemalloc", "jemalloc of redis", "jemalloc of Rust")
"""Allocators that map their memory in pieces, which the layout library cuts from a region of its own."""
_UNLAID = ("Go", "musl", "the JVM", "tcmalloc", "mimalloc")


class ProgramHere(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that the rules look at.

    root        whether settings of the host can be turned
    mode        of transparent huge pages of the PMD size: always, madvise or never
    top         of the top-level setting, which is what malloc looks at
    pmd         that size in bytes; None on a kernel without them
    mthp        sizes of multi-size THP in bytes, the PMD's not among them
    pools       page sizes of hugetlb pools in bytes
    huge        share of the program's memory in huge pages, as it is; None where it was not seen
    memory      bytes that it had at most, or that its user says it needs; 0 where it is not known
    tuned       whether tunables of glibc reach its allocator (None: not known); `why` not
    allocator   that one's name, or nothing where nobody can tell
    forked      processes that went on with a copy of its memory (fork without exec), `executed` programs that it began,
                `threads`; None where that was not seen. `ended`: processes of a server with children that had ended
    unlaid      why the layout library does not reach it, or None where it does
    shared      share of its memory that it has mapped shared (buffers of PostgreSQL), and `shared_mode` of transparent
                huge pages of that: always, advise, within_size, never, force or deny
    option      how the program's runtime, allocator or server is told to ask for transparent huge pages: environment
                and parameters of the arm; why it cannot be told; None where no such option is known
    disabled    the program turns transparent huge pages off for itself where the machine is set to `always`
    own         of a server with an option of its own for pages of a pool: by their size the parameters of its arm, or
                why it cannot have them
    """

    root: bool
    mode: str
    top: str
    pmd: int | None
    mthp: tuple[int, ...]
    pools: tuple[int, ...]
    huge: float | None
    memory: int
    tuned: bool | None
    why: str = ""
    allocator: str = ""
    forked: int | None = None
    executed: int | None = None
    threads: int | None = None
    ended: int | None = None
    unlaid: str | None = None
    shared: float | None = None
    shared_mode: str = "never"
    option: Mapping[str, Any] | str | None = None
    disabled: bool = False
    own: Mapping[int, Mapping[str, Any] | str] = {}


class SettingCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """A setting that is tried. `use` is the policy as a study names it."""

    name: str
    use: str | Mapping[str, Any]
    reach: Reach
    reason: str


class LeftOutCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """A setting that is not tried, and why. `needs_root`: root could try it; `late`: a longer time has room for it."""

    name: str
    reason: str
    needs_root: bool = False
    late: bool = False


class NeedsRoot(str):
    """Reason why a setting is not tried, though root could."""

    __slots__ = ()


_POOL_NEEDS_ROOT = NeedsRoot("filling a pool needs root")


class CandidateRule(NamedTuple):
    """Rule: `use` of a study, or why there is none (empty: no such program); `reason`: what it would be good for."""

    name: str
    reach: Reach
    reason: str
    use: Callable[[ProgramHere], Mapping[str, Any] | str]


def _small(found: ProgramHere) -> str | None:
    if found.pmd is None or not 0 < found.memory < found.pmd:
        return None
    huge = format_size(found.pmd)
    return f"it has {readable_size(found.memory)} of memory at most, less than one huge page of {huge}"


def _needs_thp(found: ProgramHere) -> str | None:
    return "the kernel has no transparent huge pages" if found.pmd is None else None


def _off(found: ProgramHere) -> Mapping[str, Any] | str:
    if found.huge is not None and found.huge < _SOME:
        return "the program has base pages already"
    return _needs_thp(found) or {"name": "off", "from": "base", "mechanism": "process"}


def _advised(found: ProgramHere) -> Mapping[str, Any] | str:
    if (why := _needs_thp(found)) or (why := _untuned(found)):
        return why
    if found.mode != "madvise" or found.top != "madvise":
        here = _set(found) if found.mode != "madvise" else f"`enabled` is set to {found.top}"
        return f"malloc asks for them only where the machine is set to madvise, and here {here}"
    if found.huge is not None and found.huge > _MOST:
        return "nearly all of its memory is in huge pages already"
    return {"name": "advised", "from": "thp", "mechanism": "process"}


def _own_thp(found: ProgramHere) -> Mapping[str, Any] | str:
    if found.option is None:
        return ""
    if isinstance(found.option, str):
        return found.option
    if (why := _needs_thp(found)) is not None:
        return why
    if found.mode == "never":
        return f"here {_set(found)}"
    if found.huge is not None and found.huge > _MOST:
        return "nearly all of its memory is in huge pages already"
    return {"name": "own-thp", "from": "thp", "mechanism": "process", **found.option}


def _set(found: ProgramHere) -> str:
    """Return the setting that decides: the size's own setting takes precedence over `enabled`."""
    which = "`enabled`" if found.mode == found.top else f"the size {format_size(found.pmd or 0)} (its own `enabled`)"
    return f"{which} is set to {found.mode}"


def _untuned(found: ProgramHere) -> str | None:
    if (why := _shares(found)) is not None:
        return why
    return None if found.tuned is not False else f"tunables of malloc do not reach it: {found.why}"


def _shares(found: ProgramHere) -> str | None:
    """Return why malloc's settings matter little for a server with its own option for huge pages: malloc's memory is
    the lesser part.
    """
    much = bool(found.own) and found.shared is not None and found.shared > _MOSTLY
    return "most of its memory is shared, which malloc does not give" if much else None


def _pool(found: ProgramHere) -> Mapping[str, Any] | str:
    if found.pmd not in found.pools or found.pmd is None:
        return "the kernel has no pool of pages of that size"
    if (why := _untuned(found)) is not None:
        return why
    if not found.root:
        return _POOL_NEEDS_ROOT
    if not found.memory:
        return "how much memory it needs is not known: name it with --pool"
    name = f"hugetlb-{format_size(found.pmd)}"
    return {"name": f"pool-{format_size(found.pmd)}", "from": name, "mechanism": "process"}


def _own(found: ProgramHere, size: int) -> Mapping[str, Any] | str:
    if not found.own:
        return ""  # no server that is known to have such an option: nothing is to be said
    given = found.own.get(size, "the kernel has no pool of pages of that size")
    if isinstance(given, str):
        return given
    if not found.root:
        return _POOL_NEEDS_ROOT
    name = format_size(size)
    return {"name": f"own-{name}", "from": f"reserved-{name}", "mechanism": "process", "parameters": dict(given)}


def _own_2m(found: ProgramHere) -> Mapping[str, Any] | str:
    return _own(found, 2 << 20)


def _own_1g(found: ProgramHere) -> Mapping[str, Any] | str:
    return _own(found, 1 << 30)


def laid_out(found: ProgramHere) -> str | None:
    """Return why no layout reaches the program, or None."""
    if (why := _shares(found)) is not None:
        return why
    if found.unlaid is not None:
        return found.unlaid
    if found.pmd != _LAID_PMD:
        return "the layout library knows huge pages of 2m alone"
    if found.allocator in _UNLAID:
        return f"its memory comes from {found.allocator}, which the layout library does not lay out"
    return None


def _layout_thp(found: ProgramHere) -> Mapping[str, Any] | str:
    if (why := _needs_thp(found)) or (why := laid_out(found)):
        return why
    if found.top == "always" and (why := _disabled(found)) is not None:
        return why
    if found.mode == "never":
        return f"here {_set(found)}"
    if found.huge is not None and found.huge > _MOST:
        return "nearly all of its memory is in huge pages already"
    if not isinstance(_advised(found), str) and found.allocator not in _CUT and not found.threads:
        return "`advised` gives the same heap the same pages, without a library"
    return {"name": "heap-thp", "from": "layout-thp", "mechanism": "process"}


def _layout_2m(found: ProgramHere) -> Mapping[str, Any] | str:
    if (why := heap_from_pool(found, 2 << 20)) is not None:
        return why
    if found.tuned is not False:
        return "`pool-2m` takes the same pages, without a library"
    return {"name": "heap-2m", "from": "layout-hugetlb-2m", "mechanism": "process"}


def _layout_1g(found: ProgramHere) -> Mapping[str, Any] | str:
    if (why := heap_from_pool(found, 1 << 30)) is not None:
        return why
    if found.memory < 1 << 30:
        return "it has less memory than one page of 1g"
    return {"name": "heap-1g", "from": "layout-hugetlb-1g", "mechanism": "process"}


def heap_from_pool(found: ProgramHere, size: int) -> str | None:
    """Return why the heap cannot consist of pages of a pool, or None."""
    if size not in found.pools:
        return "the kernel has no pool of pages of that size"
    if (why := laid_out(found)) is not None:
        return why
    if found.allocator in _CUT:
        return f"{found.allocator} unmaps pieces of its memory, which pages of a pool do not allow"
    if not found.root:
        return _POOL_NEEDS_ROOT
    if not found.memory:
        return "how much memory it needs is not known: name it with --pool"
    return unshared(found.forked, found.executed, found.ended)


def unshared(forked: int | None, executed: int | None, ended: int | None = None) -> str | None:
    """Return why a heap of pool pages would harm the program's child processes, or None; counts are the pilot's."""
    if forked is None or executed is None:
        return "whether it forks was not seen, and where the pool is short a child is killed"
    if forked:
        return f"it forks without exec ({forked} in a run): where the pool is too short for its copy, a child is killed"
    if executed:
        return f"it begins other programs ({executed} in a run), each of which would take its heap from the pool"
    if ended:
        return "it had children that have ended, and whether they were copies of it (a background save) was not seen"
    return None


def _always(found: ProgramHere) -> Mapping[str, Any] | str:
    if (why := _needs_thp(found)) or (why := _disabled(found)) or (why := _of_host(found)):
        return why
    if found.mode == "always":
        return "it is set so already"
    return {"name": "always", "from": "thp", "mechanism": "system"}


def _disabled(found: ProgramHere) -> str | None:
    return "the program turns transparent huge pages off for itself" if found.disabled else None


def _of_host(found: ProgramHere) -> str | None:
    return None if found.root else NeedsRoot("turning a setting of the whole machine needs root")


def _shared(found: ProgramHere) -> Mapping[str, Any] | str:
    if found.shared is None or found.shared < _MUCH:
        return "hardly any of its memory is shared" if found.shared is not None else "its pages were not seen"
    if (why := _needs_thp(found)) or (why := _of_host(found)):
        return why
    if found.shared_mode in ("always", "force"):
        return "it is set so already"
    return {"name": "always-shared", "from": "thp-shmem", "mechanism": "system"}


def _of_64k(found: ProgramHere) -> Mapping[str, Any] | str:
    if 64 << 10 not in found.mthp:
        return "the kernel has no transparent huge pages of 64k"
    return _of_host(found) or {"name": "always-64k", "from": "mthp-64k", "mechanism": "system"}


RULES: Sequence[CandidateRule] = (
    CandidateRule("off", "process", "no transparent huge pages for it, by prctl: less memory, no stalls", _off),
    CandidateRule(
        "advised", "process", "malloc asks for transparent huge pages: fewer faults, shorter page walks", _advised
    ),
    CandidateRule(
        "own-thp",
        "process",
        "by an option of its runtime, allocator or server its memory asks for transparent huge pages",
        _own_thp,
    ),
    CandidateRule(
        "heap-thp",
        "process",
        "a library lays its heap out in one piece, on transparent huge pages from the first touch",
        _layout_thp,
    ),
    CandidateRule("pool", "pool", "malloc takes huge pages that were reserved for it, from the start", _pool),
    CandidateRule(
        "own-2m",
        "pool",
        "by its server's own option its buffers take huge pages that were reserved for it: huge_pages, large-pages",
        _own_2m,
    ),
    CandidateRule("own-1g", "pool", "the same with reserved pages of 1g", _own_1g),
    CandidateRule("heap-2m", "pool", "a library lays its heap out on huge pages that were reserved for it", _layout_2m),
    CandidateRule(
        "heap-1g",
        "pool",
        "a library lays its heap out on reserved pages of 1g; malloc alone would round each large piece up to one",
        _layout_1g,
    ),
    CandidateRule("always", "host", "transparent huge pages for all memory of all programs", _always),
    CandidateRule(
        "always-shared",
        "host",
        "transparent huge pages for shared memory too, which no setting of a process reaches: buffers of databases",
        _shared,
    ),
    CandidateRule(
        "always-64k", "host", "middle-sized pages for all programs: fewer faults, little memory lost", _of_64k
    ),
)


def candidates(found: ProgramHere, most: int) -> tuple[list[SettingCandidate], list[LeftOutCandidate]]:
    """Return at most `most` settings to try, the narrowest reach first, and the settings that are not tried."""
    tried: list[SettingCandidate] = []
    left: list[LeftOutCandidate] = []
    small = _small(found)
    for rule in RULES:
        use = rule.use(found)
        if small is not None and use != "":
            use = small
        if use == "":
            continue
        if isinstance(use, str):
            left.append(LeftOutCandidate(name=rule.name, reason=str(use), needs_root=isinstance(use, NeedsRoot)))
        elif len(tried) == most:
            left.append(
                LeftOutCandidate(name=rule.name, reason=f"of more than {most}, those that reach least are tried")
            )
        else:
            tried.append(SettingCandidate(name=use["name"], use=use, reach=rule.reach, reason=rule.reason))
    return tried, left
