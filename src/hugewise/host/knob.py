"""One knob of the kernel's page settings: find, read, turn and check it.

Knobs are found by what is present: every readable and writable file below /sys/kernel/mm/transparent_hugepage, and
the sizes of the hugetlb pools, for the machine and for each NUMA node. A file that offers choices
(`always [madvise] never`) has the value of the chosen word.

The value of a pool's `nr_hugepages` is the number of its *persistent* pages: the file also counts surplus pages, which
come and go with the programs that use them, while a write sets the persistent ones only. The two numbers lie in two
files, so they are read until the first one holds still.

A turn of `enabled` has a side effect: the kernel rewrites vm.min_free_kbytes (measured on Linux 6.18 with 23 GB: 19,832
under `never`, 67,584 otherwise), and does not always come back to a value that the administrator chose.

Sources: Documentation/admin-guide/mm/transhuge.rst and hugetlbpage.rst of the Linux kernel.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from hugewise.errors import SettingError
from hugewise.machine.drift import SURPLUS, Drift
from hugewise.model.host import Host
from hugewise.model.pages import HUGETLB, THP

__all__ = [
    "BESIDE",
    "NODES",
    "beside",
    "canonical",
    "differing",
    "is_knob",
    "knobs",
    "put_back",
    "read",
    "surplus",
    "turn",
]

BESIDE = ("/proc/sys/vm/min_free_kbytes",)
NODES = "/sys/devices/system/node"

_CHOSEN = re.compile(r"\[([^\]\s]+)\]")
_POOL_SIZE = "nr_hugepages"
_LOOKS = 100  # a page is freed in microseconds, and a look takes some ten of them
_KNOB = re.compile(
    rf"{THP}/[\w-]+(?:/[\w-]+)?"
    rf"|{HUGETLB}/hugepages-\d+kB/nr_(?:overcommit_)?hugepages"
    rf"|{NODES}/node\d+/hugepages/hugepages-\d+kB/nr_hugepages"
)


def is_knob(path: str) -> bool:
    """Whether `path` has the form of a knob; what a journal names is checked with it before it is written to."""
    return path in BESIDE or _KNOB.fullmatch(path) is not None


def canonical(value: str) -> str:
    """A value as it reads back: without blanks, a number without leading zeros."""
    text = value.strip()
    return str(int(text)) if text.isascii() and text.isdigit() else text


def read(host: Host, path: str) -> str:
    """The value of a knob: the chosen word, the number, or the persistent pages of a pool. Raises OSError."""
    if path.endswith(f"/{_POOL_SIZE}"):
        return str(_persistent(host, path))
    text = host.read(path)
    chosen = _CHOSEN.search(text)
    return chosen[1] if chosen else text.strip()


def surplus(host: Host, path: str) -> int:
    """Pages of the pool with the size file `path` that go as soon as the programs that use them let go of them."""
    try:
        return int(host.read(f"{path.removesuffix(_POOL_SIZE)}{SURPLUS}"))
    except FileNotFoundError:
        return 0


def _persistent(host: Host, path: str) -> int:
    pages = int(host.read(path))
    for _ in range(_LOOKS):
        persistent = pages - surplus(host, path)
        pages, before = int(host.read(path)), pages
        if pages == before:
            break
    return persistent


def knobs(host: Host) -> dict[str, str]:
    """Every knob of `host` with its value, by path, in a stable order."""
    found = {}
    for path in _candidates(host):
        value = _value(host, path)
        if value is not None:
            found[path] = value
    return found


def _candidates(host: Host) -> Iterator[str]:
    for name in host.names(THP):
        inner = [each for each in host.names(f"{THP}/{name}") if each != "stats"]
        for path in [f"{THP}/{name}/{each}" for each in inner] or [f"{THP}/{name}"]:
            if host.writable(path):
                yield path
    for name in host.names(HUGETLB):
        yield f"{HUGETLB}/{name}/nr_hugepages"
        yield f"{HUGETLB}/{name}/nr_overcommit_hugepages"
    for node in host.names(NODES):
        for name in host.names(f"{NODES}/{node}/hugepages"):
            yield f"{NODES}/{node}/hugepages/{name}/nr_hugepages"


def _value(host: Host, path: str) -> str | None:
    try:
        return read(host, path)
    except OSError:  # absent on this kernel, or not for our eyes
        return None


def beside(host: Host) -> dict[str, str]:
    """What the kernel changes by itself when knobs are turned: watched by nobody, but put back in the end."""
    return {path: value for path in BESIDE if (value := _value(host, path)) is not None}


def differing(host: Host, expected: Mapping[str, str]) -> list[Drift]:
    """The knobs that do not hold the `expected` value."""
    found = []
    for path, value in expected.items():
        if (seen := _value(host, path)) != value:
            found.append(Drift(path, value, seen))
    return found


def turn(host: Host, wanted: Mapping[str, str]) -> None:
    """Write every value and read it back. Raises SettingError for the first that the kernel does not take.

    The kernel refuses some values as long as another knob is not yet turned (`inherit` of a small size while
    shmem_enabled is `force`), so what is refused is tried again after the others.
    """
    pending = dict(wanted)
    while pending:
        refused: dict[str, OSError] = {}
        for path, value in pending.items():
            try:
                host.write(path, value)
            except OSError as error:
                refused[path] = error
        if len(refused) == len(pending):
            path, reason = next(iter(refused.items()))
            raise _refusal(host, path, wanted[path], reason)
        pending = {path: wanted[path] for path in refused}
    for drift in differing(host, wanted):
        raise SettingError(
            f"the kernel did not take {drift.path} = {drift.expected}: it is {drift.found or 'gone'}",
            hint="another program may manage this setting (tuned, a cloud agent): stop it for the run",
        )


def _refusal(host: Host, path: str, value: str, error: OSError) -> SettingError:
    try:
        offered = host.read(path)
    except OSError:
        offered = ""
    hint = f"this kernel offers: {offered}" if _CHOSEN.search(offered) else None
    return SettingError(f"cannot set {path} = {value}: {error.strerror or error}", hint=hint)


def put_back(
    host: Host, turned: Mapping[str, tuple[str, tuple[str, ...]]], aside: Mapping[str, str]
) -> tuple[dict[str, str], list[Drift]]:
    """Give the knobs their original values, the last turned first; returns what was put back, and what was left alone.

    `turned` maps a path to its original value and to the values that are hugewise's own there (two while a batch is
    under way). A knob that holds neither was turned by somebody else: it is left as it is. `aside` are the values of
    `beside` before the first turn. What the kernel refuses is raised as SettingError after all others were written.
    """
    back: dict[str, str] = {}
    left: list[Drift] = []
    for path, (original, ours) in reversed(list(turned.items())):
        found = _value(host, path)
        if found == original:
            continue
        if found in ours:
            back[path] = original
        else:
            left.append(Drift(path, ours[0], found))
    try:
        turn(host, back)
    finally:
        changed = {drift.path: drift.expected for drift in differing(host, aside)}
        turn(host, changed)
    return back | changed, left
