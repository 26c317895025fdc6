"""One run of a program under QEMU's user mode, with the plugin that simulates TLBs.

The program is started as it is named, without a shell, by the account that calls. What it writes on stdout goes to
stderr, so that the answer alone is on stdout.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from hugewise import files, reading
from hugewise.errors import HugewiseError, UserError
from hugewise.machine import loader, programs

PLUGIN = "HUGEWISE_TRACE_PLUGIN"
"""The variable that names another plugin than the one beside this Python."""

_EMULATORS = {"x86_64": "qemu-x86_64", "aarch64": "qemu-aarch64"}
_ANSWER = "answer.json"


class Size(msgspec.Struct, frozen=True):
    """Pages of 2^`shift` bytes: how many were touched, and how many have 90% of the walks (None: there were none)."""

    shift: int
    touched: int
    needed: int | None


class Walks(msgspec.Struct, frozen=True):
    """Page walks, and their steps with page-walk caches of half the entries, of all, and of twice as many."""

    misses: int
    steps: tuple[int, int, int]


class Counts(msgspec.Struct, frozen=True):
    """Counts of one configuration, under both replacement policies of the second level."""

    l1_misses: int
    lru: Walks
    random: Walks


class Answer(msgspec.Struct, frozen=True):
    """What the plugin wrote (probe/trace/src/ask.rs)."""

    version: int
    target: str
    instructions: int
    accesses: int
    records: int
    threads: int
    untraced: int
    forks: int
    replaced: bool
    touched: int
    sizes: tuple[Size, ...]
    configurations: tuple[Counts, ...]
    regions: int = 0
    laid: tuple[tuple[int, int, int], ...] = ()


class Traced(NamedTuple):
    """An answer, the exit status of the program, and the seconds of the traced run."""

    answer: Answer
    status: int
    seconds: float


class Program(NamedTuple):
    """A program that can be traced: its command, path, and architecture in uname's words; QEMU, and the plugin."""

    command: tuple[str, ...]
    path: str
    target: str
    emulator: str
    plugin: Path

    def traced(
        self, folder: Path, asked: Mapping[str, Any], begin: Path | None = None, preload: str | None = None
    ) -> list[str]:
        """Return the command of the traced run: what is asked is written into the folder, and the answer will be there.
        QEMU itself does not load the library `preload`.
        """
        ask = folder / "ask.json"
        ask.write_text(json.dumps(asked), encoding="utf-8")
        given = {"file": self.plugin, "ask": ask, "answer": folder / _ANSWER}
        given |= {} if begin is None else {"begin": begin.absolute()}
        # QEMU separates arguments by commas, and reads two as one. It has little room for a heap (brk).
        words = ",".join(f"{name}={str(value).replace(',', ',,')}" for name, value in given.items())
        own = [] if preload is None else ["-E", f"LD_PRELOAD={preload}", "-E", f"{loader.ELSEWHERE}=1"]
        return [self.emulator, *own, "-0", self.command[0], "-plugin", words, self.path, *self.command[1:]]


def plugin() -> Path:
    """Return the plugin. Raises UserError where it is not there, or another account may change it under root."""
    named = os.environ.get(PLUGIN)
    path = Path(named or Path(sys.prefix, "share", "hugewise", "libhugewise-trace.so")).absolute()
    if not path.is_file():
        cure = f"correct {PLUGIN}" if named else "build it in a checkout of hugewise: make setup"
        raise UserError(f"the plugin of QEMU {path} is not there", hint=cure)
    if named:
        files.own(path, f"{PLUGIN}: {path}", "root loads it: unset it, or have it owned by root")
    return path


def program(command: Sequence[str]) -> Program:
    """Return the command's program. Raises UserError where it, QEMU or the plugin is not there, or cannot be used."""
    path = programs.which(command[0])
    if path is None:
        raise UserError(f"{command[0]}: no such program", hint="name a program on PATH, or one by its path: ./prog")
    machine = target(path)
    emulator = programs.which(_EMULATORS[machine])
    if emulator is None:
        missing = f"{_EMULATORS[machine]} is not there, which traces programs of {machine}"
        raise UserError(missing, hint="install it: apt install qemu-user (Debian 12 has version 7.2)")
    return Program(tuple(command), path, machine, emulator, plugin())


