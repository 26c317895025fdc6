"""The one task that Dask carries: a worker's handling of an order. The scheduler loads this module too: it imports
nothing.
"""

from __future__ import annotations

from collections.abc import Callable

_obeyed: list[Callable[[bytes], bytes]] = []


def set_worker(function: Callable[[bytes], bytes]) -> None:
    """Set the function that answers orders in a worker."""
    _obeyed[:] = [function]


def obey(order: bytes) -> bytes:
    """Return the answer to an order, encoded as by `fleet.protocol`. Raises RuntimeError where this is no worker."""
    if not _obeyed:
        raise RuntimeError("this process obeys no orders")
    return _obeyed[0](order)
