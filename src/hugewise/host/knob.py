"""The kernel's page settings: one knob (find, read, turn, check), and those of a run, turned in batches and put back.

Knobs are found by what is present: every readable and writable file below /sys/kernel/mm/transparent_hugepage, and
the sizes of the hugetlb pools, for the machine and for each NUMA node. A file that offers choices
(`always [madvise] never`) has the value of the chosen word.

The value of a pool's `nr_hugepages` is the number of its *persistent* pages: the file also counts surplus pages, which
come and go with the programs that use them, while a write sets the persistent ones only. The two numbers lie in two
files, so they are read until the first one holds still.

A turn of `enabled` has a side effect: the kernel rewrites vm.min_free_kbytes (measured on Linux 6.18 with 23 GB: 19,832
under `never`, 67,584 otherwise), and does not always come back to a value that the administrator chose.

A treatment's knobs are meant over the state that was found at the start: a knob that an earlier arm turned and this
one does not name goes back to its original value. Every turn is journalled first, and none goes against somebody else
in silence.

Sources: Documentation/admin-guide/mm/transhuge.rst and hugetlbpage.rst of the Linux kernel.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from hugewise.errors import SettingError, StorageError
from hugewise.host.ledger import Alternated, Intent, JournalRecord, KnobTurn, Ledger, Log, Turned, TurnedBeside, Yielded
from hugewise.machine.machine import SURPLUS, Drift
from hugewise.model.host import Host
from hugewise.model.pages import HUGETLB, THP

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
    """Return whether `path` has the form of a knob. Paths in a journal are checked before they are written to."""
    return path in BESIDE or _KNOB.fullmatch(path) is not None


def canonical(value: str) -> str:
    """Return a value as it reads back: without blanks, a number without leading zeros."""
    text = value.strip()
    return str(int(text)) if text.isascii() and text.isdigit() else text


def read(host: Host, path: str) -> str:
    """Read a knob: the chosen word, the number, or the persistent pages of a pool. Raises OSError."""
    if path.endswith(f"/{_POOL_SIZE}"):
        return str(_persistent(host, path))
    text = host.read(path)
    chosen = _CHOSEN.search(text)
    return chosen[1] if chosen else text.strip()


def surplus(host: Host, path: str) -> int:
    """Return the surplus pages of the pool with the size file `path`, which go when programs release them."""
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


def read_knobs(host: Host) -> dict[str, str]:
    """Return every knob of `host` with its value, by path, in a stable order."""
    knobs = {}
    for path in _candidates(host):
        value = _value(host, path)
        if value is not None:
            knobs[path] = value
    return knobs


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


def side_effects(host: Host) -> dict[str, str]:
    """Return the values that the kernel changes along with knobs. They are not watched, but restored in the end."""
    return {path: value for path in BESIDE if (value := _value(host, path)) is not None}


def differing_knobs(host: Host, expected: Mapping[str, str]) -> list[Drift]:
    """Return the knobs that do not hold the `expected` value."""
    differing = []
    for path, value in expected.items():
        if (seen := _value(host, path)) != value:
            differing.append(Drift(path, value, seen))
    return differing


def turn(host: Host, wanted: Mapping[str, str]) -> None:
    """Write every value and read it back; what the kernel refuses comes again last. Raises SettingError."""
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
    for drift in differing_knobs(host, wanted):
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
    """Give the knobs their original values, the last turned first; return what was put back and what was left alone.

    A knob that holds neither its original value nor one of hugewise's was turned by somebody else and is left alone.
    Raises SettingError after all were tried.
    """
    back: dict[str, str] = {}
    left: list[Drift] = []
    for path, (original, ours) in reversed(list(turned.items())):
        current = _value(host, path)
        if current == original:
            continue
        if current in ours:
            back[path] = original
        else:
            left.append(Drift(path, ours[0], current))
    try:
        turn(host, back)
    finally:
        changed = {drift.path: drift.expected for drift in differing_knobs(host, aside)}
        turn(host, changed)
    return back | changed, left


class Settings:
    """The knobs of `host` during one run. Without a journal (an ordinary user) nothing can be turned."""

    def __init__(self, host: Host, journal: Log | None) -> None:
        self.host = host
        self.ledger = Ledger()
        self.initial = read_knobs(host)
        self._journal = journal
        self._expected = dict(self.initial)
        self._seen = dict(self.initial)
        self._settled = True  # no batch was broken off

    def values(self) -> Mapping[str, str]:
        """Return every knob's value at the last `apply`, `drift` or `restore`."""
        return dict(self._seen)

    def drift(self) -> list[Drift]:
        """Knobs that differ from what hugewise last wrote, or saw at the start where it wrote nothing."""
        found = differing_knobs(self.host, self._expected)
        self._seen = self._expected | {each.path: each.found or "(gone)" for each in found}
        return found

    def apply(self, wanted: Mapping[str, str]) -> list[Drift]:
        """Make `wanted` hold over the first state; return drift, if any. Raises SettingError, StorageError."""
        self._check(wanted)
        if found := self.drift():
            return found
        target = {path: self.initial[path] for path in self.ledger.turned}
        target |= {path: canonical(value) for path, value in wanted.items()}
        changes = {path: value for path, value in target.items() if self._expected[path] != value}
        if not changes:
            return []
        self._begin(next(iter(changes)))
        self.note(Intent(tuple(KnobTurn(path, self._expected[path], value) for path, value in changes.items())))
        try:
            self._turn(changes)
        except SettingError:
            missed = {knob.path: knob.found for knob in differing_knobs(self.host, changes)}
            self._expected |= {path: value for path, value in changes.items() if path not in missed}
            raise
        self._expected |= changes
        self._seen = dict(self._expected)
        self.note(Turned(), sync=False)
        return []

    def alternation(self, arms: Sequence[Mapping[str, str]]) -> Callable[[int], list[Drift]]:
        """Journal all values of `arms`, and return the function that turns to an arm's, or returns drift. Both raise
        SettingError; StorageError.
        """
        paths = tuple(arms[0])
        self._check(paths)
        if paths:
            self._begin(paths[0])
            self.note(Alternated({path: (self._expected[path], *(arm[path] for arm in arms)) for path in paths}))

        def turn_to(arm: int) -> list[Drift]:
            if drifts := differing_knobs(self.host, {path: self._expected[path] for path in paths}):
                return drifts
            changes = {path: value for path, value in arms[arm].items() if value != self._expected[path]}
            if changes:
                self._turn(changes)
                self._expected |= changes
                self._seen |= changes
            return []

        return turn_to

    def _check(self, wanted: Iterable[str]) -> None:
        for path in wanted:
            if path not in self.initial:
                near = difflib.get_close_matches(path, self.initial, n=3)
                raise SettingError(
                    f"{path}: this machine has no such page setting",
                    hint=f"near: {', '.join(near)}" if near else "see: hugewise doctor",
                )

    def acknowledge(self, drifts: Iterable[Drift]) -> None:
        """Take what others wrote as the state to go on from and to go back to, after it was named to the user."""
        for drift in drifts:
            if drift.found is None:
                raise SettingError(f"{drift.path} is gone: this machine changed under the run")
            if self._journal is not None:
                self.note(Yielded(drift.path, drift.found))
            self.initial[drift.path] = self._expected[drift.path] = drift.found

    def expect(self, values: Mapping[str, str]) -> None:
        """Take `values` as hugewise's own from now on; for pools, which are filled apart from the treatments."""
        self._expected |= values
        self._seen |= values

    def expected(self, path: str) -> str | None:
        return self._expected.get(path)

    def note(self, record: JournalRecord, *, sync: bool = True) -> None:
        if self._journal is not None:
            self._journal.append(record, sync=sync)
        self.ledger.add(record)

    def note_return(self, record: JournalRecord) -> None:
        """Journal a record while restoring; a full disk must not keep the host from being restored."""
        with suppress(StorageError):
            if self._journal is not None:
                self._journal.append(record)
        self.ledger.add(record)

    @contextmanager
    def closing_only_when_done(self) -> Iterator[None]:
        """Whatever fails inside keeps the journal open, for the next root call to try again."""
        try:
            yield
        except BaseException:
            if self._journal is not None:
                self._journal.keep_open()
            raise

    def _begin(self, path: str) -> None:
        if self._journal is None:
            raise SettingError(f"cannot set {path}: only root turns knobs", hint="run it with sudo")
        if not self.ledger.beside:
            self.note(TurnedBeside(side_effects(self.host)), sync=False)

    def _turn(self, changes: Mapping[str, str]) -> None:
        self._settled = False
        turn(self.host, changes)
        self._settled = True

    def _last(self, path: str, ours: tuple[str, ...]) -> tuple[str, ...]:
        last = self._expected.get(path)
        return (last,) if last in ours else ours

    def restore(self) -> list[Drift]:
        """Put back every knob that still holds what hugewise wrote; return the others. Raises SettingError."""
        with self.closing_only_when_done():
            turned = self.ledger.turned
            if self._settled:  # one of the values in the journal is the last that was written
                turned = {path: (at_first, self._last(path, ours)) for path, (at_first, ours) in turned.items()}
            back, left = put_back(self.host, turned, self.ledger.beside)
        self.ledger.beside = {}
        self._expected |= {path: value for path, value in back.items() if path in self._expected}
        kept = {each.path for each in left}
        self.ledger.turned = {path: turned for path, turned in self.ledger.turned.items() if path in kept}
        self._seen = read_knobs(self.host)
        return left
