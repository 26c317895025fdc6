"""Records of the changes that hugewise made to a host, and the state that follows from them.

The same fold serves the run itself (in memory) and the recovery after it was killed (from the journal), so that there
is one way to put a host back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec


class JournalOpened(msgspec.Struct, frozen=True, tag="opened"):
    """First record: whose journal this is. `pid_start` is the process's start time in clock ticks since boot."""

    boot_id: str
    pid: int
    pid_start: int
    run: str
    format: int = 1


class KnobTurn(msgspec.Struct, frozen=True):
    """Knob of a batch: what it held, and what is to be written."""

    path: str
    before: str
    wrote: str


class Intent(msgspec.Struct, frozen=True, tag="intent"):
    """Written before any knob of the batch is turned."""

    turns: tuple[KnobTurn, ...]


class TurnedBeside(msgspec.Struct, frozen=True, tag="beside"):
    """Values that the kernel changes along with knobs, recorded before the first intent; see `knob.side_effects`."""

    values: Mapping[str, str]


class Turned(msgspec.Struct, frozen=True, tag="turned"):
    """The batch before it was written whole and read back."""


class Alternated(msgspec.Struct, frozen=True, tag="alternated"):
    """Written before knobs are turned for arms in turns: by path its value, then each arm's value."""

    values: Mapping[str, tuple[str, ...]]


class Yielded(msgspec.Struct, frozen=True, tag="yielded"):
    """Somebody else turned this knob, the run said so, and takes the found value as the one to go back to."""

    path: str
    found: str


class PoolIntent(msgspec.Struct, frozen=True, tag="pool_intent"):
    """Written before a pool is filled: persistent and `surplus` pages by path of nr_hugepages, and the wanted."""

    before: Mapping[str, int]
    wanted: int
    surplus: Mapping[str, int] = {}


class PoolGranted(msgspec.Struct, frozen=True, tag="pool_granted"):
    """Pages that the kernel added, by path."""

    added: Mapping[str, int]


class PoolReturn(msgspec.Struct, frozen=True, tag="pool_return"):
    """Written before pages are given back: the pool's pages then, and those it will have."""

    path: str
    found: int
    wrote: int


class FoldersMade(msgspec.Struct, frozen=True, tag="folders"):
    """Cgroups made for this run, and the controllers that were enabled for it: (subtree_control file, controller)."""

    paths: tuple[str, ...]
    enabled: tuple[tuple[str, str], ...] = ()


class Scratched(msgspec.Struct, frozen=True, tag="scratched"):
    """A folder for attempts that is about to be made; it goes with everything in it."""

    path: str


class Linked(msgspec.Struct, frozen=True, tag="linked"):
    """Network interfaces that are about to be made for guests: the bridge first, then what is attached to it."""

    names: tuple[str, ...]


class Mounted(msgspec.Struct, frozen=True, tag="mounted"):
    """A hugetlbfs that is about to be mounted for guests, by its folder."""

    path: str


class Fragmenting(msgspec.Struct, frozen=True, tag="fragmenting"):
    """A process that is about to keep the free memory in pieces, for as long as it lives. `pid_start`: its start."""

    pid: int
    pid_start: int


class Draining(msgspec.Struct, frozen=True, tag="draining"):
    """vm.percpu_pagelist_high_fraction is about to be changed for some seconds; what it was."""

    before: str


class Swapped(msgspec.Struct, frozen=True, tag="swapped"):
    """A swap file that is about to be made."""

    path: str


class JournalClosed(msgspec.Struct, frozen=True, tag="closed"):
    """Last record: everything is put back, or reported."""

    reason: str


JournalRecord = (
    JournalOpened
    | TurnedBeside
    | Intent
    | Turned
    | Alternated
    | Yielded
    | PoolIntent
    | PoolGranted
    | PoolReturn
    | FoldersMade
    | Scratched
    | Linked
    | Mounted
    | Draining
    | Fragmenting
    | Swapped
    | JournalClosed
)


