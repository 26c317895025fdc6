"""By what a program is started: what a command executes in the end, and whether the dynamic loader of glibc loads a
library into it that LD_PRELOAD names.

It reads files, and starts nothing. Scripts are what their interpreters are, and `env`, `nice`, `sh -c` and their like
are the program that they become. The launcher (`probe/exec`) asks the same of what it is about to start; here it is
known while a run is planned.

Sources: elf(5); ld.so(8) and getauxval(3) on secure-execution mode; cap_bprm_creds_from_file of the Linux kernel;
fs/binfmt_script.c of the Linux kernel; env(1) and the other programs' own pages.
"""

from __future__ import annotations

import os
import shlex
import stat
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

from hugewise import reading
from hugewise.machine import programs, shell
from hugewise.machine.elf import MAGIC

__all__ = ["Executed", "Started", "UntoldError", "executed", "gains", "interpreter", "started", "unpreloaded"]

Started = Literal["glibc", "musl", "other loader", "static", "go", "foreign", "script", "unknown"]

_MACHINES = {"x86_64": 62, "aarch64": 183}
_GLIBC = {"x86_64": b"ld-linux-x86-64.so.2", "aarch64": b"ld-linux-aarch64.so.1"}
_INTERP, _NOTE = 3, 4
_HEADERS = {1: "<HHIIIIIHHH", 2: "<HHIQQQIHHH"}  # by class: type ... phnum, behind e_ident
_ENTRY = 56  # bytes of a program header, in ELF-64
_ENTRY_32 = 32
_MOST_SEGMENTS = 256
_MOST_LINE = 255  # of a script, that the kernel looks at
_DEEPEST = 5  # interpreters of interpreters, that the kernel follows
_MOST_STEPS = 20  # of wrappers too

_WHY: dict[Started, str] = {
    "musl": "it uses musl, which has not glibc's heap",
    "other loader": "its loader is not glibc's",
    "static": "it is statically linked: no library can be loaded into it",
    "go": "it is written in Go, whose memory does not come from malloc",
    "foreign": "it is of another architecture (or of 32 bits)",
    "unknown": "it is neither a program for this machine nor a script",
}


class _Wrapper(NamedTuple):
    """A program that becomes the one in its arguments: options with a word behind them, words before the program,
    options with which it starts none, and words that may come before its options.
    """

    valued: frozenset[str] = frozenset()
    words: int = 0
    of_others: frozenset[str] = frozenset()
    first: frozenset[str] = frozenset()


_MACHINE_WORDS = frozenset({"x86_64", "i386", "i686", "aarch64", "arm64", "linux64", "linux32", "uname26"})
_WRAPPERS = {
    "nice": _Wrapper(frozenset({"-n", "--adjustment"})),
    "nohup": _Wrapper(),
    "setsid": _Wrapper(),
    "ionice": _Wrapper(
        frozenset({"-c", "--class", "-n", "--classdata"}),
        of_others=frozenset({"-p", "--pid", "-P", "--pgid", "-u", "--uid"}),
    ),
    "chrt": _Wrapper(
        frozenset({"-T", "--sched-runtime", "-P", "--sched-period", "-D", "--sched-deadline"}),
        words=1,
        of_others=frozenset({"-p", "--pid"}),
    ),
    "taskset": _Wrapper(words=1, of_others=frozenset({"-p", "--pid"})),
    "timeout": _Wrapper(frozenset({"-k", "--kill-after", "-s", "--signal"}), words=1),
    "stdbuf": _Wrapper(frozenset({"-i", "--input", "-o", "--output", "-e", "--error"})),
    "time": _Wrapper(frozenset({"-f", "--format", "-o", "--output"})),
    "numactl": _Wrapper(
        frozenset(
            {
                *("-i", "--interleave", "-m", "--membind", "-N", "--cpunodebind", "-C", "--physcpubind"),
                *("-p", "--preferred"),
            }
        )
    ),
    "setpriv": _Wrapper(
        frozenset(
            {
                *("--ambient-caps", "--inh-caps", "--bounding-set", "--ruid", "--euid", "--reuid", "--rgid", "--egid"),
                *("--regid", "--groups", "--securebits", "--selinux-label", "--apparmor-profile", "--pdeathsig"),
            }
        ),
        of_others=frozenset({"-d", "--dump"}),
    ),
    "prlimit": _Wrapper(frozenset({"-o", "--output"}), of_others=frozenset({"-p", "--pid"})),
    "setarch": _Wrapper(first=_MACHINE_WORDS),
    "linux64": _Wrapper(),
    "gosu": _Wrapper(words=1),
    "su-exec": _Wrapper(words=1),
    "cgexec": _Wrapper(frozenset({"-g"})),
    # These stay, and what they start is the program all the same.
    "tini": _Wrapper(frozenset({"-p", "-e"})),
    "dumb-init": _Wrapper(frozenset({"-r", "--rewrite"})),
    "catatonit": _Wrapper(),
    "hugewise-exec": _Wrapper(frozenset({"--pages", "--tunable", "--report"}), of_others=frozenset({"--check"})),
}


