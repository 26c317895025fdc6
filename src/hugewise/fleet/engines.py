"""The engine that an inventory names. One that is new is added here.

The engine of one host: this one. Orders are obeyed in this process, as a program of their own would.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from hugewise.fleet import host_agent
from hugewise.fleet.engine import Engine, SshEngine
from hugewise.fleet.inventory import Inventory
from hugewise.fleet.protocol import HostAnswer, HostOrder, HostPlace, decode_answer, encode, usual_spool


class LocalEngine:
    """Answers for the host that is called `name` in the inventory."""

    def __init__(self, name: str, place: HostPlace) -> None:
        self._name, self._place = name, place

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def present(self) -> frozenset[str]:
        return frozenset({self._name})

    def call(self, host: str, order: HostOrder, timeout: float = 60.0) -> HostAnswer:
        return decode_answer(host_agent.answered(encode(order), self._place))


def engine_of(inventory: Inventory, fleet: str, tell: Callable[[str], None]) -> Engine:
    """Not connected yet; `fleet` is the identity of the fleet, and `tell` hears what a person should know."""
    if inventory.fleet.engine == "ssh":
        return SshEngine(inventory)
    if inventory.fleet.engine == "local":
        (host,) = inventory.host
        spool = inventory.spool(host)
        return LocalEngine(host.name, HostPlace(usual_spool() if spool is None else Path(spool)))
    if inventory.fleet.engine == "dask":
        from hugewise.fleet.dask.engine import (  # noqa: PLC0415  (only where it is asked for)
            DaskEngine,
            starting_over_ssh,
        )

        return DaskEngine(inventory, fleet, starting_over_ssh(inventory), tell)
    from hugewise.fleet.slurm import SlurmEngine  # noqa: PLC0415

    return SlurmEngine(inventory)
