"""Journal of the changes to a host, on disk before each change, so that they can be undone after a SIGKILL.

One file per host, at one fixed path, append-only JSON Lines of `host.ledger` records. It is begun anew by each run
that turns anything, and closed when everything is put back: by the run, by the next one, or by `hugewise restore`.
After a reboot the kernel is at its boot settings: a journal of another boot is closed, not replayed. Only root has one:
an ordinary user turns nothing.

A plan made while a run goes on, or after one was killed, would see the settings of some arm. `at_rest` gives it the
settings from before the run, by the journal.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from hugewise import reading
from hugewise.errors import HugewiseError, SettingError, StorageError, UserError
from hugewise.files import append_line, storing, sync
from hugewise.host import cgroup, knob, memory_state, network, pool, scratch
from hugewise.host.ledger import FoldersMade, JournalClosed, JournalOpened, JournalRecord, Ledger
from hugewise.host.local_host import LocalHost
from hugewise.host.lock import HostLock, boot_id, locked
from hugewise.machine.machine import Drift
from hugewise.machine.proc import start_time
from hugewise.model.host import Host

JOURNAL = Path("/var/lib/hugewise/journal.jsonl")

_DECODER = msgspec.json.Decoder(JournalRecord)
_ENCODER = msgspec.json.Encoder()


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """Result of `recover`. `note` says why nothing was replayed; `killed` counts processes left by the dead run."""

    run: str | None = None
    put_back: tuple[str, ...] = ()
    left: tuple[Drift, ...] = ()
    killed: int = 0
    note: str | None = None


class Journal:
    """An open journal; the only writer of its file."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._kept_open = False

    @classmethod
    def begin(cls, host: Host, path: Path, run: str) -> Journal:
        """Start the journal of a run. Raises UserError when an earlier one is still open: `recover` comes first."""
        earlier = ledger_of(path.read_bytes(), path) if path.exists() else None
        if earlier is not None and earlier.owner is not None and not earlier.closed:
            raise UserError(f"{path} belongs to a run that has not been put back", hint="sudo hugewise restore")
        try:
            _own_folder(path.parent)
            fresh = path.with_suffix(".new")
            fresh.unlink(missing_ok=True)
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise StorageError(f"cannot write the journal {path}: {error.strerror}") from error
        os.fchmod(descriptor, 0o644)
        journal = cls(path, descriptor)
        pid = os.getpid()
        journal.append(JournalOpened(boot_id(host), pid, start_time(host, pid) or 0, run))
        fresh.replace(path)
        sync(path.parent)
        return journal

    @classmethod
    def reopen(cls, path: Path) -> Journal:
        """Go on with the journal of a dead run; a torn last line is cut off."""
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        whole = path.read_bytes()
        os.ftruncate(descriptor, whole.rfind(b"\n") + 1)
        os.lseek(descriptor, 0, os.SEEK_END)
        return cls(path, descriptor)

    def append(self, record: JournalRecord, *, sync: bool = True) -> None:
        """Keep a record; with `sync` it is on disk when this returns. Raises StorageError, and leaves no half line."""
        with storing(f"the journal {self.path}", f"free space on {self.path.parent}"):
            append_line(self._descriptor, _ENCODER.encode(record) + b"\n", lasting=sync)

    def keep_open(self) -> None:
        """Something could not be put back: `close` leaves the journal to the next root call."""
        self._kept_open = True

    def close(self, reason: str = "put back") -> None:
        try:
            if not self._kept_open:
                self.append(JournalClosed(reason))
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Let go of the file without closing the journal: the next root call recovers from it."""
        os.close(self._descriptor)
        self._descriptor = -1


def _own_folder(folder: Path) -> None:
    if not folder.exists():
        folder.mkdir(parents=True)
        folder.chmod(0o755)  # whatever the caller's umask: other accounts see by it that root's run is under way
    status = folder.stat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise UserError(
            f"{folder} can be written by others: a journal there cannot be trusted",
            hint=f"chown root: {folder} && chmod 755 {folder}",
        )


def ledger_of(data: bytes, path: Path) -> Ledger:
    """Return the state from a journal's bytes; `path` is its name. Raises UserError."""
    ledger = Ledger()
    # A torn last line announces a change that was never made.
    *lines, _torn = data.split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            ledger.add(reading.decoded(_DECODER, line))
        except (reading.UnreadableError, KeyError) as error:
            raise UserError(
                f"{path}, line {number}: not a record of this version ({error})",
                hint=f"compare your page settings with what you want, then: rm {path}",
            ) from None
    return ledger


