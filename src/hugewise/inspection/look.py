"""Look at a process that runs: its mappings, what backs them, and how it was begun.

Nothing of the process is changed or stopped. What the kernel does not let the caller read is None, with the reason.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from hugewise import processes
from hugewise.errors import ProbeError
from hugewise.host.local_host import LocalHost
from hugewise.inspection.allocator import Allocator, ProgramFile, allocator, read_program
from hugewise.machine import probe, proc
from hugewise.machine.proc import PATIENCE_S, Patience, StuckError
from hugewise.machine.smaps import BackedMapping, backed_mappings
from hugewise.model.procedure import Named

_WANTED = ("GLIBC_TUNABLES", "MALLOC_CONF", "PYTHONMALLOC", "LD_PRELOAD")
_MOST = 1 << 20  # bytes of environment, of a command line, of a status
_MOST_BLOCKS = 64 << 30  # bytes of addresses that are looked at page by page
_PAGES = 1 << 17  # entries at a time
_PRESENT = 62  # the lowest of the two bits that say that a page is in memory or in swap
_PLAIN = re.compile(r"[\w./][\w./+-]{0,100}")
_MOST_MAPPINGS = 1 << 20  # of all processes together: some 500 bytes each
_TRIES = 4  # to look at a process that becomes other programs
_SCANS = 5  # for a process that maps and unmaps meanwhile
_MOST_RANGES = 8192  # in one call of the probe: 256 GiB of scattered mappings


class GoneError(Exception):
    """The process has ended, or has no memory of its own."""


class DeniedError(Exception):
    """The kernel does not let the caller look into the process. `hint`: what helps, where that is no other account."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """Snapshot of a process.

    coverage      bytes by `kind:page size`, of all its memory or of what was named (`hugewise.machine.probe`)
    thp_disabled  whether it has no transparent huge pages at all (prctl); None: the kernel does not say
    command       its program and first word, where that is no option
    environment   those of its variables that are about memory, as it was begun; None: not to be read, or overwritten
    """

    pid: int
    command: str
    uid: int
    coverage: Mapping[str, int]
    mappings: list[BackedMapping]
    thp_disabled: bool | None
    environment: Mapping[str, str] | None
    allocator: Allocator


class Looker:
    """Looks at processes; the file of a program that several of them run is read once.

    source    how page sizes are looked up
    named     which of their memory is meant
    scanned   whether the probe is to look at page sizes too (`Look.coverage`)
    patience  how long is waited for what a process keeps from being read
    """

    def __init__(self, source: probe.Source, named: Named = "all", *, scanned: bool = True) -> None:
        self.source, self.named, self.scanned, self.patience = source, named, scanned, Patience(PATIENCE_S)
        self._left = _MOST_MAPPINGS
        self._programs: dict[tuple[int, int, int], ProgramFile] = {}

    def look(self, pid: int) -> Look:
        """Look at a process, all of it at the same program. Raises GoneError, DeniedError, ProbeError."""
        for _ in range(_TRIES):
            before = identity(pid)
            try:
                found = self._look(pid)
            except StuckError as error:
                raise DeniedError(str(error), "end who holds it, or whom it waits for, and ask again") from None
            if identity(pid) == before:
                self._left -= len(found.mappings)
                return found
        raise GoneError("it has become another program each time while it was looked at")

    def _look(self, pid: int) -> Look:
        alive = proc.living(LocalHost(), pid)
        if alive is None:
            raise GoneError("it has ended")
        folder = Path(f"/proc/{alive}")
        status = _status(folder)
        mappings: list[BackedMapping] = []
        names: set[str] = set()
        try:
            for each in _mappings(folder, self.patience):
                names.add(each.name)
                if each.resident or each.pool or each.swapped:
                    mappings.append(each)
                if max(len(mappings), len(names)) > self._left:
                    raise DeniedError("it has too many mappings, with those that were looked at already")
        except PermissionError:
            raise DeniedError(_who(status)) from None
        if not names:
            raise GoneError("it has no memory of its own: it has ended, or is a thread of the kernel")
        environment = self.patience.of(lambda: _environment(folder))
        ranges = self.patience.of(lambda: _ranges(folder, self.named))
        found = Look(
            pid=pid,
            command=self.patience.of(lambda: _command(folder)) or status.get("Name", "").strip(),
            uid=_uid(status),
            coverage=coverage(alive, self.source, ranges) if self.scanned else {},
            mappings=[mapping for mapping in mappings if ranges is None or _meets(mapping, ranges)],
            thp_disabled=None if "THP_enabled" not in status else status["THP_enabled"].strip() == "0",
            environment=environment,
            allocator=allocator(
                self.patience.of(lambda: self._program(folder)), names, environment or {}, secure=_secure(folder)
            ),
        )
        _status(folder)  # fails where the process has ended meanwhile
        return found

    def _program(self, folder: Path) -> ProgramFile | None:
        # the kernel keeps the file of the program as it is while it runs
        path = folder / "exe"
        try:
            its = path.stat()
            identity = (its.st_dev, its.st_ino, its.st_mtime_ns)
            if identity not in self._programs:
                with path.open("rb", buffering=0) as file:
                    self._programs[identity] = read_program(file)
        except OSError:
            return None
        return self._programs[identity]


def whole_blocks(pid: int, mappings: list[BackedMapping], size: int, base: int) -> int | None:
    """Return bytes in aligned blocks of `size` that are touched throughout; None where that cannot be read."""
    if sum(mapping.room(size) for mapping in mappings) > _MOST_BLOCKS:
        return None
    try:
        return Patience().of(lambda: _whole_blocks(pid, mappings, size, base))
    except (OSError, StuckError):
        return None


def _whole_blocks(pid: int, mappings: list[BackedMapping], size: int, base: int) -> int:
    import numpy as np  # noqa: PLC0415  (slow to load, and seldom needed)

    each_block, found = size // base, 0
    step = max(1, _PAGES // each_block) * each_block
    with Path(f"/proc/{proc.living(LocalHost(), pid) or pid}/pagemap").open("rb", buffering=0) as pagemap:
        for mapping in mappings:
            first = -(-mapping.start // size) * each_block
            last = first + mapping.room(size) // base
            for page in range(first, last, step):
                pagemap.seek(page * 8)
                read = pagemap.read(8 * min(step, last - page))
                entries = np.frombuffer(read[: len(read) // (8 * each_block) * 8 * each_block], dtype="<u8")
                found += int(((entries >> _PRESENT) != 0).reshape(-1, each_block).all(axis=1).sum()) * size
    return found


def identity(pid: int) -> tuple[int | None, bytes]:
    """Return the start of a process (ticks since the boot; None when it is gone) and its auxiliary vector: together
    they are others when the number was given to another process, or when this one has become another program.
    """
    stat = processes.stat(Path(f"/proc/{pid}"))
    return None if stat is None else stat.starttime, _bytes(Path(f"/proc/{pid}/auxv"))


def _status(folder: Path) -> dict[str, str]:
    try:
        text = (folder / "status").read_bytes().decode("utf-8", "replace")
    except OSError:
        raise GoneError("it has ended") from None
    status = proc.fields(text)
    if status.get("State", "").strip()[:1] in ("Z", "X"):
        raise GoneError("it has ended")
    return status


def _uid(status: Mapping[str, str]) -> int:
    words = status.get("Uid", "").split()
    return int(words[0]) if words and re.fullmatch(r"[0-9]{1,10}", words[0]) else -1


def _who(status: Mapping[str, str]) -> str:
    """Return why the process cannot be read further, and the cure."""
    reason = f"it belongs to the account {_uid(status)}"
    if os.geteuid() == 0:
        reason = "the kernel keeps it from root here (a container without CAP_SYS_PTRACE, or a security module)"
    elif _uid(status) == os.getuid():
        reason = "the kernel keeps it from its own account (it is not dumpable, or has more rights)"
    off = {"0": "has none", "1": "may have them, by the rules"}.get(status.get("THP_enabled", "").strip(), "not known")
    pool = status.get("HugetlbPages", "not known").strip()
    return f"{reason}; what everybody may know: transparent huge pages: {off}; pages of pools: {pool}"


def _mappings(folder: Path, patience: Patience) -> Iterator[BackedMapping]:
    try:
        yield from backed_mappings(patience.lines(folder / "smaps"))
    except PermissionError:
        raise
    except OSError:
        raise GoneError("it has ended") from None


def _command(folder: Path) -> str:
    # what follows the first plain word, and options, may be secrets
    name, _, rest = _bytes(folder / "cmdline").decode("utf-8", "replace").partition("\0")
    first = rest.partition("\0")[0]
    return (f"{name} {first}" if _PLAIN.fullmatch(first) else name)[:200]


def _bytes(path: Path) -> bytes:
    """Return the beginning of a file; empty where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(_MOST)
    except OSError:
        return b""


