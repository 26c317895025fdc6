"""Program that a command executes in the end, and whether glibc's loader loads a library into it (LD_PRELOAD).

Files are read, and nothing is started. A script counts as its interpreter, and `env`, `nice`, `sh -c` and the like as
the program that they become. The launcher (`probe/exec`) repeats this check before it starts the program; here it is
known while a run is planned. Only plain commands of `sh -c TEXT` are followed, in sequence: the effect of a pipe, a
loop, a function or a word that the shell would expand cannot be known without a shell.

The layout library lays out the heap of an unmodified, dynamically linked program of glibc: docs/concepts/layouts.md.

Sources: elf(5); ld.so(8) and getauxval(3) on secure-execution mode; cap_bprm_creds_from_file and fs/binfmt_script.c of
the Linux kernel; POSIX.1-2017, XCU 2 (Shell Command Language); env(1) and the other programs' own pages.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import stat
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import resources
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import msgspec

from hugewise import files, reading
from hugewise.errors import UserError
from hugewise.machine import programs
from hugewise.model.policy import Treatment

MAGIC = b"\x7fELF"
_LONGEST_NAME, _MOST_NEEDED = 256, 1000  # characters of a library's name, libraries
_LEAST_HEADER = 40  # bytes of a section's header, in ELF-32


class Section(msgspec.Struct, frozen=True):
    """A section: its name, its type as the ABI numbers it, and its contents (of one without any: its size)."""

    name: str
    kind: int
    contents: bytes


def sections(data: bytes) -> list[Section]:
    """Return the sections of an ELF file, in order. Raises ValueError when it is none, or is cut short."""
    if not data.startswith(MAGIC) or len(data) < 52:
        raise ValueError("not an ELF file")
    try:
        return _sections(data)
    except Exception:  # the library has many for a file that is broken
        raise ValueError("an ELF file that is cut short") from None


def _sections(data: bytes) -> list[Section]:
    from elftools.elf import enums  # noqa: PLC0415  (slow to load, and needed for builds alone)
    from elftools.elf.elffile import ELFFile  # noqa: PLC0415

    kinds: dict[str, int] = {}
    for machine in ("ARM", "AARCH64", "AMD64", "MIPS", "RISCV", "BASE"):
        kinds |= getattr(enums, f"ENUM_SH_TYPE_{machine}")
    elf = ELFFile(io.BytesIO(data))
    count, each = elf.num_sections(), elf["e_shentsize"]
    if count and (each < _LEAST_HEADER or elf["e_shoff"] + count * each > len(data)):
        raise ValueError  # otherwise the library would loop over as many sections as the file claims
    elf_sections = []
    for section in elf.iter_sections():
        kind: Any = section["sh_type"]  # by name, except types that the library does not know
        elf_sections.append(Section(section.name, kinds.get(kind, kind), _contents(data, section.header)))
    return elf_sections


def _contents(data: bytes, header: Mapping[str, Any]) -> bytes:
    offset, size = header["sh_offset"], header["sh_size"]
    if header["sh_type"] == "SHT_NOBITS":
        return int.to_bytes(size, 8, "little")
    if offset + size > len(data):
        raise ValueError
    return data[offset : offset + size]


def needed_libraries(data: bytes) -> tuple[str, ...]:
    """Return the libraries in an ELF file's DT_NEEDED; none where it is static, broken or no ELF file."""
    from elftools.elf.dynamic import DynamicSegment  # noqa: PLC0415  (slow to load)
    from elftools.elf.elffile import ELFFile  # noqa: PLC0415

    found: list[str] = []
    try:
        for segment in ELFFile(io.BytesIO(data)).iter_segments("PT_DYNAMIC"):
            assert isinstance(segment, DynamicSegment)
            tags: Iterator[Any] = segment.iter_tags("DT_NEEDED")
            found += [str(tag.needed)[:_LONGEST_NAME] for tag in islice(tags, _MOST_NEEDED)]
    except Exception:  # the library has many for a file that is broken
        return ()
    return tuple(found)


SHELLS = frozenset({"sh", "bash", "dash", "ash", "ksh", "mksh", "zsh", "rbash"})

_LONGEST = 1 << 16  # characters of a text that are looked at
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_MADE = re.compile(r"[$`*?\[~!]")  # in a word: the shell may expand it
_REDIRECTION = re.compile(r"[<>]{1,2}&?|>\||<<<|&>>?")
_PLAIN = frozenset({"set", "ulimit", "umask", "trap", "export", "cd", "echo", "true", ":"})
_WITH_WORD = frozenset({"-o", "+o", "-O", "+O", "--rcfile", "--init-file"})


