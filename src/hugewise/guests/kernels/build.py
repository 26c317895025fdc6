"""Kernels built from a source of Linux and fragments, in a workshop: under root by the unprivileged account.

A fragment is checked against the configuration that comes out of it: the kernel's own tools drop what they do not know
or what cannot be, and say nothing. Who builds and when is not in the image, so that the same source, fragments and
compiler give the same kernel.

What building a kernel needs of this machine, and which compiler it has.
"""

from __future__ import annotations

import errno
import functools
import os
import re
import resource
import shutil
import signal
import subprocess
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from hugewise import unprivileged
from hugewise.errors import HugewiseError, StorageError, UserError
from hugewise.guests import cache
from hugewise.guests.kernels import modules, store
from hugewise.guests.kernels.source import BUILD_DISK, KernelSource, Recipe
from hugewise.guests.sandbox import workshop
from hugewise.model.guest import HARDWARE, Architecture, Kernel
from hugewise.model.workload import Missing
from hugewise.quantity import format_duration
from hugewise.unprivileged import Say

# make's ARCH, its target, and the image that it makes.
ARCH: Mapping[Architecture, str] = {"x86-64": "x86_64", "arm64": "arm64"}
IMAGES: Mapping[Architecture, tuple[str, str]] = {
    "x86-64": ("bzImage", "arch/x86/boot/bzImage"),
    "arm64": ("Image", "arch/arm64/boot/Image"),
}
_PACKAGES: Mapping[str, str] = {
    "make": "make",
    "gcc": "gcc",
    "ld": "binutils",
    "flex": "flex",
    "bison": "bison",
    "bc": "bc",
    "perl": "perl",
    "tar": "tar",
    "xz": "xz-utils",
    "gzip": "gzip",
    "dpkg-deb": "dpkg",
}
# objtool, which x86 kernels are built with, reads ELF files with this library.
_HEADERS: Mapping[Architecture, tuple[tuple[str, str], ...]] = {"x86-64": (("gelf.h", "libelf-dev"),), "arm64": ()}


def cross_compile_prefix(arch: Architecture) -> str:
    """CROSS_COMPILE: what the tools for that architecture are called before `gcc`; empty for this machine's own."""
    hardware = HARDWARE[arch]
    return "" if os.uname().machine == hardware else f"{hardware}-linux-gnu-"


def missing_tools(arch: Architecture) -> tuple[Missing, ...]:
    """What this machine lacks to build kernels of that architecture."""
    wanted = dict(_PACKAGES)
    if tools := cross_compile_prefix(arch):
        package = f"gcc-{tools.rstrip('-')}".replace("_", "-")
        wanted[f"{tools}gcc"] = package
    lacking = [Missing(f"no {name} to build kernels with", each) for name, each in wanted.items() if not _there(name)]
    for header, each in _HEADERS[arch]:
        if not _there("gcc"):
            lacking.append(Missing(f"no gcc to look for {header} with", each))
        elif not _includes(header):
            lacking.append(Missing(f"no {header} to build kernels with", each))
    return tuple(lacking)


def _there(name: str) -> bool:
    return shutil.which(name) is not None


@functools.cache
def _includes(header: str) -> bool:
    try:  # the one that make finds
        return unprivileged.run(["gcc", "-E", "-x", "c", "-include", header, "/dev/null"]).status == 0
    except HugewiseError:
        return False


@functools.cache
def compiler_version(arch: Architecture) -> str:
    """What compiles and links such kernels, in its own words. Raises UserError."""
    said = []
    for tool in ("gcc", "ld"):
        program = f"{cross_compile_prefix(arch)}{tool}"
        why = ""
        try:
            done = unprivileged.run([program, "--version"])
            why = done.why if done.status != 0 else ""
        except HugewiseError as error:
            why = error.message
        if why:
            lacking = missing_tools(arch)
            packages = " ".join(dict.fromkeys(each.package for each in lacking if each.package))
            raise UserError(
                f"kernels of {arch} cannot be built here: {program}: {why}",
                hint=f"apt install {packages}" if packages else f"is {program} whole?",
            )
        said.append(done.stdout.partition("\n")[0].strip())
    return "; ".join(said)


