"""The page settings that a host has when no run of hugewise is under way: what a plan asks that nobody runs yet.

A run turns settings for an attempt and puts them back at its end (`host.journal`). Whoever plans meanwhile, or after a
run was killed, would see what it has turned: another arm's `never`. Its journal says what there was before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from hugewise.errors import UserError
from hugewise.host import knob
from hugewise.host.journal import JOURNAL, ledger_of
from hugewise.host.lock import boot_id
from hugewise.model.host import Host

__all__ = ["AtRest", "at_rest"]


class AtRest:
    """A `Host` whose knobs read as they will when they are put back. What others turned since reads as it is.

    turned   path -> the value that is put back, and the values there that are a run's own (`ledger.Ledger`)
    """

    def __init__(self, host: Host, turned: Mapping[str, tuple[str, tuple[str, ...]]]) -> None:
        self.name = host.name
        self.turned = turned
        self._host = host

    def privileged(self) -> bool:
        """As of the host."""
        return self._host.privileged()

    def read(self, path: str) -> str:
        """The file's text; of a knob that a run has turned, with the value that is put back."""
        text = self._host.read(path)
        original, ours = self.turned.get(path, ("", ()))
        if not ours or knob.read(self._host, path) not in ours:
            return text
        if "[" not in text:
            return original
        words = text.replace("[", "").replace("]", "")
        return re.sub(rf"(?<!\S){re.escape(original)}(?!\S)", f"[{original}]", words, count=1)

    def write(self, path: str, text: str) -> None:
        """Nothing that only plans writes. Raises PermissionError."""
        raise PermissionError(f"{path}: a plan turns nothing")

    def writable(self, path: str) -> bool:
        """As of the host."""
        return self._host.writable(path)

    def names(self, path: str) -> list[str]:
        """As of the host."""
        return self._host.names(path)


def at_rest(host: Host, path: Path = JOURNAL) -> Host:
    """`host` as it is when the run whose journal is open has put everything back; `host` itself where there is none, or
    its journal cannot be read.
    """
    try:
        ledger = ledger_of(path.read_bytes(), path)
    except (OSError, UserError):
        return host
    owner = ledger.owner
    if owner is None or ledger.closed or owner.boot_id != boot_id(host) or not ledger.turned:
        return host
    return AtRest(host, ledger.turned)
