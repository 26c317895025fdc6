"""Whom workloads run as. Root is for turning knobs, not for running programs."""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path

from hugewise.errors import UserError
from hugewise.model.workload import RunsAs

__all__ = ["account", "is_caller", "must_enter"]


def account(user: str | None, runs_as: RunsAs, *, privileged: bool) -> pwd.struct_passwd | None:
    """The account: the study's `user`; else, under root, that of `runs_as`. None: as the caller. Raises UserError."""
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
    caller = os.environ.get("SUDO_UID", "")
    try:
        return pwd.getpwuid(int(caller)) if caller.isdigit() and caller != "0" else None
    except KeyError:
        raise UserError(
            f"SUDO_UID = {caller}: no such account to run the command as", hint='name one: user = "..."'
        ) from None


def is_caller(who: pwd.struct_passwd | None) -> bool:
    """Whether the account (None: this process's) is that of the person who started hugewise, maybe by sudo."""
    return who is None or str(who.pw_uid) in (str(os.getuid()), os.environ.get("SUDO_UID"))


def must_enter(who: pwd.struct_passwd, folder: Path) -> None:
    """Raise UserError where owners and modes say that the account cannot enter the folder, to begin a command there.

    The launcher enters it as the account, which has the last word: access control lists are not looked at.
    """
    for each in (*reversed(folder.parents), folder):
        found = each.stat()
        of_group = stat.S_IXGRP if found.st_gid == who.pw_gid else stat.S_IXOTH
        needed = stat.S_IXUSR if found.st_uid == who.pw_uid else of_group
        if who.pw_uid != 0 and not found.st_mode & needed:
            raise UserError(
                f"the command is to run in {folder} as {who.pw_name}, who cannot enter {each}",
                hint='start hugewise in a folder that this account can enter, or name another one: user = "..."',
            )
