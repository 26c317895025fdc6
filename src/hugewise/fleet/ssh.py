"""The engine of a fleet that has ssh and nothing else: each order is a command over the caller's own ssh.

Its configuration, agents, keys and jump hosts are the caller's. It never asks: what would need a password fails. ssh
hands words to a shell on the host, joined by blanks: they are quoted, and consist of what an inventory may hold.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from hugewise import reading
from hugewise.errors import HostLostError, HugewiseError
from hugewise.fleet import orders
from hugewise.fleet.delivery import command
from hugewise.fleet.entries import HostEntry
from hugewise.fleet.inventory import Inventory
from hugewise.fleet.orders import MOST_MESSAGE, HostAnswer, HostOrder
from hugewise.fleet.programs import Talked, talked
from hugewise.machine.ssh import ssh_command

__all__ = ["SshEngine", "over_ssh"]

_LOST = 255  # ssh's own exit status: there was no connection, or it broke
_CONNECT_S = _ALIVE_S = 15


def over_ssh(
    entry: HostEntry, words: Sequence[str], data: bytes = b"", *, timeout: float, most: int = MOST_MESSAGE
) -> Talked:
    """What a command says on the host. Raises HostLostError where there is no connection, UserError where there is no
    ssh, HugewiseError.
    """
    assert entry.ssh is not None  # the inventory sees to it
    asked = ssh_command([entry.ssh], shlex.join(words), connect_s=_CONNECT_S, alive_s=_ALIVE_S)
    found = talked(asked, data, timeout=timeout, most=most)
    if found.status == _LOST:
        raise HostLostError(f"{entry.name}: ssh {entry.ssh}: {found.why}", hint=f"try: ssh {entry.ssh} true")
    return found


class SshEngine:
    """Asks by a command each; nothing of it stays on a host."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._entries = {entry.name: entry for entry in inventory.host}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is held."""

    def present(self) -> frozenset[str]:
        """All of them: that one is not there is only known by asking."""
        return frozenset(self._entries)

    def call(self, host: str, order: HostOrder, timeout: float = 60.0) -> HostAnswer:
        """See `engine.Engine`."""
        entry, inventory = self._entries[host], self._inventory
        words = command(inventory.installation(entry), inventory.spool(entry), root=entry.root)
        found = over_ssh(entry, words, orders.encode(order), timeout=timeout)
        try:
            return orders.decode_answer(found.said)
        except reading.UnreadableError as error:
            why = found.why if found.status else f"what it said is no answer: {error}"
            hint = "install it there: hugewise fleet provision, or name its folder with installation = ..."
            raise HugewiseError(f"{host}: {' '.join(words[:5])}: {why}", hint=hint) from None