class UntoldError(Exception):
    """What a command executes cannot be told, for the reason that this says. `unknown`: only nobody here can tell."""

    def __init__(self, reason: str, *, unknown: bool = False) -> None:
        super().__init__(reason)
        self.unknown = unknown


class Executed(NamedTuple):
    """What a command executes in the end: the path of its program, through what, and variables that it is given."""

    path: str
    through: tuple[str, ...]
    environment: Mapping[str, str]


def executed(command: Sequence[str], environment: Mapping[str, str]) -> Executed:
    """Follow a command, which is not empty, through scripts and wrappers; `environment` is what it is started with.

    Raises UntoldError where a wrapper has options that are not known here, nothing can be read, or there is no end.
    """
    words, given, through, scripts = list(command), dict(environment), list[str](), 0
    for _ in range(_MOST_STEPS):
        path = _path(words[0])
        line = _script(path)
        if line is None:
            wrapped = _unwrapped(path, words, given)
            if wrapped is None:
                return Executed(path, tuple(through), given)
        else:
            scripts += 1
            if scripts > _DEEPEST:
                raise UntoldError(f"{path}: too many interpreters of interpreters")
            interpreter, _, option = line.partition(b" ")
            if not interpreter:
                raise UntoldError(f"{path}: it names no interpreter")
            # The kernel gives what stands behind the interpreter as one word.
            more = [os.fsdecode(option.strip())] if option.strip() else []
            wrapped = [os.fsdecode(interpreter), *more, path, *words[1:]]
        through.append(words[0])
        words = wrapped
    raise UntoldError(f"{command[0]}: too many interpreters of interpreters")


def _path(name: str) -> str:
    if "/" in name:
        return name
    found = programs.which(name)
    if found is None:
        raise UntoldError(f"{name}: no such program on PATH")
    return found


def _script(path: str) -> bytes | None:
    """The first line of a script behind its `#!`; None of what is no script. Raises UntoldError."""
    try:
        with reading.opened(Path(path).resolve(strict=True)) as file:
            line = _at(file, 0, _MOST_LINE).split(b"\n")[0]
    except (OSError, RuntimeError, ValueError, reading.UnreadableError) as error:
        raise UntoldError(f"{path}: it cannot be read ({error})") from None
    return line[2:].strip().replace(b"\t", b" ") if line.startswith(b"#!") else None


def _unwrapped(path: str, words: list[str], given: dict[str, str]) -> list[str] | None:
    """The command behind a wrapper, whose variables `given` gets; None of what is none. Raises UntoldError."""
    name, rest = Path(words[0]).name, words[1:]
    if name in shell.SHELLS or Path(path).name in shell.SHELLS:
        return _behind_shell(words, given)
    if name not in {"env", *_WRAPPERS}:
        return None
    rest = _behind_env(rest, given) if name == "env" else _behind(name, rest)
    if not rest:
        raise UntoldError(f"{name}: it names no program")
    return rest


def _behind_shell(words: list[str], given: dict[str, str]) -> list[str] | None:
    """The program of `sh -c TEXT`; None where nobody can tell: then it is the shell itself."""
    text = shell.text_of(words)
    found = None if text is None else shell.begun_by(text)
    if found is None or (found.moved and not found.words[0].startswith("/") and "/" in found.words[0]):
        return None
    if "/" not in found.words[0] and programs.which(found.words[0]) is None:
        return None  # a builtin, or a function of its own
    given.update(found.given)
    return list(found.words)


def _behind(name: str, rest: list[str]) -> list[str]:
    wrapper = _WRAPPERS[name]
    rest = rest[1:] if rest and rest[0] in wrapper.first else rest
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        if word in wrapper.of_others or (word[1] != "-" and any(f"-{each}" in wrapper.of_others for each in word)):
            raise UntoldError(f"{name} {word}: it starts no program")
        if word in wrapper.valued:
            rest = rest[1:]
    return rest[wrapper.words :]


def _behind_env(rest: list[str], given: dict[str, str]) -> list[str]:
    rest = list(rest)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "--":
            break
        if word in ("-", "-i", "--ignore-environment"):
            given.clear()
        elif word in ("-v", "--debug"):
            pass
        elif word.startswith(("-S", "--split-string")) or word.startswith("-vS"):
            text = word.partition("S")[2] if word[1] != "-" else word.partition("=")[2]
            if not text:
                text = rest.pop(0) if rest else ""
            with suppress(ValueError):
                rest = [*shlex.split(text), *rest]
                continue
            raise UntoldError(f"env {word}: its quotes do not match")
        elif word.startswith(("-u", "--unset")):
            named = word.partition("=")[2] if word[1] == "-" else word[2:]
            if not named and rest:
                named = rest.pop(0)
            given.pop(named, None)
        elif word in ("-C", "--chdir"):
            rest = rest[1:]
        elif not word.startswith("--chdir="):
            raise UntoldError(f"env {word}: an option that is not known here", unknown=True)
    while rest and "=" in rest[0]:
        variable, _, value = rest.pop(0).partition("=")
        given[variable] = value
    return rest


