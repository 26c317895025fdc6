"""Dask distributed as the engine of a fleet; a worker is started over the caller's own ssh, with its keys on standard
input.
"""

from __future__ import annotations

import importlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Self

import msgspec

from hugewise import reading
from hugewise.errors import HostLostError, HugewiseError
from hugewise.fleet import protocol
from hugewise.fleet.dask import settings, task
from hugewise.fleet.dask.scheduler import SchedulerSettings
from hugewise.fleet.dask.settings import Authority, Identity
from hugewise.fleet.dask.worker import WorkerSettings
from hugewise.fleet.engine import over_ssh
from hugewise.fleet.inventory import HostEntry, Inventory
from hugewise.fleet.protocol import HostAnswer, HostOrder
from hugewise.visible import printable

_MODULE: Final = "hugewise.fleet.dask.scheduler"


class SchedulerChild:
    """Started, and at `address` (tls://...) when this returns. Raises HugewiseError where it is not."""

    def __init__(self, identity: Identity, address: str, port: int | None) -> None:
        self._running = subprocess.Popen(
            [sys.executable, "-P", "-m", _MODULE],  # not from the coordinator's folder
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd="/",
            start_new_session=True,
        )
        scheduler_settings = SchedulerSettings(identity=identity, address=address, port=port)
        assert self._running.stdin is not None and self._running.stdout is not None
        with suppress(OSError):  # it has ended: its output tells why
            self._running.stdin.write(msgspec.json.encode(scheduler_settings) + b"\n")
            self._running.stdin.flush()
        first_line = self._running.stdout.readline().decode(errors="replace").strip()
        word, _, rest = first_line.partition(" ")
        if word != "at":
            self.end()
            raise HugewiseError(
                f"Dask's scheduler cannot listen at {address}{'' if port is None else f' port {port}'}:"
                f" {rest or 'it ended without a word'}",
                hint="[fleet] address is one of this machine's own, and port a free one",
            )
        self.address = rest

    @property
    def pid(self) -> int:
        return self._running.pid

    def ended(self) -> str | None:
        status = self._running.poll()
        if status is None:
            return None
        return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"

    def end(self) -> None:
        self._running.kill()
        self._running.wait()
        for pipe in (self._running.stdin, self._running.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


StartWorker = Callable[[HostEntry, bytes], None]
"""Have `hugewise fleet work` on a host, with these bytes as its standard input, and return when it says `registered`.

Raises HostLostError where the host is not reached, HugewiseError with what it said where it did not.
"""

_LOOK_S: Final = 1.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 2.0, 60.0
_SILENCES: Final = 2  # orders without an answer, after which another worker is started
_STARTING: Final = 16  # workers at a time


class DaskEngine:
    """Engine with a scheduler as a child; `start` starts a worker where none is registered, `tell` hears what ended."""

    def __init__(
        self, inventory: Inventory, fleet: str, start: StartWorker, tell: Callable[[str], None] = lambda _: None
    ) -> None:
        self._inventory, self._fleet, self._start, self._tell = inventory, fleet, start, tell
        self._hosts = {host.name: _WorkerState(host) for host in inventory.host}
        self._present: frozenset[str] = frozenset()
        self._over = threading.Event()
        self._starting = threading.BoundedSemaphore(_STARTING)
        self._watching: threading.Thread | None = None
        self._child: SchedulerChild | None = None
        self._client: Any = None

    def __enter__(self) -> Self:
        settings.load()
        settings.guard(settings.FROM_SCHEDULER)
        assert self._inventory.fleet.address is not None
        self._authority = Authority(self._fleet)
        try:
            self._connect()
            for thread in [self._begin(host) for host in self._hosts.values()]:
                thread.join()
            self._look()
            self._watching = threading.Thread(target=self._watch, name="watching-workers", daemon=True)
            self._watching.start()
        except BaseException:  # also for Ctrl-C, while hosts are being reached
            self._over.set()
            self._disconnect()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._watching is not None:
            self._watching.join(10)
        self._disconnect()

    @property
    def scheduler(self) -> int | None:
        return None if self._child is None else self._child.pid

    def why(self, host: str) -> str:
        """Return why a host has no worker; empty where that is unknown, or where it has one."""
        return self._hosts[host].told

    def present(self) -> frozenset[str]:
        return self._present

    def call(self, host: str, order: HostOrder, timeout: float = 60.0) -> HostAnswer:
        supervised = self._hosts[host]
        client = self._client
        if client is None or host not in self._present:
            why = f": {supervised.told}" if supervised.told else ""
            raise HostLostError(f"{host}: no worker is registered{why}", hint=supervised.hint)
        asked = settings.with_nonce(protocol.encode(order))
        try:
            answer = settings.verified_answer(supervised.seal, asked, self._answer(client, host, asked, timeout))
        except TimeoutError:
            supervised.missed_answer(time.monotonic())
            raise HostLostError(f"{host} gave no answer within {timeout:g} s") from None
        supervised.missed_answers = 0
        if answer is None:
            raise HugewiseError(f"{host}: what came back is not this host's answer: another one may have made it")
        try:
            return protocol.decode_answer(answer)
        except reading.UnreadableError as error:
            raise HugewiseError(f"{host}: what it answered is no answer: {error}") from None

    def _answer(self, client: Any, host: str, order: bytes, timeout: float) -> bytes:
        future = None
        try:
            future = client.submit(task.obey, order, resources=settings.resource(host), retries=0, pure=False)
            result = future.result(timeout)
        except TimeoutError:
            raise
        except Exception as error:  # Dask's own, and whatever else a worker may raise: it is no answer
            raise HostLostError(f"{host}: {_why(error)}") from None
        finally:
            if future is not None:
                with suppress(Exception):
                    future.release()
        if not isinstance(result, bytes):
            raise HugewiseError(f"{host}: what it answered is no answer: {type(result).__name__}")
        return result

    # -- the scheduler

    def _connect(self) -> None:
        address = self._inventory.fleet.address
        assert address is not None
        self._child = SchedulerChild(self._authority.scheduler(address), address, self._inventory.fleet.port)
        client = importlib.import_module("distributed").Client
        client._default_event_handlers = {}  # a host's words are no lines of the coordinator's
        try:
            self._client = client(
                self._child.address,
                security=settings.security(self._authority.coordinator(address)),
                set_as_default=False,
                direct_to_workers=False,
                timeout=20,
            )
        except (OSError, TimeoutError) as error:
            self._child.end()
            raise HugewiseError(f"Dask's scheduler at {self._child.address} cannot be reached: {error}") from None

    def _disconnect(self) -> None:
        self._present = frozenset()
        client, self._client = self._client, None
        if client is not None:
            with suppress(Exception):  # its scheduler is gone
                client.close(2)
        if self._child is not None:
            self._child.end()

    # -- workers

    def _watch(self) -> None:
        while not self._over.wait(_LOOK_S):
            if self._child is None or (ended := self._child.ended()) is not None:
                self._again("it could not be started" if self._child is None else ended)
                continue
            self._look()
            for host in self._hosts.values():
                gone = host.entry.name not in self._present or host.missed_answers >= _SILENCES
                if gone and host.due(time.monotonic()):
                    self._begin(host)

    def _again(self, why: str | None) -> None:
        self._tell(f"Dask's scheduler ended ({why}); a new one is started, and the runs on the hosts go on meanwhile")
        self._disconnect()
        self._child = None
        for host in self._hosts.values():
            host.reset()
        try:
            self._connect()
        except HugewiseError as error:
            self._tell(error.message)

    def _look(self) -> None:
        client = self._client
        try:
            registered = frozenset(client.sync(client.scheduler.hosts, callback_timeout=20))
        except Exception:  # the scheduler is gone: `_watch` sees why
            self._present = frozenset()
            return
        for name in self._present - registered:
            if name in self._hosts:
                self._tell(f"{name}: its worker is gone; its run goes on, and another worker is started")
                self._hosts[name].reset()
        self._present = registered & self._hosts.keys()

    def _begin(self, host: _WorkerState) -> threading.Thread:
        thread = threading.Thread(target=self._supervise, args=(host,), name=f"starting-{host.entry.name}", daemon=True)
        thread.start()
        return thread

    def _supervise(self, host: _WorkerState) -> None:
        try:
            with self._starting:
                child = self._child
                if child is None or self._over.is_set():
                    return
                self._start(host.entry, self._told(host.entry, child.address))
                host.started()
        except HugewiseError as error:
            host.failed(error, time.monotonic())
        finally:
            host.busy = False

    def _told(self, host: HostEntry, scheduler: str) -> bytes:
        assert host.address is not None  # `inventory` has seen to it
        worker_settings = WorkerSettings(
            identity=self._authority.host(host.name, host.address),
            seal=self._hosts[host.name].seal,
            fleet=self._fleet,
            host=host.name,
            scheduler=scheduler,
            address=host.address,
            installation=self._inventory.installation(host),
            spool=self._inventory.spool(host),
            cpu=self._inventory.fleet.housekeeping_cpu,
            root=host.root,
        )
        return msgspec.json.encode(worker_settings) + b"\n"


def _why(error: Exception) -> str:
    kind = type(error).__name__
    if kind == "KilledWorker":
        return "its worker was lost while it had an order"
    if kind in ("CancelledError", "FutureCancelledError", "CommClosedError"):
        return "Dask's scheduler was lost while it had an order"
    return f"an order came to nothing ({kind}: {printable(str(error).partition(chr(10))[0])[:300]})"


class _WorkerState:
    def __init__(self, entry: HostEntry) -> None:
        self.entry = entry
        self.seal = settings.new_key()
        self.missed_answers = 0
        self.busy = True  # the creator asks for the first start
        self.told = ""
        self.hint: str | None = None
        self._next, self._pause = 0.0, _FIRST_PAUSE_S

    def due(self, now: float) -> bool:
        if self.busy or now < self._next:
            return False
        self.busy = True
        return True

    def reset(self) -> None:
        self._next, self._pause, self.missed_answers = 0.0, _FIRST_PAUSE_S, 0

    def missed_answer(self, now: float) -> None:
        # the worker of a host that never answers is replaced
        self.missed_answers += 1
        if self.missed_answers == _SILENCES:
            self._next = max(self._next, now)

    def started(self) -> None:
        self.told, self.hint = "", None
        self._next, self._pause = time.monotonic() + _FIRST_PAUSE_S, _FIRST_PAUSE_S
        self.missed_answers = 0

    def failed(self, error: HugewiseError, now: float) -> None:
        self.told, self.hint = error.message, error.hint
        self._next = now + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_S)


_PATIENCE_S = 120.0
_MOST = 1 << 16


def ssh_worker_starter(inventory: Inventory) -> StartWorker:
    """Return the function that starts the workers of an inventory's hosts over ssh."""

    def start(host: HostEntry, worker_settings: bytes) -> None:
        words = [f"{inventory.installation(host)}/bin/hugewise", "fleet", "work"]
        output = over_ssh(host, words, worker_settings, timeout=_PATIENCE_S, most=_MOST)
        if output.status:
            message = output.stdout.decode(errors="replace").strip() or output.why
            hint = "install it there: hugewise fleet provision, or name its folder with installation = ..."
            raise HugewiseError(f"its worker cannot be started: {printable(message)[:500]}", hint=hint)

    return start