def _environment(folder: Path) -> Mapping[str, str] | None:
    # no other variable is kept: it may hold secrets; a program can write its title over them
    raw = _bytes(folder / "environ")
    if b"=" not in raw:
        return None
    return {name: value for name, value in proc.variables(raw) if name in _WANTED}


def _secure(folder: Path) -> bool | None:
    vector = proc.auxiliary(_bytes(folder / "auxv"))
    return bool(vector[proc.AT_SECURE]) if proc.AT_SECURE in vector else None


def _ranges(folder: Path, named: Named) -> list[tuple[int, int]] | None:
    if named == "all":
        return None
    return proc.named_ranges(_bytes_of_maps(folder), named)


def _bytes_of_maps(folder: Path) -> str:
    try:
        return proc.kernel_text(folder / "maps")
    except OSError:
        raise GoneError("it has ended") from None


def _meets(mapping: BackedMapping, ranges: list[tuple[int, int]]) -> bool:
    return any(start < mapping.end and mapping.start < end for start, end in ranges)


def coverage(pid: int, source: probe.Source, ranges: list[tuple[int, int]] | None) -> Mapping[str, int]:
    """Return the coverage that the probe's scan finds in these ranges (None: all). Raises GoneError, ProbeError."""
    if ranges is not None and not ranges:
        return {}
    words = [word for start, end in (ranges or ())[:_MOST_RANGES] for word in ("--range", f"{start:x}-{end:x}")]
    for left in reversed(range(_SCANS)):
        try:
            event = probe.ask("scan", "--pid", str(pid), "--source", source, *words)
        except ProbeError:
            _status(Path(f"/proc/{pid}"))
            if not left:
                raise
        else:
            assert isinstance(event, probe.Coverage)
            return event.bytes
    raise AssertionError