_FORMAT = 1
_EVERY_S = 15.0  # between two lines of progress
_LAST_LINES = 12  # of the log, in an error
_LONGEST = 1 << 16  # bytes of a line
_MOST_LOGGED = 64 << 20  # characters of each build's log
_STEP = re.compile(r"  (CC|AS|LD|AR|HOSTCC|HOSTLD|GEN|UPD|WRAP|VDSO|KSYMS|OBJCOPY) ")
_FIXED = {
    "LC_ALL": "C",
    "TZ": "UTC",
    "KBUILD_BUILD_TIMESTAMP": "Thu Jan  1 00:00:00 UTC 1970",
    "KBUILD_BUILD_USER": "hugewise",
    "KBUILD_BUILD_HOST": "hugewise",
    "KBUILD_BUILD_VERSION": "1",
}


def build_key(recipe: Recipe, source: str) -> store.Key:
    """The key of what is asked for; `source`: the suite whose linux-source it is, or a tarball's SHA-256."""
    return {
        "symbols": store.merged_fragments(recipe.texts),
        "name": recipe.name,  # it is in the release
        "arch": recipe.arch,
        "compiler": compiler_version(recipe.arch),
        "source": source,
        "format": _FORMAT,
    }


def provide(recipe: Recipe, source: KernelSource, wanted: store.Key, say: Say) -> Kernel:
    """The kernel of that recipe and source, built if it is not in the cache; noted as what is had for `wanted`.

    Raises UserError where a tool is missing or a fragment was dropped, HugewiseError with the log's last lines where
    the build fails, StorageError.
    """
    made_of = {**build_key(recipe, source.sha256), "source": source.sha256}
    return store.have(wanted, made_of, lambda folder: _make(recipe, source, folder, log_of(made_of), say), say)


def log_of(made_of: store.Key) -> Path:
    """Where the log of that build is kept, also when it fails."""
    return cache.entry(store.KIND, made_of).with_suffix(".log")


def _make(recipe: Recipe, source: KernelSource, folder: Path, log: Path, say: Say) -> None:
    if lacking := missing_tools(recipe.arch):
        raise UserError(
            f"the kernel {recipe.name} cannot be built: " + "; ".join(each.reason for each in lacking),
            hint="apt install " + " ".join(dict.fromkeys(each.package for each in lacking if each.package)),
        )
    with workshop() as shop, _Log(log) as writing:
        lent = source.lend(shop)
        keep = (writing.fileno(),)
        shop.do(lambda tell: _build(recipe, source, lent, shop.own, log=writing, say=tell), say, keep=keep)
        shop.take("made", folder)


def _build(recipe: Recipe, source: KernelSource, lent: Path, own: Path, *, log: IO[str], say: Say) -> None:
    """Make the kernel's files in `own`/made. Raises OSError, UserError, StorageError, HugewiseError."""
    tree, objects, folder = own / "source", own / "objects", own / "made"
    objects.mkdir()
    folder.mkdir()
    say(f"unpacking {source.name}")
    source.unpack(lent, tree)
    began = time.monotonic()
    make = _Make(recipe, tree, objects, log, say)
    config = _configure(recipe, make, objects)
    target, image = IMAGES[recipe.arch]
    say(f"building {recipe.name}; the log is {log.name}")
    make(target, progress=True)
    took = f"{make.cpu_s:.0f} s of CPU time, {time.monotonic() - began:.0f} s"
    log.write(f"hugewise: {recipe.name} took {took}\n")
    log.flush()
    say(f"built {recipe.name}: {took}")
    release = (objects / "include/config/kernel.release").read_text(encoding="utf-8").strip()
    shutil.copyfile(objects / image, folder / store.IMAGE)
    (folder / store.CONFIG).write_text(config, encoding="utf-8")
    kernel = Kernel(
        name=recipe.name,
        arch=recipe.arch,
        image=store.IMAGE,
        digest=cache.sha256(folder / store.IMAGE),
        release=release,
        config=store.CONFIG,
        origin=f"built from {source.name} (SHA-256 {source.sha256}) by the recipe {recipe.name},"
        f" {compiler_version(recipe.arch)}",
    )
    store.write(folder, kernel)


