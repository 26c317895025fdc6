"""Writing files: whole, on disk, and where nobody else decides; with an error that says what failed."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hugewise.errors import StorageError, UserError

__all__ = ["OWN", "RESUME", "changeable", "made_folder", "own", "storing", "sync", "write_whole"]

RESUME = "free some space or name another folder with --results; what was accepted is kept: hugewise resume"
"""The cure for a file of a run."""
_MOST_LINKS = 40  # in one path, as the kernel


@contextmanager
def storing(what: str, hint: str = RESUME) -> Iterator[None]:
    """Turn an operating-system error into a StorageError that says what could not be written; `hint` is the cure."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot write {what}: {error.strerror or error}", hint=hint) from error


def sync(path: Path) -> None:
    """Have a file or a folder on disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Have `data` in the file `path`, on disk when this returns; at any moment it is the old file or the new one.

    Written beside its place, synced, renamed, and the folder synced: without the last two a power cut may leave a name
    with an empty file, or none. Raises OSError, and leaves nothing beside it then.
    """
    descriptor, draft = tempfile.mkstemp(prefix=f".{path.name[:40]}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(draft, path)  # noqa: PTH105  (names, not paths)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)  # noqa: PTH108
        raise
    sync(path.parent)


def made_folder(path: Path) -> None:
    """Have the folder `path`, with those above it, on disk. Raises OSError."""
    if not path.is_dir():
        made_folder(path.parent)
        path.mkdir(exist_ok=True)
        sync(path.parent)


OWN = "as root, name a folder that root alone can change; or let sudo call root for that account"
"""The cure for a folder that another account can change."""


def own(path: Path, called: str, hint: str = OWN) -> None:
    """Raise UserError where the caller is root and another account could change where `path` leads; `called` is what it
    was named by. An ordinary user looks after their own folders. Raises OSError.
    """
    if os.geteuid() == 0 and (why := changeable(path)) is not None:
        raise UserError(f"{called}: {why}, and could lead root elsewhere", hint=hint)


def changeable(path: Path) -> str | None:
    """Why an account that is neither root nor the caller could change where `path` leads; None where none can.

    Who calls root through sudo decides what root does anyway, and is trusted. In a sticky folder, such as /tmp, nobody
    can rename what is root's. What is not there yet is not looked at: look again when it was made. Raises OSError, also
    for a circle of links.
    """
    trusted = {0, os.geteuid(), _asked("SUDO_UID")}
    here, left, links = Path("/"), list(reversed(path.absolute().parts[1:])), 0
    while True:
        found = here.lstat()
        if found.st_uid not in trusted:
            return f"{here} belongs to the account {found.st_uid}"
        if stat.S_ISLNK(found.st_mode):
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
            target = here.readlink()
            here = Path("/") if target.is_absolute() else here.parent
            left += reversed([part for part in target.parts if part != "/"])
        elif _shared(found) and not found.st_mode & stat.S_ISVTX:
            return f"{here} can be written by others"
        if not left:
            return None
        name = left.pop()
        here = here.parent if name == ".." else here / name
        if not os.path.lexists(here):
            return None


def _asked(variable: str) -> int:
    """The account, or its group, that called root through sudo; else root's own."""
    said = os.environ.get(variable, "") if os.geteuid() == 0 else ""
    return int(said) if said.isascii() and said.isdigit() else 0


def _shared(found: os.stat_result) -> bool:
    of_a_group = found.st_mode & stat.S_IWGRP and found.st_gid not in (0, os.getegid(), _asked("SUDO_GID"))
    return bool(of_a_group or found.st_mode & stat.S_IWOTH)
