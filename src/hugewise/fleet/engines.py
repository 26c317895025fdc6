"""The engine that an inventory names. One that is new is added here."""

from __future__ import annotations

from collections.abc import Callable

from hugewise.errors import UserError
from hugewise.fleet.engine import Engine
from hugewise.fleet.inventory import Inventory
from hugewise.fleet.ssh import SshEngine

__all__ = ["engine_of"]


def engine_of(inventory: Inventory, fleet: str, tell: Callable[[str], None]) -> Engine:
    """Not connected yet; `fleet` is the identity of the fleet, and `tell` hears what a person should know. Raises
    UserError where it is not there, such as without the extra that it needs.
    """
    if inventory.fleet.engine == "ssh":
        return SshEngine(inventory)
    if inventory.fleet.engine == "dask":
        from hugewise.fleet.dask.engine import DaskEngine  # noqa: PLC0415  (only where it is asked for)
        from hugewise.fleet.dask.starting import starting_over_ssh  # noqa: PLC0415

        return DaskEngine(inventory, fleet, starting_over_ssh(inventory), tell)
    raise UserError(
        f"{inventory.file}: fleet.engine = {inventory.fleet.engine!r}: this hugewise has no such engine",
        hint='write engine = "ssh", or "dask"',
    )