def recover(host: Host, path: Path = JOURNAL) -> Recovery:
    """Put back what a dead run left, end its processes and close its journal, under the host's lock. Raises
    LockedError, UserError, SettingError with all that could not be put back.
    """
    try:
        ledger = ledger_of(path.read_bytes(), path)
    except (FileNotFoundError, NotADirectoryError):
        return Recovery(note="no run is left to be put back")
    except PermissionError as error:
        raise UserError(
            f"only root can tell whether a killed run left this host's page settings turned: {path} cannot be read",
            hint="sudo hugewise restore",
        ) from error
    owner = ledger.owner
    if owner is None or ledger.closed:
        return Recovery(note="no run is left to be put back")
    if owner.boot_id != boot_id(host):
        if host.privileged():
            _check_trust(path, ledger)
            replay = _Replay(host, path, ledger)
            replay.scratch()  # folders on a disk survive a reboot
            replay.end("the machine was rebooted", owner.run)
        return Recovery(run=owner.run, note="the machine was rebooted since: nothing to put back")
    if start_time(host, owner.pid) == owner.pid_start:
        raise locked(host, owner.pid)
    if not host.privileged():
        raise UserError(
            f"a run was killed and left this host's page settings turned ({path})", hint="sudo hugewise restore"
        )
    _check_trust(path, ledger)
    replay = _Replay(host, path, ledger)
    replay.all()
    put_back = replay.end("recovered", owner.run)
    return Recovery(run=owner.run, put_back=put_back, left=tuple(replay.left), killed=replay.killed)


def _check_trust(path: Path, ledger: Ledger) -> None:
    # judged by the names alone: others may have made the files, to keep the host from being restored
    status = path.stat()
    foreign = [name for name in (*ledger.turned, *ledger.beside, *ledger.pools) if not knob.is_knob(name)]
    foreign += [name for made in ledger.folders for name in made.paths if not cgroup.is_own(name)]
    foreign += [name for name in ledger.scratch if not scratch.is_named(name)]
    foreign += [name for name in ledger.mounts if not memory_state.is_own(name)]
    foreign += [name for name in ledger.links if not network.is_own(name)]
    foreign += [name for name in ledger.swaps if not memory_state.is_named(name)]
    if status.st_uid != os.geteuid() or status.st_mode & 0o022 or foreign:
        what = f"it names {foreign[0]}" if foreign else "others can write it"
        raise UserError(f"{path} cannot be trusted: {what}", hint=f"look at it, then remove it: rm {path}")


class _Replay:
    # What belongs to the whole host comes first, and last what a workload had in its hands; what fails is kept, and the
    # next is done.

    def __init__(self, host: Host, path: Path, ledger: Ledger) -> None:
        self.host, self.ledger = host, ledger
        self.put_back: dict[str, str | int] = {}
        self.left: list[Drift] = []
        self.killed = 0
        self.failed: list[HugewiseError] = []
        self.journal: Journal | None = None
        self._do(self._reopen, path)

    def _do(self, undo: Callable[..., object], *of: object) -> None:
        try:
            undo(*of)
        except HugewiseError as error:
            self.failed.append(error)
        except (OSError, ValueError) as error:  # ValueError: a file of the kernel's that says something unknown
            self.failed.append(SettingError(str(error)))

    def all(self) -> None:
        ledger = self.ledger
        for fragmenter in ledger.fragmenters:  # mostly the kernel was here before: they end with the run
            self._do(memory_state.end, self.host, fragmenter)
        self._do(self._knobs)
        self._do(self._pools)
        for made in ledger.folders:
            self._do(self._kill, made)
        for mount in ledger.mounts:  # a file in it would keep its pages
            self._do(memory_state.unmount, mount)
        for path in ledger.swaps:  # swapped pages belong to processes that have been killed
            self._do(self._unswap, path)
        self._do(self._in_use)
        for name in reversed(ledger.links):
            self._do(network.remove, name)
        self.scratch()
        if ledger.drained is not None and memory_state.put_back(self.host, ledger.drained):
            self.put_back[memory_state.FRACTION] = ledger.drained
        if ledger.fragmenters:  # allocations of other programs lie scattered
            memory_state.compact(self.host)
            self.put_back[memory_state.COMPACT] = "1"

    def scratch(self) -> None:
        for path in self.ledger.swaps:
            self._do(memory_state.remove, path)
        for folder in self.ledger.scratch:
            if scratch.is_own(folder):
                self._do(scratch.discard, folder)

    def end(self, reason: str, run: str) -> tuple[str, ...]:
        if self.journal is not None:
            if self.failed:
                self.journal.keep_open()
            self._do(self.journal.close, reason)
        back = tuple(f"{name} = {value}" for name, value in self.put_back.items())
        if self.failed:
            lines = [f"put back {each}" for each in back] + [error.message for error in self.failed]
            hint = next((error.hint for error in self.failed if error.hint is not None), None)
            raise SettingError("\n  ".join([f"run {run} is not wholly put back:", *lines]), hint=hint)
        return back

    def _reopen(self, path: Path) -> None:
        self.journal = Journal.reopen(path)

    def _knobs(self) -> None:
        back, left = knob.put_back(self.host, self.ledger.turned, self.ledger.beside)
        self.put_back |= back
        self.left += left

    def _pools(self) -> None:
        back, left = pool.give_back(self.host, self.ledger, self._note)
        self.put_back = {**back, **self.put_back}
        self.left = [*left, *self.left]

    def _in_use(self) -> None:
        self.left += pool.in_use_still(self.host, self.ledger)

    def _unswap(self, path: str) -> None:
        if memory_state.in_use(path):
            memory_state.remove(path)
            self.put_back[path] = "removed"

    def _kill(self, made: FoldersMade) -> None:
        self.killed += cgroup.clear(made)

    def _note(self, record: JournalRecord) -> None:
        with suppress(StorageError):  # a full disk must not keep the host from being put back
            if self.journal is not None:
                self.journal.append(record)
        self.ledger.add(record)