class Log(Protocol):
    """Log that keeps records before their changes are made; see `hugewise.host.journal.Journal`."""

    def append(self, record: JournalRecord, *, sync: bool = True) -> None:
        """Keep the record on disk. Raises StorageError."""
        ...

    def keep_open(self) -> None:
        """Something could not be put back: the next root call shall try again."""
        ...


class Share(msgspec.Struct):
    """Pages of one pool on one node: `added` is None while filling; `surplus`: pages that it had before."""

    before: int
    wanted: int
    surplus: int = 0
    added: int | None = None
    returned: PoolReturn | None = None


class Ledger:
    """The state after a sequence of records.

    turned   path -> (original value, hugewise's own values there), in the order of first turning
    pools    path of nr_hugepages -> Share
    """

    def __init__(self) -> None:
        self.owner: JournalOpened | None = None
        self.closed = False
        self.turned: dict[str, tuple[str, tuple[str, ...]]] = {}
        self.beside: dict[str, str] = {}
        self.pools: dict[str, Share] = {}
        self.folders: list[FoldersMade] = []
        self.scratch: list[str] = []
        self.links: list[str] = []
        self.mounts: list[str] = []
        self.fragmenters: list[Fragmenting] = []
        self.swaps: list[str] = []
        self.drained: str | None = None
        self._under_way: tuple[KnobTurn, ...] = ()

    def add(self, record: JournalRecord) -> None:
        match record:
            case JournalOpened():
                self.owner = record
            case Intent() | Turned() | Alternated():
                self._add_turned(record)
            case TurnedBeside(values):
                self.beside = dict(values)
            case Yielded(path, found):
                self.turned.pop(path, None)
                if path in self.pools:
                    self._yield_pool(path, int(found))
            case PoolIntent() | PoolGranted() | PoolReturn():
                self._add_pool(record)
            case FoldersMade() | Scratched() | Linked() | Mounted() | Fragmenting() | Draining() | Swapped():
                self._add_made(record)
            case JournalClosed():
                self.closed = True

    def _add_turned(self, record: Intent | Turned | Alternated) -> None:
        match record:
            case Intent(turns):
                self._under_way = turns
                for each in turns:
                    self.turned[each.path] = (self._original(each.path, each.before), (each.wrote, each.before))
            case Turned():
                for each in self._under_way:
                    self.turned[each.path] = (self.turned[each.path][0], (each.wrote,))
                self._under_way = ()
            case Alternated(values):
                for path, (held, *written) in values.items():
                    self.turned[path] = (self._original(path, held), tuple(dict.fromkeys((held, *written))))

    def _original(self, path: str, held: str) -> str:
        return self.turned[path][0] if path in self.turned else held

    def _add_made(self, record: FoldersMade | Scratched | Linked | Mounted | Fragmenting | Draining | Swapped) -> None:
        match record:
            case FoldersMade():
                self.folders.append(record)
            case Scratched(path):
                self.scratch.append(path)
            case Linked(names):
                self.links.extend(names)
            case Mounted(path):
                self.mounts.append(path)
            case Fragmenting():
                self.fragmenters.append(record)
            case Draining(before):
                self.drained = before if self.drained is None else self.drained
            case Swapped(path):
                self.swaps.append(path)

    def _add_pool(self, record: PoolIntent | PoolGranted | PoolReturn) -> None:
        match record:
            case PoolIntent(before, wanted, surplus):
                for path, pages in before.items():
                    self.pools[path] = Share(pages, wanted, surplus.get(path, 0))
            case PoolGranted(added):
                for path, pages in added.items():
                    self.pools[path].added = pages
            case PoolReturn(path):
                self.pools[path].returned = record

    def _yield_pool(self, path: str, found: int) -> None:
        # pages that others added are theirs, ours stay ours; a pool that others made smaller is theirs
        share = self.pools[path]
        if share.added is not None and found >= share.before + share.added:
            share.before = found - share.added
        else:
            del self.pools[path]
