"""Where programs are looked for: on this host, or in the image of a guest. It looks, and starts nothing.

A workload file asks here whether a program is there, and so runs unchanged for a guest: within `looking_in(...)` the
answers come from the list of what is in an image instead of this host's disk. Files that a user names are the host's in
any case; they are put into the guest at the same path.

The command line of ssh: the caller's own program with its configuration, keys, agents and jump hosts.

It never asks: what would need a password fails. The host is given what is asked for and nothing else: no agent, no
display, no port of the caller's, whatever their configuration says. Source: ssh(1), ssh_config(5).
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

# Of the programs in a guest. Debian has merged /bin into /usr/bin; its packages name both.
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Contents:
    """What an image holds: paths of its programs and of other files that workloads look for, versions by package
    (after which a digest may stand).

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
    """The image that is looked in, or None on this host: a key for whatever is kept of an answer."""
    return _PLACE.get()


def which(name: str, *more: str) -> str | None:
    """The path of a program, on PATH or in the folders `more`; None where there is none."""
    contents = place()
    if contents is None:
        folders = (os.environ.get("PATH", os.defpath), *more)
        return shutil.which(name, path=os.pathsep.join(folders))
    if "/" in name:
        return name if name in contents.programs else None
    paths = (f"{folder}/{name}" for folder in (*PATH.split(":"), *more))
    return next((path for path in paths if path in contents.programs), None)


def of_root(name: str) -> str | None:
    """The path of a program of this host that root runs itself; None where there is none.

    The caller's PATH does not count then: `su` keeps another account's. Raises UserError where another account could
    change the program.
    """
    if os.geteuid() != 0:
        return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", os.defpath), PATH)))
    found = shutil.which(name, path=PATH)
    if found is not None:
        files.own(Path(found), f"{name} is {found}", "root runs it: have it, and its folders, owned by root")
    return found


def executable(path: str) -> bool:
    """Whether there is a program of that path."""
    contents = place()
    return os.access(path, os.X_OK) if contents is None else path in contents.programs


def matching(pattern: str) -> list[str]:
    """The paths of the files that match an absolute `pattern` (`*` within one folder's name), in their order."""
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
    """How many CPUs a program may use there."""
    contents = place()
    return len(os.sched_getaffinity(0)) if contents is None else contents.cpus


def machine() -> str:
    """The architecture that programs are of, as uname says it: x86_64, aarch64."""
    contents = place()
    return platform.machine() if contents is None else contents.machine


def installed(package: str) -> str | None:
    """The version of a Debian package in the image; None on a host, which is asked for files instead."""
    contents = place()
    told = None if contents is None else dict(contents.packages).get(package)
    return None if told is None else told.split(" ")[0]


def within(path: str) -> bool:
    """Whether a file (no program) is in the image already, and so need not be put there."""
    contents = place()
    return contents is not None and path in contents.files | contents.programs


def stamp(path: str) -> str:
    """What changes when a file does: where it is, its size and when it was written. Only the path where it is gone.

    Of a file in an image: its path, and what the image is made of.
    """
    contents = place()
    if contents is not None and path in contents.files | contents.programs:
        return f"{path} of {contents.digest}"
    try:
        found = Path(path).stat()
    except OSError:
        return path
    return f"{path} {found.st_size} {found.st_mtime_ns}"


_NOTHING_ELSE = (
    *("-T", "-a", "-x", "-o", "BatchMode=yes", "-o", "ClearAllForwardings=yes"),
    *("-o", "PermitLocalCommand=no", "-o", "RemoteCommand=none"),
)


def ssh_command(reach: Sequence[str], command: str, *, connect_s: int, alive_s: int) -> list[str]:
    """The words that have `command` done by the shell of a host: quote in it what is not fixed.

    `reach`: options of the user's, and the target last. ssh gives up after `connect_s` seconds without a connection,
    and after three times `alive_s` without a word. Raises UserError where there is no ssh.
    """
    program = of_root("ssh")
    if program is None:
        raise UserError("ssh: no such program; other hosts are reached by it", hint="apt install openssh-client")
    times = ("-o", f"ConnectTimeout={connect_s}", "-o", f"ServerAliveInterval={alive_s}", "-o", "ServerAliveCountMax=3")
    return [program, *_NOTHING_ELSE, *times, *reach[:-1], "--", reach[-1], command]
