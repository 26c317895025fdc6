"""Allocator of a program, and whether glibc's tunables reach it.

glibc reads GLIBC_TUNABLES in static programs too (measured with 2.36: a static program takes hugetlb=2): what counts
is whether glibc's malloc is in it, which the name of the tunable in its file shows.

Sources: elf(5); the glibc manual, Memory Allocation Tunables and "Tunables" (AT_SECURE); jemalloc(3); the Go source,
debug/buildinfo.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from hugewise import reading
from hugewise.host.local_host import account
from hugewise.machine.loader import UntoldError, executed, gains, interpreter, needed_libraries

NEEDLES = {
    "tunable": b"glibc.malloc.hugetlb",
    "go": b"\xff Go buildinf:",
    "jemalloc": b"<jemalloc>: ",
    "jemalloc of redis": b"JE_MALLOC_CONF",
    "jemalloc of Rust": b"_RJEM_MALLOC_CONF",
    "tcmalloc": b"TCMALLOC_SAMPLE_PARAMETER",
    "mimalloc": b"mimalloc: ",
}
"""Byte strings in a program's file that show its allocator."""

_MOST = 256 << 20  # bytes of a program's file
_MOST_FILE_BYTES = 64 << 20  # bytes of its file that are looked at
_JVM = ("lib/server/libjvm.so", "jre/lib/amd64/server/libjvm.so")
"""Places of the JVM beside the folder of its launcher `java` (JDK 9 and later; JDK 8)."""
_PIECE = 4 << 20
_OVERLAP = 64
_OF_LIBRARY = {
    "jemalloc": re.compile(r"libjemalloc"),
    "tcmalloc": re.compile(r"libtcmalloc"),
    "mimalloc": re.compile(r"libmimalloc"),
    "the JVM": re.compile(r"libjvm\.so"),
}
_OLD_GLIBC = re.compile(r"libc-2\.([0-9]{1,2})\.so")
_PYTHON = re.compile(r"(?:libpython3|/python3)[0-9.]*")


BY_CLOCK = ("Go", "jemalloc", "jemalloc of redis", "jemalloc of Rust", "mimalloc", "the JVM")
"""Allocators that give memory back by the clock (Go's scavenger, jemalloc's decay, mimalloc, G1), which goes on while
their program is frozen.
"""