class StartedProgram(NamedTuple):
    """The words of the program, variables that it is given before them, and whether it has a folder of its own."""

    words: tuple[str, ...]
    given: tuple[tuple[str, str], ...] = ()
    moved: bool = False


def shell_text(words: Sequence[str]) -> str | None:
    """Return the text behind `-c` of the call of a shell; None where it has none."""
    rest, asked = list(words[1:]), False
    while rest and rest[0].startswith(("-", "+")) and rest[0] not in ("-", "--"):
        word = rest.pop(0)
        if word in _WITH_WORD:
            rest = rest[1:]
        asked = asked or (word[0] == "-" and word[:2] != "--" and "c" in word)
    if rest and rest[0] in ("-", "--"):
        rest = rest[1:]
    return rest[0] if asked and rest else None


def program_started(text: str) -> StartedProgram | None:
    """Return the program that the text becomes, or starts last; None where that cannot be told."""
    commands = _commands(text[:_LONGEST]) if len(text) <= _LONGEST else None
    given: list[tuple[str, str]] = []
    moved = False
    for at, command in enumerate(commands or ()):
        variables, words = _split(command)
        if not words:  # assignments of the shell itself, which are not handed on unless exported
            continue
        name, last = words[0], at + 1 == len(commands or ())
        if name == "export":
            given += [(key, value) for key, _, value in (word.partition("=") for word in words[1:]) if value]
        moved = moved or name == "cd"
        if name == "exec" and (program := _executed(words[1:])):
            return _found(program, [*given, *variables], moved=moved)
        if last and name not in (*_PLAIN, "exec"):
            return _found(words, [*given, *variables], moved=moved)
    return None


def _found(words: list[str], given: list[tuple[str, str]], *, moved: bool) -> StartedProgram | None:
    return None if _MADE.search(words[0]) else StartedProgram(tuple(words), tuple(given), moved)


def _executed(words: list[str]) -> list[str]:
    while words and words[0].startswith("-"):
        words = words[2:] if words[0] == "-a" else words[1:]
    return words


def _split(command: list[str]) -> tuple[list[tuple[str, str]], list[str]]:
    at = next((place for place, word in enumerate(command) if _ASSIGNMENT.match(word) is None), len(command))
    parts = (word.partition("=") for word in command[:at])
    return [(key, value) for key, _, value in parts], command[at:]


