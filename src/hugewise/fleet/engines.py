"""The engine that an inventory names. One that is new is added here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hugewise.fleet.engine import Engine
from hugewise.fleet.inventory import Inventory
from hugewise.fleet.local import LocalEngine
from hugewise.fleet.place import HostPlace, usual_spool
from hugewise.fleet.ssh import SshEngine

__all__ = ["engine_of"]


def engine_of(inventory: Inventory, fleet: str, tell: Callable[[str], None]) -> Engine:
    """Not connected yet; `fleet` is the identity of the fleet, and `tell` hears what a person should know."""
    if inventory.fleet.engine == "ssh":
        return SshEngine(inventory)
    if inventory.fleet.engine == "local":
        (host,) = inventory.host
        spool = inventory.spool(host)
        return LocalEngine(host.name, HostPlace(usual_spool() if spool is None else Path(spool)))
    if inventory.fleet.engine == "dask":
        from hugewise.fleet.dask.engine import DaskEngine  # noqa: PLC0415  (only where it is asked for)
        from hugewise.fleet.dask.starting import starting_over_ssh  # noqa: PLC0415

        return DaskEngine(inventory, fleet, starting_over_ssh(inventory), tell)
    from hugewise.fleet.slurm import SlurmEngine  # noqa: PLC0415

    return SlurmEngine(inventory)