def gains(path: str, account: tuple[int, int] | None = None) -> str | None:
    """What rights a program gets by its file: setuid, setgid or capabilities; None where it gets none.

    `account`: the user and group that it is started as; None: any other. Raises OSError.
    """
    found = os.stat(path)  # noqa: PTH116  (as links lead)
    if account is not None and os.statvfs(path).f_flag & os.ST_NOSUID:
        return None
    user, group = (None, None) if account is None else account
    if found.st_mode & stat.S_ISUID and found.st_uid != user:
        return "setuid"
    if found.st_mode & stat.S_ISGID and found.st_mode & stat.S_IXGRP and found.st_gid != group:
        return "setgid"
    if user != 0 and "security.capability" in os.listxattr(path):  # root has them
        return "capabilities"
    return None


def unpreloaded(command: Sequence[str]) -> str | None:
    """Why a preloaded library would not reach what the command executes, in words that name the file; None if it would.

    What cannot be read is not reached, as far as anybody can tell; whatever a wrapper with unknown options becomes, may
    be.
    """
    try:
        found = executed(command, os.environ)
    except UntoldError as error:
        return None if error.unknown else str(error)
    before = "".join(f"{each}: " for each in found.through if each != found.path)
    try:
        with reading.opened(Path(found.path).resolve(strict=True)) as file:
            kind = started(file)
        if kind != "glibc":
            return f"{before}{found.path}: {_WHY[kind]}"
        gained = gains(found.path)
    except (OSError, RuntimeError, ValueError, reading.UnreadableError) as error:
        return f"{before}{found.path}: it cannot be read ({error})"
    if gained is None:
        return None
    has = "its file has capabilities" if gained == "capabilities" else "it is setuid or setgid"
    return f"{before}{found.path}: {has}, and so its loader loads no library that its caller names"


def started(file: BinaryIO, machine: str | None = None) -> Started:
    """What the file is, for a `machine` as uname says it (None: as programs are looked for). Raises OSError."""
    machine = machine or programs.machine()
    head = _at(file, 0, 64)
    if head.startswith(b"#!"):
        return "script"
    if len(head) < 64 or not head.startswith(MAGIC):
        return "unknown"
    kind, architecture = struct.unpack_from("<HH", head, 16)
    if head[4:6] != b"\x02\x01" or architecture != _MACHINES.get(machine):
        return "foreign"
    size, count = struct.unpack_from("<HH", head, 54)
    if kind not in (2, 3) or size != _ENTRY or not 0 < count <= _MOST_SEGMENTS:
        return "unknown"
    found: Started = "static"
    for segment, offset, length in _segments(file, head):
        if segment == _INTERP:
            name = _at(file, offset, min(length, 256)).split(b"\0")[0].rpartition(b"/")[2]
            glibc = name == _GLIBC.get(machine)
            found = "glibc" if glibc else "musl" if name.startswith(b"ld-musl") else "other loader"
        elif segment == _NOTE and _at(file, offset, 16)[12:] == b"Go\0\0":
            return "go"
    return found


def interpreter(file: BinaryIO) -> str | None:
    """The loader that an ELF file names (PT_INTERP), of 32 or 64 bits; None where it is static, broken, or no ELF file.

    Raises OSError.
    """
    head = _at(file, 0, 64)
    for segment, offset, length in _segments(file, head):
        if segment == _INTERP:
            return _at(file, offset, min(length, 4096)).rstrip(b"\0").decode("utf-8", "replace") or None
    return None


def _segments(file: BinaryIO, head: bytes) -> Iterator[tuple[int, int, int]]:
    """Kind, place in the file and length of each segment of an ELF file of this byte order."""
    form = _HEADERS.get(head[4]) if len(head) >= 64 and head.startswith(MAGIC) and head[5] == 1 else None
    if form is None:
        return
    wide = head[4] == 2
    _, _, _, _, table, _, _, _, each, count = struct.unpack_from(form, head, 16)
    if each != (_ENTRY if wide else _ENTRY_32):
        return
    headers = _at(file, table, min(count, _MOST_SEGMENTS) * each)
    for at in range(0, len(headers) - each + 1, each):
        (segment,) = struct.unpack_from("<I", headers, at)
        if wide:
            (offset,), (length,) = struct.unpack_from("<Q", headers, at + 8), struct.unpack_from("<Q", headers, at + 32)
        else:
            (offset,), (length,) = struct.unpack_from("<I", headers, at + 4), struct.unpack_from("<I", headers, at + 16)
        yield segment, offset, length


def _at(file: BinaryIO, offset: int, length: int) -> bytes:
    """So many bytes, fewer at the end of the file; none at a place that no file has."""
    try:
        file.seek(offset)
    except (OSError, OverflowError, ValueError):
        return b""
    return file.read(length)
