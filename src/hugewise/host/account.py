"""Whom workloads run as. Root is for turning knobs, not for running programs."""

from __future__ import annotations

import os
import pwd

from hugewise.errors import UserError
from hugewise.model.workload import RunsAs

__all__ = ["account"]


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
