"""The one function that Dask ever carries: what a worker does with an order.

Its scheduler loads this module too, to find it: it imports nothing of Dask or of the machine.
"""

from __future__ import annotations

from collections.abc import Callable

_obeyed: list[Callable[[bytes], bytes]] = []


def set_worker(function: Callable[[bytes], bytes]) -> None:
    """In a worker: who answers orders from now on."""
    _obeyed[:] = [function]


def obey(order: bytes) -> bytes:
    """The answer to an order, both as `fleet.protocol` encodes them. Raises RuntimeError where this is no worker."""
    if not _obeyed:
        raise RuntimeError("this process obeys no orders")
    return _obeyed[0](order)
