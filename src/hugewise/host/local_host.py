"""The files of the machine that hugewise runs on, and the account that workloads run as."""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path

from hugewise.errors import UserError
from hugewise.model.workload import RunsAs


class LocalHost:
    """The machine that hugewise itself runs on."""

    def __init__(self) -> None:
        self.name = os.uname().nodename

    def privileged(self) -> bool:
        return os.geteuid() == 0

    def read(self, path: str) -> str:
        return Path(path).read_bytes().decode("utf-8", "replace").strip()

    def write(self, path: str, text: str) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)

    def writable(self, path: str) -> bool:
        try:
            mode = Path(path).stat().st_mode
        except OSError:
            return False
        return stat.S_ISREG(mode) and bool(mode & stat.S_IWUSR)

    def names(self, path: str) -> list[str]:
        try:
            return sorted(entry.name for entry in Path(path).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []


_NAMED = 'let sudo set them (sudo hugewise ...), or name an account: user = "..."'


def account(user: str | None, runs_as: RunsAs, *, privileged: bool) -> pwd.struct_passwd | None:
    """Return the account: the study's `user`, or, as root, that of `runs_as`. None: the caller's. Raises UserError."""
    if user is not None:
        try:
            entry = pwd.getpwnam(user)
        except KeyError:
            raise UserError(f"user = {user!r}: no such account on this machine", hint="see: getent passwd") from None
        if not privileged and entry.pw_uid != os.geteuid():
            raise UserError(f"user = {user!r}: only root can run a workload as somebody else", hint="use sudo")
        return entry if privileged else None
    if not privileged or runs_as == "root":
        return None
    if runs_as == "unprivileged":
        try:
            return pwd.getpwnam("nobody")
        except KeyError:
            raise UserError("no account `nobody` to run workloads as", hint='name one: user = "..."') from None
    return _who_called_sudo()


def _who_called_sudo() -> pwd.struct_passwd | None:
    # Under any account but root SUDO_UID, SUDO_GID and SUDO_USER prove nothing, and are ignored.
    uid, gid, user = (os.environ.get(name, "") for name in ("SUDO_UID", "SUDO_GID", "SUDO_USER"))
    if not (uid or gid or user):
        return None
    number = _number("SUDO_UID", uid)
    if number == 0:
        return None
    try:
        entry = pwd.getpwnam(user) if user else pwd.getpwuid(number)
    except (KeyError, OverflowError):
        name = f"SUDO_USER = {user}" if user else f"SUDO_UID = {uid}"
        raise UserError(f"{name}: no such account to run the command as", hint=_NAMED) from None
    if entry.pw_uid != number:
        raise UserError(f"SUDO_UID = {uid} is not the account SUDO_USER = {user}", hint=_NAMED)
    group = _number("SUDO_GID", gid) if gid else entry.pw_gid
    if group not in os.getgrouplist(entry.pw_name, entry.pw_gid):
        raise UserError(f"SUDO_GID = {gid} is no group of {entry.pw_name}", hint=_NAMED)
    return pwd.struct_passwd((*entry[:3], group, *entry[4:]))


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise UserError(f"{name} = {text!r}: no number, as sudo sets it", hint=_NAMED)
    return int(text)


def is_caller(who: pwd.struct_passwd | None) -> bool:
    """Return whether the account (None: this process's) is the person's who started hugewise, maybe by sudo."""
    called = os.environ.get("SUDO_UID") if os.geteuid() == 0 else None
    return who is None or str(who.pw_uid) in (str(os.getuid()), called)


def groups(who: pwd.struct_passwd | None) -> tuple[int, ...]:
    """Return the supplementary groups of a program of that account: those of the account that called sudo, or none."""
    if who is None or os.geteuid() != 0 or not is_caller(who):
        return ()
    return tuple(sorted(set(os.getgrouplist(who.pw_name, who.pw_gid))))


def must_enter(who: pwd.struct_passwd, folder: Path) -> None:
    """Raise UserError where owners and modes keep the account from the folder (no access control lists)."""
    for each in (*reversed(folder.parents), folder):
        status = each.stat()
        of_group = stat.S_IXGRP if status.st_gid in (who.pw_gid, *groups(who)) else stat.S_IXOTH
        needed = stat.S_IXUSR if status.st_uid == who.pw_uid else of_group
        if who.pw_uid != 0 and not status.st_mode & needed:
            raise UserError(
                f"the command is to run in {folder} as {who.pw_name}, who cannot enter {each}",
                hint='start hugewise in a folder that this account can enter, or name another one: user = "..."',
            )
