"""Lookup of programs on this host or in the image of a guest. Nothing is started.

A workload file asks here whether a program is there, and so runs unchanged for a guest: within `looking_in(...)` the
answers come from the list of what is in an image instead of this host's disk. Files that a user names are the host's in
any case; they are put into the guest at the same path.

ssh is the caller's own program with its configuration, keys and jump hosts. It never asks: what would need a password
fails. The other host is given no agent, display or port of the caller's, whatever their configuration says. Source:
ssh(1), ssh_config(5).
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import platform
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from hugewise import files
from hugewise.errors import UserError

# For programs in a guest. Debian has merged /bin into /usr/bin; its packages name both.
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Contents:
    """Contents of an image: paths of its programs and of other files that workloads look for, and versions by package
    (a digest may follow).

    Beside it what is known of its guest before it boots: how many CPUs it has, and its architecture as uname says it.
    """

    programs: frozenset[str]
    files: frozenset[str] = frozenset()
    packages: tuple[tuple[str, str], ...] = ()
    cpus: int = 1
    machine: str = "x86_64"
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        told = repr((sorted(self.programs), sorted(self.files), sorted(self.packages)))
        object.__setattr__(self, "digest", hashlib.sha256(told.encode()).hexdigest()[:16])


_PLACE: ContextVar[Contents | None] = ContextVar("place", default=None)


@contextmanager
def looking_in(
    programs: Collection[str],
    *,
    packages: Mapping[str, str] | None = None,
    files: Collection[str] = (),
    cpus: int = 1,
    machine: str = "x86_64",
) -> Iterator[None]:
    """Meanwhile, programs are looked for among the paths `programs` of an image, in this thread or task alone.

    `packages` are the versions of what it is made of, `files` the paths of its other files (archives of sources); for
    `cpus` and `machine` see `Contents`.
    """
    told = tuple(sorted((packages or {}).items()))
    contents = Contents(frozenset(programs), frozenset(files), told, cpus, machine)
    token = _PLACE.set(contents)
    try:
        yield
    finally:
        _PLACE.reset(token)


@contextmanager
def looking_here() -> Iterator[None]:
    """Meanwhile, programs are looked for on this host: those that run there beside a guest."""
    token = _PLACE.set(None)
    try:
        yield
    finally:
        _PLACE.reset(token)


def place() -> Contents | None:
    """Return the image that is looked in, or None on this host: a key for whatever is kept of an answer."""
    return _PLACE.get()


def which(name: str, *more: str) -> str | None:
    """Return the path of a program, on PATH or in the folders `more`; None where there is none."""
    contents = place()
    if contents is None:
        folders = (os.environ.get("PATH", os.defpath), *more)
        return shutil.which(name, path=os.pathsep.join(folders))
    if "/" in name:
        return name if name in contents.programs else None
    paths = (f"{folder}/{name}" for folder in (*PATH.split(":"), *more))
    return next((path for path in paths if path in contents.programs), None)


def of_root(name: str) -> str | None:
    """Return a program for root, not by PATH; or None. Raises UserError where another account could change it."""
    if os.geteuid() != 0:
        return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", os.defpath), PATH)))
    path = shutil.which(name, path=PATH)
    if path is not None:
        files.own(Path(path), f"{name} is {path}", "root runs it: have it, and its folders, owned by root")
    return path


def executable(path: str) -> bool:
    """Return whether `path` is a program."""
    contents = place()
    return os.access(path, os.X_OK) if contents is None else path in contents.programs


def matching(pattern: str) -> list[str]:
    """Return the paths of the files that match an absolute `pattern` (`*` within one folder's name), in their order."""
    contents = place()
    if contents is None:
        return sorted(map(str, Path("/").glob(pattern.lstrip("/"))))
    parts = pattern.split("/")
    return sorted(
        path
        for path in contents.programs | contents.files
        if path.count("/") == len(parts) - 1
        and all(fnmatch.fnmatchcase(own, part) for own, part in zip(path.split("/"), parts, strict=True))
    )


def cpus() -> int:
    """Return how many CPUs a program may use there."""
    contents = place()
    return len(os.sched_getaffinity(0)) if contents is None else contents.cpus


def machine() -> str:
    """Return the architecture that programs are of, as uname says it: x86_64, aarch64."""
    contents = place()
    return platform.machine() if contents is None else contents.machine


def installed(package: str) -> str | None:
    """Return the version of a Debian package in the image; None on a host, which is asked for files instead."""
    contents = place()
    version = None if contents is None else dict(contents.packages).get(package)
    return None if version is None else version.split(" ")[0]


def within(path: str) -> bool:
    """Return whether a file that is no program is already in the image, and so need not be copied."""
    contents = place()
    return contents is not None and path in contents.files | contents.programs


def stamp(path: str) -> str:
    """Return a text that changes when the file does: path, size and modification time, or the image's digest."""
    contents = place()
    if contents is not None and path in contents.files | contents.programs:
        return f"{path} of {contents.digest}"
    try:
        status = Path(path).stat()
    except OSError:
        return path
    return f"{path} {status.st_size} {status.st_mtime_ns}"


_NOTHING_ELSE = (
    *("-T", "-a", "-x", "-o", "BatchMode=yes", "-o", "ClearAllForwardings=yes"),
    *("-o", "PermitLocalCommand=no", "-o", "RemoteCommand=none"),
)


def ssh_command(reach: Sequence[str], command: str, *, connect_s: int, alive_s: int) -> list[str]:
    """Return the words by which ssh has `command` done by the host's shell. Raises UserError where there is no ssh."""
    program = of_root("ssh")
    if program is None:
        raise UserError("ssh: no such program; other hosts are reached by it", hint="apt install openssh-client")
    times = ("-o", f"ConnectTimeout={connect_s}", "-o", f"ServerAliveInterval={alive_s}", "-o", "ServerAliveCountMax=3")
    return [program, *_NOTHING_ELSE, *times, *reach[:-1], "--", reach[-1], command]
