"""Safe writing of files: whole, synced, and where no other account decides; errors name the file."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import grp
import os
import pwd
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from hugewise.errors import StorageError, UserError

RESUME = "free some space or name another folder with --results; what was accepted is kept: hugewise resume"
"""The cure for a file of a run."""
_MOST_LINKS = 40  # in one path, the kernel's limit


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


def append_line(descriptor: int, line: bytes, *, lasting: bool = True) -> int:
    """Append a line, on disk when this returns where it is to be `lasting`; return where it began. Raises OSError, and
    leaves no half line where it can.
    """
    end = os.lseek(descriptor, 0, os.SEEK_END)
    try:
        if os.write(descriptor, line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # noqa: TRY301  (as where nothing was written)
        if lasting:
            os.fsync(descriptor)
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, end)
        raise
    return end


def write_whole(path: Path, data: bytes, mode: int = 0o644, owner: tuple[int, int] | None = None) -> None:
    """Write `data` to `path` for `owner`, synced, as the old file or the new one at any moment. Raises OSError."""
    with drafted(path, mode, owner) as file:
        file.write(data)


@contextmanager
def drafted(
    path: Path, mode: int = 0o644, owner: tuple[int, int] | None = None, *, over: bool = True, named: bool = True
) -> Iterator[BinaryIO]:
    """Yield a file to write beside `path`, which it becomes when the block ends well (synced, as a power cut may else
    leave a name without content). `over`: replace what is there, else FileExistsError; `named`: sync the folder. Raises
    OSError.
    """
    descriptor, draft = tempfile.mkstemp(prefix=f".{path.name[:40]}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fchmod(file.fileno(), mode)
            if owner is not None:
                os.fchown(file.fileno(), *owner)
            os.fsync(file.fileno())
        if over:
            os.replace(draft, path)  # noqa: PTH105  (names, not paths)
        else:
            os.link(draft, path)
            os.unlink(draft)  # noqa: PTH108
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)  # noqa: PTH108
        raise
    if named:
        sync(path.parent)


@contextmanager
def alone_in(folder: Path, patience: float = 600.0) -> Iterator[None]:
    """Wait until no other process holds the folder, and hold it. Raises OSError, also after `patience` seconds."""
    end = time.monotonic() + patience
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        while True:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise TimeoutError(errno.ETIMEDOUT, "another process holds it, see: lslocks", str(folder)) from None
            time.sleep(0.05)
        yield
    finally:
        os.close(held)


def made_folder(path: Path, *, theirs: bool = False) -> None:
    """Make `path` and those above, on disk; `theirs`: for the account that called sudo. Raises OSError."""
    if not path.is_dir():
        made_folder(path.parent, theirs=theirs)
        path.mkdir(exist_ok=True)
        if theirs:
            _hand_over_empty(path)
        sync(path.parent)


def caller() -> tuple[int, int] | None:
    """Return the account and the group that called root through sudo; None where none did."""
    uid = _asked()
    if uid == 0:
        return None
    said = os.environ.get("SUDO_GID", "")
    with contextlib.suppress(KeyError):
        own = pwd.getpwuid(uid)
        groups = os.getgrouplist(own.pw_name, own.pw_gid)
        return uid, int(said) if said.isascii() and said.isdigit() and int(said) in groups else own.pw_gid
    return None


def hand_over(folder: Path) -> None:
    """Give a finished folder of root's to the account that called sudo, if any. All in it is given away before the
    folder is, so that no name leads elsewhere. Raises OSError.
    """
    who = caller()
    if who is None:
        return
    top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if os.fstat(top).st_uid != 0:
            return
        for _, _, names, held in os.fwalk(".", topdown=False, dir_fd=top):
            if os.fstat(held).st_uid != 0:  # given away before: its owner decides about the contents
                continue
            for name in names:
                found = os.stat(name, dir_fd=held, follow_symlinks=False)
                if found.st_uid == 0 and stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
                    os.chown(name, *who, dir_fd=held, follow_symlinks=False)
            os.fchown(held, *who)
    finally:
        os.close(top)


def _hand_over_empty(path: Path) -> None:
    """Give a new folder of root's to the account that called sudo. The owner of the folder above may have exchanged it:
    then they gain an empty folder and no more.
    """
    who = caller()
    if who is None or path.parent.stat().st_uid != who[0]:
        return
    held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with os.scandir(held) as names:
            if os.fstat(held).st_uid == 0 and not any(names):
                os.fchown(held, *who)
    finally:
        os.close(held)


OWN = "as root, name a folder that root alone can change; or let sudo call root for that account"
"""The cure for a folder that another account can change."""


def own(path: Path, called: str, hint: str = OWN) -> None:
    """Raise UserError where the caller is root and another account could change where `path` leads; or OSError."""
    if os.geteuid() == 0 and (why := changeable(path)) is not None:
        raise UserError(f"{called}: {why}, and could lead root elsewhere", hint=hint)


def changeable(path: Path) -> str | None:
    """Return why an account other than root and the caller could change where `path` leads, or None where none can.

    The person who calls root through sudo decides what root does anyway, and is trusted. In a sticky folder, such as
    /tmp, nobody can rename root's files. A group may write only where it is the private group of one of those accounts.
    A POSIX ACL that lets anybody write counts, whomever; NFSv4 ACLs are not seen. Parts of the path that do not exist
    yet are not checked: check again when they were made. Raises OSError, also for a circle of links.
    """
    trusted = {0, os.geteuid(), _asked()}
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
        elif not found.st_mode & stat.S_ISVTX and (who := _shared(here, found, trusted)) is not None:
            return f"{here} can be written by {who}"
        if not left:
            return None
        name = left.pop()
        here = here.parent if name == ".." else here / name
        if not os.path.lexists(here):
            return None


def _asked() -> int:
    """Return the account that called root through sudo; else root's own."""
    said = os.environ.get("SUDO_UID", "") if os.geteuid() == 0 else ""
    return int(said) if said.isascii() and said.isdigit() else 0


def _shared(path: Path, found: os.stat_result, trusted: set[int]) -> str | None:
    if found.st_mode & stat.S_IWOTH:
        return "others"
    if not found.st_mode & stat.S_IWGRP:  # of a folder with an ACL: its mask, the most that it grants
        return None
    with contextlib.suppress(OSError):  # there is none, or the file system has none
        os.getxattr(path, "system.posix_acl_access", follow_symlinks=False)
        return f"others (it has an access control list, see: getfacl {path})"
    return None if any(_private(found.st_gid, who) for who in trusted) else f"others (the group {found.st_gid})"


def _private(group: int, account: int) -> bool:
    """Return whether `group` is private to `account`: its primary group, of the same name, without members. Root's own
    group counts while it has no other member.
    """
    try:
        owner, members = pwd.getpwuid(account), grp.getgrgid(group)
    except KeyError:
        return False
    named = members.gr_name == owner.pw_name and owner.pw_gid == group
    return named and set(members.gr_mem) <= {owner.pw_name}
