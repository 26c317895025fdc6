"""Starting a worker on a host, over the caller's own ssh: its keys go in on standard input, and nothing else does."""

from __future__ import annotations

from hugewise.errors import HugewiseError
from hugewise.fleet.dask.engine import StartWorker
from hugewise.fleet.entries import HostEntry
from hugewise.fleet.inventory import Inventory
from hugewise.fleet.ssh import over_ssh
from hugewise.visible import printable

__all__ = ["starting_over_ssh"]

_PATIENCE_S = 120.0
_MOST = 1 << 16


def starting_over_ssh(inventory: Inventory) -> StartWorker:
    """What starts the workers of the hosts in an inventory."""

    def start(host: HostEntry, told: bytes) -> None:
        words = [f"{inventory.installation(host)}/bin/hugewise", "fleet", "work"]
        found = over_ssh(host, words, told, timeout=_PATIENCE_S, most=_MOST)
        if found.status:
            said = found.said.decode(errors="replace").strip() or found.why
            hint = "install it there: hugewise fleet provision, or name its folder with installation = ..."
            raise HugewiseError(f"its worker cannot be started: {printable(said)[:500]}", hint=hint)

    return start
