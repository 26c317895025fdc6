"""Whom QEMU runs as on this host, and the private folder that it is given there."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hugewise.files import storing
from hugewise.guests.boot import Hosting
from hugewise.host.account import account
from hugewise.host.ledger import JournalRecord, Scratched
from hugewise.host.scratch import Scratch, discard

__all__ = ["for_one_boot", "private_folder", "qemu_account"]

_PLACE = Path("/dev/shm")  # noqa: S108  (a short path for sockets; the folder is private)


def qemu_account(*, privileged: bool) -> pwd.struct_passwd | None:
    """Whom QEMU runs as: nobody under root. None: as the caller. Raises UserError."""
    return account(None, "unprivileged", privileged=privileged)


def private_folder(who: pwd.struct_passwd | None, note: Callable[[JournalRecord], None]) -> Scratch:
    """This process's folder for sockets and for what `who` is to read; `note` hears of it before. Raises UserError."""
    uid, gid = (None, None) if who is None else (who.pw_uid, who.pw_gid)
    return Scratch.open(_PLACE, uid, gid, lambda path: note(Scratched(path)))


@contextmanager
def for_one_boot() -> Iterator[Hosting]:
    """Where a guest is booted that belongs to no attempt, by the same account as attempts; no session is open then.

    Everything goes with it; what a killed process left, the next one removes. Raises UserError, StorageError.
    """
    who = qemu_account(privileged=os.geteuid() == 0)
    place = private_folder(who, lambda _: None)
    try:
        outputs = place.path / "outputs"
        with storing(str(outputs)):
            outputs.mkdir(mode=0o700)
        yield Hosting(outputs=outputs, run=place.folder("run"), account=who)
    finally:
        discard(str(place.path))