def _configure(recipe: Recipe, make: _Make, objects: Path) -> str:
    """The configuration that the fragments make of tinyconfig. Raises UserError naming what was dropped."""
    make("tinyconfig")
    path = objects / ".config"
    path.write_text(store.merged(path.read_text(encoding="utf-8"), recipe.texts), encoding="utf-8")
    make("olddefconfig")
    config = path.read_text(encoding="utf-8")
    refused(recipe, config)
    if given_up := [] if not recipe.own else store.unmet(recipe.texts, config):
        symbols = ", ".join(f"CONFIG_{each.symbol}={each.second}" for each in given_up)
        make.say(f"{recipe.name}: with your fragments, also {symbols}")
    return config


def refused(recipe: Recipe, config: str) -> None:
    """Raises UserError where the configuration is not what the recipe's fragments ask for, or cannot be a guest's."""
    dropped = store.unmet(recipe.demanded, config)
    if dropped:
        said = ", ".join(f"CONFIG_{each.symbol}={each.first} (it is {each.second})" for each in dropped)
        raise UserError(
            f"the kernel {recipe.name}: the source's configuration does not take {said}",
            hint="ask for what these symbols depend on as well, or use the source that the fragments are written for",
        )
    lacking = modules.lacking(store.parse(config))
    if lacking:
        raise UserError(f"the kernel {recipe.name} cannot be a guest's: it lacks {', '.join(lacking)}")


class _Log:
    """The log of a build: a file, made anew."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> IO[str]:
        try:
            self._file = self.path.open("w+", encoding="utf-8", errors="replace")
        except OSError as error:
            raise StorageError(f"cannot write {self.path}: {error.strerror}") from error
        return self._file

    def __exit__(self, *_: object) -> None:
        self._file.close()


class _Make:
    """`make` in the tree for a recipe; `cpu_s` counts the CPU time of all calls."""

    def __init__(self, recipe: Recipe, tree: Path, objects: Path, log: IO[str], say: Say) -> None:
        self.cpu_s = 0.0
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        self._before = used.ru_utime + used.ru_stime
        self._last: deque[str] = deque(maxlen=_LAST_LINES)
        self._room = _MOST_LOGGED
        self._recipe = recipe
        self._log = log
        self._objects = objects
        self.say = say
        arch: Architecture = recipe.arch
        self._command = (
            *("make", "-C", str(tree), f"O={objects}", f"ARCH={ARCH[arch]}"),
            *(f"CROSS_COMPILE={cross_compile_prefix(arch)}", f"LOCALVERSION=-{recipe.name}"),
            f"-j{len(os.sched_getaffinity(0))}",
        )

    def __call__(self, target: str, *, progress: bool = False) -> None:
        """Make the target. Raises HugewiseError with the last lines of the log."""
        # What the user's shell says of flags, compilers and architectures is for other builds.
        environment = {"PATH": os.environ.get("PATH", os.defpath), **_FIXED}
        # The output goes through this process: if that is killed, make finds nobody who reads, and ends.
        with subprocess.Popen(
            (*self._command, target), env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
        ) as running:  # fmt: skip
            assert running.stdout is not None
            try:
                self._follow(running.stdout, progress=progress)
            except BaseException:
                os.killpg(running.pid, signal.SIGKILL)
                raise
            finally:
                self._log.flush()  # this process may end without it
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.cpu_s = used.ru_utime + used.ru_stime - self._before
        if running.returncode != 0:
            tail = self._last
            if any(os.strerror(errno.ENOSPC) in line for line in tail):
                raise StorageError(
                    f"the kernel {self._recipe.name} could not be built: no space is left on the disk of"
                    f" {self._objects}, or of {self._log.name}",
                    hint=f"a build needs {BUILD_DISK} below /var/tmp: free space there, or mount some at it",
                )
            raise HugewiseError(
                "\n".join((f"the kernel {self._recipe.name} could not be built (make {target} failed):", *tail)),
                hint=f"the whole log is {self._log.name}",
            )

    def _follow(self, lines: IO[str], *, progress: bool) -> None:
        steps = 0
        began = said = time.monotonic()
        while line := lines.readline(_LONGEST):
            self._last.append(line.rstrip("\n"))
            self._room -= len(line)
            if self._room > 0:
                self._log.write(line)
            steps += _STEP.match(line) is not None
            if progress and time.monotonic() - said >= _EVERY_S:
                said = time.monotonic()
                self.say(f"building {self._recipe.name}: {steps} files made, {format_duration(said - began)} so far")