def target(path: str) -> str:
    """Return the architecture of a program, in uname's words. Raises UserError if it cannot be traced."""
    try:
        gained = loader.gains(path)
        with reading.opened(Path(path).resolve(strict=True)) as file:
            head = file.read(64)
            found = {machine: loader.started(file, machine) for machine in _EMULATORS}
            wanted = loader.interpreter(file)
    except (OSError, RuntimeError, reading.UnreadableError) as error:
        raise UserError(
            f"{path}: it cannot be read ({error})", hint="trace it as an account that may read it"
        ) from None
    if gained is not None:
        has = "its file has capabilities" if gained == "capabilities" else f"it is {gained}"
        raise UserError(
            f"{path}: {has}, and QEMU runs a program with the rights of its caller",
            hint="trace a copy: cp PROGRAM /tmp",
        )
    if head.startswith(b"#!"):
        script = head[2:].split(b"\n")[0].strip().decode("utf-8", "replace")
        raise UserError(f"{path}: it is a script of {script}", hint=f"name its interpreter: {script} {path}")
    if head.startswith(loader.MAGIC) and head[4:5] == b"\x01":
        raise UserError(f"{path}: it is of 32 bits", hint="trace a program of 64 bits, of x86-64 or arm64")
    here = [machine for machine, kind in found.items() if kind not in ("foreign", "unknown", "script")]
    if not here:
        raise UserError(f"{path}: it is no program of x86-64 or arm64", hint="trace an ELF program of Linux")
    prefix = os.environ.get("QEMU_LD_PREFIX", "/")
    if wanted is not None and not any(Path(f"{root}/{wanted}").exists() for root in (prefix, "/")):
        raise UserError(
            f"{path}: its loader {wanted} is not there",
            hint="name the folder of that architecture's libraries: QEMU_LD_PREFIX=/usr/aarch64-linux-gnu",
        )
    return here[0]


def ended(status: int) -> str:
    """Return how a process ended, by its status as subprocess has it."""
    return f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"


def no_terminal() -> int | None:
    """Return /dev/null in place of a terminal, for a program that runs more than once."""
    return subprocess.DEVNULL if os.isatty(0) else None


def run(
    program: Program,
    asked: Mapping[str, Any],
    begin: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Traced:
    """Run the program once under QEMU, and return what the plugin says; with `begin` only of what comes after that file
    is there. `environment` is that of the layout library, for the program. Raises UserError, HugewiseError.
    """
    if begin is not None and begin.exists():
        raise UserError(f"--count-from {begin}: it is there already", hint="remove it; make it when the load begins")
    with tempfile.TemporaryDirectory(prefix="hugewise-predict-") as folder:
        own = dict(environment or {})
        begun = time.monotonic()
        done = subprocess.run(
            program.traced(Path(folder), asked, begin, own.pop("LD_PRELOAD", None)),
            check=False,
            stdin=no_terminal() if environment else None,
            stdout=2,
            env={**os.environ, **own},
        )
        seconds = time.monotonic() - begun
        answer = _read(Path(folder, _ANSWER), program.command[0], done.returncode)
        return Traced(answer, done.returncode, seconds)


def _read(path: Path, program: str, status: int) -> Answer:
    try:
        empty = not path.exists() or not path.stat().st_size
        answer = None if empty else reading.stored(path, Answer)
    except reading.UnreadableError as error:
        raise HugewiseError(f"the answer of the plugin cannot be read: {error}", hint="make setup") from None
    if answer is None:
        raise UserError(
            f"{program}: it {ended(status)} under QEMU, and left no trace",
            hint="run it to its end; where QEMU names the plugin above, its version has to be 6.0 to 8.2",
        )
    if answer.replaced:
        raise UserError(
            f"{program}: it replaced itself by another program (execve), which was not traced",
            hint="name that program: instead of a wrapper or a shell what it starts",
        )
    if not answer.instructions:
        raise UserError(
            f"{program}: nothing was counted: it ended before the file of --count-from was there",
            hint="make the file when the load begins: touch FILE",
        )
    return answer