class ProgramFile(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of a program's file: whether it is ELF, its interpreter (None: static), and the byte strings found."""

    elf: bool = False
    interpreter: str | None = None
    holds: frozenset[str] = frozenset()


class Allocator(msgspec.Struct, frozen=True, kw_only=True):
    """Allocator of a program, in words; whether glibc's tunables reach it (None: not known), and why not."""

    name: str
    tuned: bool | None
    why: str = ""


def read_program(file: BinaryIO) -> ProgramFile:
    """Read a program's file, at most its first 256 MiB; never raises for what stands in it. Raises OSError."""
    holds: set[str] = set()
    head = tail = b""
    left = _MOST
    while left > 0 and (piece := file.read(min(_PIECE, left))):
        left -= len(piece)
        head = head or piece
        looked = tail + piece
        holds |= {name for name, needle in NEEDLES.items() if name not in holds and needle in looked}
        tail = looked[-_OVERLAP:]
    if not head.startswith(b"\x7fELF"):
        return ProgramFile(holds=frozenset(holds))
    return ProgramFile(elf=True, interpreter=interpreter(io.BytesIO(head)), holds=frozenset(holds))


def tunable(environment: Mapping[str, str]) -> int | None:
    """Return the value of glibc.malloc.hugetlb in GLIBC_TUNABLES (0, 1, 2 or bytes of a page), or None."""
    chosen = None
    for word in environment.get("GLIBC_TUNABLES", "").split(":"):
        name, _, value = word.partition("=")
        if name == "glibc.malloc.hugetlb" and re.fullmatch(r"[0-9]{1,18}|0x[0-9a-fA-F]{1,15}", value):
            chosen = int(value, 16 if value.startswith("0x") else 10)
    return chosen


def allocator(
    file: ProgramFile | None, mapped: Iterable[str], environment: Mapping[str, str], *, secure: bool | None
) -> Allocator:
    """Return the allocator, from the program's file (None: it could not be read), the names of its mappings, its
    variables, and whether it was begun with another's rights (AT_SECURE; None: not known).
    """
    names = sorted({name for name in mapped if name.startswith("/")})
    preloaded = re.split(r"[ :]", environment.get("LD_PRELOAD", ""))
    if not secure and any(each.rpartition("/")[2] == "libc.so.6" for each in preloaded):
        return Allocator(name="glibc (preloaded)", tuned=True)
    for called, pattern in _OF_LIBRARY.items():
        if any(pattern.search(name.rpartition("/")[2]) for name in names):
            return Allocator(name=called, tuned=False, why=f"it has {called}, which glibc's tunables do not reach")
    holds = file.holds if file is not None else frozenset()
    if "go" in holds:
        return Allocator(name="Go", tuned=False, why="it is a Go program: its runtime maps its memory itself")
    for called in ("jemalloc of Rust", "jemalloc of redis", "jemalloc", "tcmalloc", "mimalloc"):
        if called in holds:
            return Allocator(name=called, tuned=False, why=f"{called} is built into it, which no tunable reaches")
    if secure:
        return Allocator(
            name="glibc",
            tuned=False,
            why="it was begun with another account's rights (setuid), for which glibc ignores it",
        )
    return _glibc(file, names, environment)


def _glibc(file: ProgramFile | None, names: list[str], environment: Mapping[str, str]) -> Allocator:
    old = next((found for name in names if (found := _OLD_GLIBC.search(name))), None)
    if old is not None:
        return Allocator(
            name=f"glibc 2.{old[1]}", tuned=False, why="its glibc is older than 2.35, which has the tunable"
        )
    if any("ld-musl" in name or "libc.musl" in name for name in names):
        return Allocator(name="musl", tuned=False, why="its C library is musl, which has no tunables")
    if any(_PYTHON.search(name.rpartition("/")[2] if "libpython" in name else name) for name in names):
        if environment.get("PYTHONMALLOC", "").startswith("malloc"):
            return Allocator(name="CPython (malloc)", tuned=True)
        why = "CPython maps the arenas of small objects itself; the tunable reaches the rest (PYTHONMALLOC=malloc: all)"
        return Allocator(name="CPython", tuned=True, why=why)
    if any(name.rpartition("/")[2] == "libc.so.6" for name in names):
        return Allocator(name="glibc", tuned=True)
    if file is not None and file.elf and file.interpreter is None:
        if "tunable" in file.holds:
            return Allocator(name="glibc (static)", tuned=True)
        return Allocator(
            name="its own (static)", tuned=False, why="it is static, and has no glibc that knows the tunable"
        )
    return Allocator(name="not known", tuned=None)


_OLD = Allocator(name="glibc", tuned=False, why="its glibc is older than 2.35, which has the tunable")


def allocator_of(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Allocator | None:
    """Return the allocator of what a command executes in the end, through scripts and wrappers; None where nobody can
    tell.

    `environment` is what the command is started with (None: what this process has): a library that it preloads comes
    before the program's own.
    """
    try:
        found = executed(command, os.environ if environment is None else environment)
        data = reading.content(Path(found.path), _MOST_FILE_BYTES, part="head")
        secure = _gains(found.path)
    except (OSError, UntoldError, reading.UnreadableError):
        return None
    preloaded = [] if secure else found.environment.get("LD_PRELOAD", "").replace(":", " ").split()
    names = [os.path.realpath(found.path), *(f"/lib/{name}" for name in needed_libraries(data))]
    names += [name if name.startswith("/") else f"/lib/{name}" for name in preloaded]
    names += [str(Path(names[0]).parent.parent / place) for place in _JVM if _launches_jvm(names[0], place)]
    file = read_program(io.BytesIO(data))
    seen = allocator(file, names, found.environment, secure=secure)
    return _OLD if seen.name == "glibc" and seen.tuned and _untunable(file.interpreter) else seen


def _launches_jvm(path: str, place: str) -> bool:
    # the launcher opens its JVM by itself: the loader does not see it among the libraries that the file needs
    return Path(path).name == "java" and (Path(path).parent.parent / place).is_file()


def _untunable(interpreter: str | None) -> bool:
    """Return whether the loader of a program of glibc lacks the tunable: the list of tunables is the loader's."""
    try:
        data = reading.content(Path(interpreter or "/nowhere"), _MOST_FILE_BYTES, part="head")
    except (OSError, reading.UnreadableError):
        return False
    return "tunable" not in read_program(io.BytesIO(data)).holds


def _gains(path: str) -> bool:
    """Return whether the program gains privileges by its file: then its loader ignores its caller.

    A program that hugewise starts under another account cannot gain any (PR_SET_NO_NEW_PRIVS).
    """
    privileged = os.geteuid() == 0
    if privileged and account(None, "caller", privileged=True) is not None:
        return False
    return gains(path, (os.getuid(), os.getgid())) is not None
