"""Dask's scheduler, as a child of the coordinator: `python -m hugewise.fleet.dask.scheduler`.

It reads its identity and address from standard input, prints its address, and ends with standard input. A host may
register its own worker and report on it, and gives no orders.
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
from hugewise.fleet.dask import settings
from hugewise.fleet.dask.settings import Identity
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
"""Handlers that a host may call, with the arguments allowed: other arguments of Dask's, such as another host's
resource, are refused.
"""
_STREAM: Final = ("task-finished", "task-erred", "release-worker-data", "worker-status-change", "keep-alive")
"""Messages that a host may send on its worker's connection."""


class SchedulerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the scheduler: `port` None is any free one."""

    identity: Identity
    address: str
    port: int | None = None


_SETTINGS = msgspec.json.Decoder(SchedulerSettings)


def _scheduler(config: SchedulerSettings) -> Any:
    distributed = importlib.import_module("distributed")

    class FleetScheduler(distributed.Scheduler):  # type: ignore[misc, name-defined]
        """Dask's, with the operations of a fleet, and without a server for browsers."""

        def __init__(self) -> None:
            super().__init__(
                host=config.address,
                port=config.port or 0,
                protocol="tls",
                security=settings.security(config.identity),
                dashboard=False,
            )
            kept = {name: (self.handlers[name], "coordinator") for name in _COORDINATOR if name in self.handlers}
            kept |= {name: (self.handlers[name], "host") for name in _HOST}
            kept["hosts"] = (self._hosts, "coordinator")
            self.handlers.clear()
            self.handlers.update({name: _for_side(side, function, name) for name, (function, side) in kept.items()})

        def start_http_server(self, *_: object, **__: object) -> None: ...

        async def handle_stream(self, comm: Any, extra: dict[str, Any] | None = None) -> None:
            # Dask believes the worker that a message names; here each connection speaks for its own worker alone
            own = "worker" in (extra or {})
            await super().handle_stream(_WorkerComm(comm) if own else comm, extra)

        def _hosts(self) -> list[str]:
            return [str(worker.name) for worker in self.workers.values()]

    return FleetScheduler()


def _for_side(side: str, function: Callable[..., Any], name: str) -> Callable[..., Any]:
    # A host speaks only for itself.

    async def handled(comm: Any, **asked: Any) -> Any:
        certificate = comm.extra_info.get("peercert")
        issued = settings.issued_to(certificate)
        if issued is None or issued[0] != side:
            raise PermissionError(f"{name} is not for {issued}")
        if side == "host":
            asked = {key: asked[key] for key in _HOST[name] if key in asked}
            _check_sender(issued[1], certificate, asked)
        call = function(comm, **asked) if _takes_comm(function) else function(**asked)
        return await call if asyncio.iscoroutine(call) else call

    return handled


def _check_sender(host: str, certificate: Any, asked: dict[str, Any]) -> None:
    mine = settings.resource(host)
    address = importlib.import_module("distributed.comm").get_address_host(str(asked.get("address")))
    if ip_address(address) not in [ip_address(value) for _, value in certificate.get("subjectAltName", ())]:
        raise PermissionError(f"{host} is not at {address}")
    if asked.get("name", host) != host or asked.get("resources", mine) != mine:
        raise PermissionError(f"{host} is not {asked.get('name')}")


class _WorkerComm:
    def __init__(self, comm: Any) -> None:
        self._comm = comm

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    async def read(self) -> Any:
        """Return the next messages. Raises what the connection raises."""
        messages = await self._comm.read()
        return [_own_message(message) for message in (messages if isinstance(messages, tuple | list) else (messages,))]


def _own_message(message: Any) -> Any:
    if not isinstance(message, dict):
        return message
    if message.get("op") not in (*_STREAM, "close-stream"):
        return {"op": "keep-alive"}
    return {key: value for key, value in message.items() if key not in ("worker", "client")}


def _takes_comm(function: Callable[..., Any]) -> bool:
    core = importlib.import_module("distributed.core")
    return bool(core._expects_comm(function))


def main() -> int:
    """Be the scheduler until standard input ends."""
    line = sys.stdin.buffer.readline()
    try:
        config = reading.decoded(_SETTINGS, line)
        settings.load()
        importlib.import_module(settings.TASK[0])
        settings.guard(settings.FROM_COORDINATOR)
        asyncio.run(_serve(config))
    except (HugewiseError, OSError, reading.UnreadableError) as error:
        say(f"error {error}")
        return 1
    return 0


async def _serve(config: SchedulerSettings) -> None:
    made = await _scheduler(config)
    threading.Thread(target=_end_with_coordinator, daemon=True).start()
    say(f"at {made.address}")
    await made.finished()


def _end_with_coordinator() -> None:
    # nothing is kept here: the hosts' workers see that the scheduler is gone, and end as well
    while sys.stdin.buffer.read(4096):
        pass
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