def _commands(text: str) -> list[list[str]] | None:
    if "`" in text or "$(" in text or "<<" in text:
        return None
    reader = shlex.shlex(text.replace("\n", " ; "), posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    found: list[list[str]] = [[]]
    try:
        tokens = iter(list(reader))
    except ValueError:
        return None
    for token in tokens:
        if token in (";", "&&"):
            found.append([])
        elif _REDIRECTION.fullmatch(token):
            next(tokens, None)
        elif set(token) <= set("|&;()<>") or (not found[-1] and token in _RESERVED):
            return None
        else:
            found[-1].append(token)
    return [command for command in found if command]


_RESERVED = frozenset(
    (
        *("if", "then", "else", "elif", "fi", "for", "while", "until", "do", "done", "case", "esac", "select"),
        *("{", "}", "!", "[[", "function", "time", "eval", ".", "source", "return", "exit"),
    )
)

Started = Literal["glibc", "musl", "other loader", "static", "go", "foreign", "script", "unknown"]

_MACHINES = {"x86_64": 62, "aarch64": 183}
_GLIBC = {"x86_64": b"ld-linux-x86-64.so.2", "aarch64": b"ld-linux-aarch64.so.1"}
_INTERP, _NOTE = 3, 4
_HEADERS = {1: "<HHIIIIIHHH", 2: "<HHIQQQIHHH"}  # by class: type ... phnum, behind e_ident
_ENTRY = 56  # bytes of a program header, in ELF-64
_ENTRY_32 = 32
_MOST_SEGMENTS = 256
_MOST_LINE = 255  # of a script: the kernel's limit
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


class _Wrapper(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    valued: frozenset[str] = frozenset()
    words: int = 0
    of_others: frozenset[str] = frozenset()


_WRAPPERS = msgspec.toml.decode(
    resources.files(__package__).joinpath("wrappers.toml").read_bytes(), type=dict[str, _Wrapper]
)


class UntoldError(Exception):
    """A command whose executable cannot be determined, with the reason. `unknown`: only not here."""

    def __init__(self, reason: str, *, unknown: bool = False) -> None:
        super().__init__(reason)
        self.unknown = unknown


class Executed(NamedTuple):
    """Program that a command executes in the end: its path, the programs that start it, and its variables."""

    path: str
    through: tuple[str, ...]
    environment: Mapping[str, str]


def executed(command: Sequence[str], environment: Mapping[str, str]) -> Executed:
    """Follow a command through scripts and wrappers. Raises UntoldError for unknown options, no file or loops."""
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
            # The kernel passes the text behind the interpreter as one word.
            more = [os.fsdecode(option.strip())] if option.strip() else []
            wrapped = [os.fsdecode(interpreter), *more, path, *words[1:]]
        through.append(words[0])
        words = wrapped
    raise UntoldError(f"{command[0]}: too many interpreters of interpreters")


def _path(name: str) -> str:
    if "/" in name:
        return name
    path = programs.which(name)
    if path is None:
        raise UntoldError(f"{name}: no such program on PATH")
    return path


def _script(path: str) -> bytes | None:
    try:
        with reading.opened(Path(path).resolve(strict=True)) as file:
            line = _at(file, 0, _MOST_LINE).split(b"\n")[0]
    except (OSError, RuntimeError, ValueError, reading.UnreadableError) as error:
        raise UntoldError(f"{path}: it cannot be read ({error})") from None
    return line[2:].strip().replace(b"\t", b" ") if line.startswith(b"#!") else None


def _unwrapped(path: str, words: list[str], given: dict[str, str]) -> list[str] | None:
    name, rest = Path(words[0]).name, words[1:]
    if name in SHELLS or Path(path).name in SHELLS:
        return _behind_shell(words, given)
    if name not in {"env", *_WRAPPERS}:
        return None
    rest = _behind_env(rest, given) if name == "env" else _behind(name, rest)
    if not rest:
        raise UntoldError(f"{name}: it names no program")
    return rest


def _behind_shell(words: list[str], given: dict[str, str]) -> list[str] | None:
    text = shell_text(words)
    program = None if text is None else program_started(text)
    if program is None or (program.moved and not program.words[0].startswith("/") and "/" in program.words[0]):
        return None
    if "/" not in program.words[0] and programs.which(program.words[0]) is None:
        return None  # a builtin, or a function of its own
    given.update(program.given)
    return list(program.words)


def _behind(name: str, rest: list[str]) -> list[str]:
    wrapper = _WRAPPERS[name]
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
    """Return the privileges that a program gets by its file for an `account` (None: any other). Raises OSError."""
    status = os.stat(path)  # noqa: PTH116  (as links lead)
    if account is not None and os.statvfs(path).f_flag & os.ST_NOSUID:
        return None
    user, group = (None, None) if account is None else account
    if status.st_mode & stat.S_ISUID and status.st_uid != user:
        return "setuid"
    if status.st_mode & stat.S_ISGID and status.st_mode & stat.S_IXGRP and status.st_gid != group:
        return "setgid"
    if user != 0 and "security.capability" in os.listxattr(path):  # root has them
        return "capabilities"
    return None


def preload_obstacle(command: Sequence[str]) -> str | None:
    """Return why a preloaded library would not reach the program that the command executes, or None."""
    try:
        program = executed(command, os.environ)
    except UntoldError as error:
        return None if error.unknown else str(error)
    before = "".join(f"{each}: " for each in program.through if each != program.path)
    try:
        with reading.opened(Path(program.path).resolve(strict=True)) as file:
            kind = started(file)
        if kind != "glibc":
            return f"{before}{program.path}: {_WHY[kind]}"
        gained = gains(program.path)
    except (OSError, RuntimeError, ValueError, reading.UnreadableError) as error:
        return f"{before}{program.path}: it cannot be read ({error})"
    if gained is None:
        return None
    has = "its file has capabilities" if gained == "capabilities" else "it is setuid or setgid"
    return f"{before}{program.path}: {has}, and so its loader loads no library that its caller names"


def started(file: BinaryIO, machine: str | None = None) -> Started:
    """Return the kind of the file for a `machine` of uname (None: that of `programs`). Raises OSError."""
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
    loader: Started = "static"
    for segment, offset, length in _segments(file, head):
        if segment == _INTERP:
            name = _at(file, offset, min(length, 256)).split(b"\0")[0].rpartition(b"/")[2]
            glibc = name == _GLIBC.get(machine)
            loader = "glibc" if glibc else "musl" if name.startswith(b"ld-musl") else "other loader"
        elif segment == _NOTE and _at(file, offset, 16)[12:] == b"Go\0\0":
            return "go"
    return loader


def interpreter(file: BinaryIO) -> str | None:
    """Return the loader (PT_INTERP) of an ELF file of 32 or 64 bits, or None. Raises OSError."""
    head = _at(file, 0, 64)
    for segment, offset, length in _segments(file, head):
        if segment == _INTERP:
            return _at(file, offset, min(length, 4096)).rstrip(b"\0").decode("utf-8", "replace") or None
    return None


def _segments(file: BinaryIO, head: bytes) -> Iterator[tuple[int, int, int]]:
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
    # fewer bytes at the end of the file; none at an offset that no file has
    try:
        file.seek(offset)
    except (OSError, OverflowError, ValueError):
        return b""
    return file.read(length)


LAYOUT = "HUGEWISE_LAYOUT"
"""The variable that has the layout's words."""

REPORT = "HUGEWISE_LAYOUT_REPORT"
"""The variable that names a file to which the library appends a line of JSON for each process."""

ELSEWHERE = "HUGEWISE_LAYOUT_ELSEWHERE"
"""The variable under which malloc maps another heap where its own (brk) cannot grow: under QEMU's user mode."""

LIBRARY = "HUGEWISE_LAYOUT_LIBRARY"
"""The variable that names another library than the one beside this Python."""

_OWN_PAGES = "glibc.malloc.hugetlb="


def find() -> Path:
    """Return the library: $HUGEWISE_LAYOUT_LIBRARY, or the one of this installation; without links. Raises UserError
    where it is missing, unreadable for commands' accounts, or changeable by an account other than root.
    """
    named = os.environ.get(LIBRARY)
    path = Path(named or Path(sys.prefix, "share", "hugewise", "libhugewise-layout.so"))
    try:
        path = path.resolve(strict=True)
    except (OSError, RuntimeError):
        raise UserError(f"the layout library {path} is not there", hint="build it: make setup") from None
    if named:
        files.own(path, f"{LIBRARY}: {path}", "root loads it: unset it, or have it owned by root")
    if any(each in str(path) for each in ": \t\n"):
        raise UserError(
            f"the layout library {path} has a blank or a colon in its path, which LD_PRELOAD cannot name",
            hint=f"copy it elsewhere, and name it: {LIBRARY}=PATH",
        )
    if os.geteuid() == 0 and (closed := _closed(path)) is not None:
        raise UserError(
            f"the layout library {path} cannot be read by other accounts, as which commands run: see {closed}",
            hint="set hugewise up in a folder that other accounts may enter",
        )
    return path


def _closed(path: Path) -> Path | None:
    needed = ((parent, stat.S_IXOTH) for parent in path.parents)
    for each, bit in (*needed, (path, stat.S_IROTH)):
        if not each.stat().st_mode & bit:
            return each
    return None


def unreached(command: Sequence[str], treatment: Treatment) -> str | None:
    """Return why the layout of `treatment` cannot be applied to this command's program, or None."""
    if programs.place() is not None:
        return "layouts reach programs of this host, not those in guests"
    given = {**os.environ, **treatment.environment}.get("GLIBC_TUNABLES", "").split(":")
    if any(each.startswith(_OWN_PAGES) and each != f"{_OWN_PAGES}0" for each in given):
        return f"GLIBC_TUNABLES has {_OWN_PAGES.rstrip('=')}, which chooses the pages of the same memory: take it out"
    if programs.which(command[0]) is None:
        return None  # said by the workload
    try:
        find()
    except UserError as error:
        return f"{error.message}; {error.hint}"
    refusal = preload_obstacle(command)
    return None if refusal is None else f"a layout does not reach {refusal}"


def environment(treatment: Treatment, heap: int) -> Mapping[str, str]:
    """Return the variables under the treatment, with a layout of `heap` bytes (0: the usual). Raises UserError."""
    if not treatment.layout:
        return treatment.environment
    others = treatment.environment.get("LD_PRELOAD", os.environ.get("LD_PRELOAD", "")).replace(":", " ").split()
    preload = ":".join(dict.fromkeys((str(find()), *others)))
    return {**treatment.environment, "LD_PRELOAD": preload, LAYOUT: treatment.laid_out(heap)}