class RestoredView:
    """A `Host` whose knobs read as they will when they are put back. What others turned since reads as it is.

    turned   path -> the value that is put back, and the values there that are a run's own (`ledger.Ledger`)
    """

    def __init__(self, host: Host, turned: Mapping[str, tuple[str, tuple[str, ...]]]) -> None:
        self.name = host.name
        self.turned = turned
        self._host = host

    def privileged(self) -> bool:
        return self._host.privileged()

    def read(self, path: str) -> str:
        """Read a file; for a knob that a run has changed, the value that will be restored."""
        text = self._host.read(path)
        original, ours = self.turned.get(path, ("", ()))
        if not ours or knob.read(self._host, path) not in ours:
            return text
        if "[" not in text:
            return original
        words = text.replace("[", "").replace("]", "")
        return re.sub(rf"(?<!\S){re.escape(original)}(?!\S)", f"[{original}]", words, count=1)

    def write(self, path: str, text: str) -> None:
        """Nothing that only plans writes. Raises PermissionError."""
        raise PermissionError(f"{path}: a plan turns nothing")

    def writable(self, path: str) -> bool:
        return self._host.writable(path)

    def names(self, path: str) -> list[str]:
        return self._host.names(path)


def at_rest(host: Host, path: Path | None = None) -> Host:
    """Return `host` as it is when the run whose journal is open has put everything back."""
    path = path or JOURNAL
    try:
        ledger = ledger_of(path.read_bytes(), path)
    except (OSError, UserError):
        return host
    owner = ledger.owner
    if owner is None or ledger.closed or owner.boot_id != boot_id(host) or not ledger.turned:
        return host
    return RestoredView(host, ledger.turned)


def restore(host: Host | None = None, path: Path = JOURNAL) -> list[str]:
    """Put back what a killed run left (`hugewise restore`). Raises LockedError while a run holds the host."""
    host = host or LocalHost()
    with HostLock(host, anyway=True):
        return close(host, path) or [_nothing(host, path)]


def _nothing(host: Host, path: Path) -> str:
    # an ordinary user is told the basis: root's journal alone, as seen from here
    if host.privileged():
        return "nothing to restore"
    if path.exists():
        return (
            f"nothing to restore: by root's journal ({path}) no run of root's left settings turned; no other turns any"
        )
    return (
        f"nothing to restore that a user can see: here is no journal of root's runs ({path}), and no other turns"
        " settings; a run of root's in a container has its journal there"
    )


def close(host: Host, path: Path = JOURNAL) -> list[str]:
    """Close the journal of a dead run: what was put back, and what was left to others. Raises UserError for a user."""
    recovery = recover(host, path)
    if recovery.run is None:
        return []
    if recovery.note:
        return [f"run {recovery.run}: {recovery.note}"]
    lines = [f"put back what the killed run {recovery.run} left"]
    lines += [f"  {each}" for each in recovery.put_back]
    lines += [f"  {drift.left_alone()}" for drift in recovery.left]
    if recovery.killed:
        lines.append(f"  ended {recovery.killed} of its processes")
    return lines
