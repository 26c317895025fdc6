"""The engine that an inventory names. One that is new is added here."""

from __future__ import annotations

from hugewise.errors import UserError
from hugewise.fleet.engine import Engine
from hugewise.fleet.inventory import Inventory
from hugewise.fleet.ssh import SshEngine

__all__ = ["engine_of"]


def engine_of(inventory: Inventory) -> Engine:
    """Not connected yet. Raises UserError where it is not there, such as without the extra that it needs."""
    if inventory.fleet.engine == "ssh":
        return SshEngine(inventory)
    raise UserError(
        f"{inventory.file}: fleet.engine = {inventory.fleet.engine!r}: this hugewise has no such engine",
        hint='write engine = "ssh"',
    )
