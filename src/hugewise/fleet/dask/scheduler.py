"""Dask's scheduler, as a child of the coordinator: `python -m hugewise.fleet.dask.scheduler`.

It is told on standard input who it is and where to listen, says there its address, and ends when standard input does:
with the coordinator, however that ended. It serves what a fleet needs and nothing else that Dask's can do; a
host may register its own worker and tell of it, and gives no orders.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
import threading
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any, Final

import msgspec

from hugewise import reading
from hugewise.errors import HugewiseError
from hugewise.fleet import certificates
from hugewise.fleet.certificates import Identity
from hugewise.fleet.dask import settings
from hugewise.visible import say

# Operations of a connection, and whose: all others that Dask's scheduler knows are not there.
_COORDINATOR: Final = ("register-client", "gather", "identity", "hosts")
_HOST: Final = {
    "register-worker": (
        *("address", "status", "server_id", "nthreads", "name", "now", "resources", "memory_limit", "metrics", "pid"),
        *("services", "local_directory", "versions", "nanny", "extra", "stimulus_id"),
    ),
    "unregister": ("address", "stimulus_id"),
    "heartbeat_worker": ("address", "now", "metrics"),
}
"""With what a host may say in each: what else Dask's takes, such as another host's resource, is not heard."""
_STREAM: Final = ("task-finished", "task-erred", "release-worker-data", "worker-status-change", "keep-alive")
"""What a host says on the connection that its worker keeps."""


class SchedulerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What it is told: `port` None is any free one."""

    identity: Identity
    address: str
    port: int | None = None


_SETTINGS = msgspec.json.Decoder(SchedulerSettings)


def _scheduler(told: SchedulerSettings) -> Any:
    """The scheduler's class, made when Dask is there."""
    distributed = importlib.import_module("distributed")

    class FleetScheduler(distributed.Scheduler):  # type: ignore[misc, name-defined]
        """Dask's, with the operations of a fleet, and without a server for browsers."""

        def __init__(self) -> None:
            super().__init__(
                host=told.address,
                port=told.port or 0,
                protocol="tls",
                security=settings.security(told.identity),
                dashboard=False,
            )
            kept = {name: (self.handlers[name], "coordinator") for name in _COORDINATOR if name in self.handlers}
            kept |= {name: (self.handlers[name], "host") for name in _HOST}
            kept["hosts"] = (self._hosts, "coordinator")
            self.handlers.clear()
            self.handlers.update({name: _only(side, function, name) for name, (function, side) in kept.items()})

        def start_http_server(self, *_: object, **__: object) -> None:
            """None: it would listen too."""

        async def handle_stream(self, comm: Any, extra: dict[str, Any] | None = None) -> None:
            """What a worker says on its connection is said of itself alone: Dask believes whom a message names."""
            own = "worker" in (extra or {})
            await super().handle_stream(_OfItself(comm) if own else comm, extra)

        def _hosts(self) -> list[str]:
            """The hosts whose workers are registered."""
            return [str(each.name) for each in self.workers.values()]

    return FleetScheduler()


def _only(side: str, function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The operation, for the connections of that side alone; a host speaks of itself."""

    async def handled(comm: Any, **asked: Any) -> Any:
        certificate = comm.extra_info.get("peercert")
        issued = certificates.issued_to(certificate)
        if issued is None or issued[0] != side:
            raise PermissionError(f"{name} is not for {issued}")
        if side == "host":
            asked = {each: asked[each] for each in _HOST[name] if each in asked}
            _of_itself(issued[1], certificate, asked)
        call = function(comm, **asked) if _takes_comm(function) else function(**asked)
        return await call if asyncio.iscoroutine(call) else call

    return handled


def _of_itself(host: str, certificate: Any, asked: dict[str, Any]) -> None:
    """Raise PermissionError, or ValueError, where a host speaks of another one."""
    mine = settings.resource(host)
    address = importlib.import_module("distributed.comm").get_address_host(str(asked.get("address")))
    if ip_address(address) not in [ip_address(value) for _, value in certificate.get("subjectAltName", ())]:
        raise PermissionError(f"{host} is not at {address}")
    if asked.get("name", host) != host or asked.get("resources", mine) != mine:
        raise PermissionError(f"{host} is not {asked.get('name')}")


class _OfItself:
    """A worker's connection, from which nothing is read that names somebody else, or is not a worker's to say."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    async def read(self) -> Any:
        """The next messages. Raises what the connection raises."""
        said = await self._comm.read()
        return [_own(each) for each in (said if isinstance(said, tuple | list) else (said,))]


def _own(said: Any) -> Any:
    if not isinstance(said, dict):
        return said
    if said.get("op") not in (*_STREAM, "close-stream"):
        return {"op": "keep-alive"}
    return {key: value for key, value in said.items() if key not in ("worker", "client")}


def _takes_comm(function: Callable[..., Any]) -> bool:
    core = importlib.import_module("distributed.core")
    return bool(core._expects_comm(function))


def main() -> int:
    """Be the scheduler until standard input ends."""
    line = sys.stdin.buffer.readline()
    try:
        told = reading.decoded(_SETTINGS, line)
        settings.load()
        importlib.import_module(settings.TASK[0])
        settings.guard(settings.FROM_COORDINATOR)
        asyncio.run(_serve(told))
    except (HugewiseError, OSError, reading.UnreadableError) as error:
        say(f"error {error}")
        return 1
    return 0


async def _serve(told: SchedulerSettings) -> None:
    made = await _scheduler(told)
    threading.Thread(target=_end_with_coordinator, daemon=True).start()
    say(f"at {made.address}")
    await made.finished()


def _end_with_coordinator() -> None:
    """Nothing is kept here: the hosts' workers see that it is gone, and end as well."""
    while sys.stdin.buffer.read(4096):
        pass
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
