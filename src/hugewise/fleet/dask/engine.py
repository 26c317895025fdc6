"""Dask distributed as the engine of a fleet: see the package for how it is set.

The process of Dask's scheduler, as the coordinator has it.

Starting a worker on a host, over the caller's own ssh: its keys go in on standard input, and nothing else does.
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
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from hugewise import reading
from hugewise.errors import HostLostError, HugewiseError
from hugewise.fleet import protocol
from hugewise.fleet.certificates import Authority, Identity
from hugewise.fleet.dask import settings, task
from hugewise.fleet.dask.scheduler import SchedulerSettings
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
            [sys.executable, "-P", "-m", _MODULE],  # of no folder that the coordinator is in
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd="/",
            start_new_session=True,
        )
        told = SchedulerSettings(identity=identity, address=address, port=port)
        assert self._running.stdin is not None and self._running.stdout is not None
        with suppress(OSError):  # it has ended: what it said tells why
            self._running.stdin.write(msgspec.json.encode(told) + b"\n")
            self._running.stdin.flush()
        said = self._running.stdout.readline().decode(errors="replace").strip()
        word, _, rest = said.partition(" ")
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
        """Its process."""
        return self._running.pid

    def ended(self) -> str | None:
        """How it ended; None while it lives."""
        status = self._running.poll()
        if status is None:
            return None
        return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"

    def end(self) -> None:
        """End it: it keeps nothing."""
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
    """`start` starts a worker on a host. `tell` hears what a person should know: a scheduler or a worker that was gone.

    The scheduler is a child, and workers are started where none is registered: at first, when one was killed, and when
    a link is there again.
    """

    def __init__(
        self, inventory: Inventory, fleet: str, start: StartWorker, tell: Callable[[str], None] = lambda _: None
    ) -> None:
        self._inventory, self._fleet, self._start, self._tell = inventory, fleet, start, tell
        self._hosts = {host.name: _Supervised(host) for host in inventory.host}
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
            for thread in [self._begin(each) for each in self._hosts.values()]:
                thread.join()
            self._look()
            self._watching = threading.Thread(target=self._watch, name="watching-workers", daemon=True)
            self._watching.start()
        except BaseException:  # also Ctrl-C, while hosts are being reached
            self._over.set()
            self._disconnect()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._watching is not None:
            self._watching.join(10)
        self._disconnect()

    @property
    def scheduler(self) -> int | None:
        """The process of the scheduler, where there is one."""
        return None if self._child is None else self._child.pid

    def why(self, host: str) -> str:
        """Why a host has no worker, as far as that is known; empty where it is not, or has one."""
        return self._hosts[host].told.removeprefix(": ")

    def present(self) -> frozenset[str]:
        """Hosts whose workers are registered."""
        return self._present

    def call(self, host: str, order: HostOrder, timeout: float = 60.0) -> HostAnswer:
        """One task for the host's resource; see `Engine.call`."""
        supervised = self._hosts[host]
        client = self._client
        if client is None or host not in self._present:
            raise HostLostError(f"{host}: no worker is registered{supervised.told}", hint=supervised.hint)
        asked = settings.seal_order(protocol.encode(order))
        try:
            answer = settings.checked(supervised.seal, asked, self._answer(client, host, asked, timeout))
        except TimeoutError:
            supervised.silent(time.monotonic())
            raise HostLostError(f"{host} gave no answer within {timeout:g} s") from None
        supervised.silences = 0
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
            found = future.result(timeout)
        except TimeoutError:
            raise
        except Exception as error:  # Dask's own, and whatever else a worker may raise: it is no answer
            raise HostLostError(f"{host}: {_why(error)}") from None
        finally:
            if future is not None:
                with suppress(Exception):
                    future.release()
        if not isinstance(found, bytes):
            raise HugewiseError(f"{host}: what it answered is no answer: {type(found).__name__}")
        return found

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
            with suppress(Exception):  # of one whose scheduler is gone
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
            for each in self._hosts.values():
                gone = each.entry.name not in self._present or each.silences >= _SILENCES
                if gone and each.due(time.monotonic()):
                    self._begin(each)

    def _again(self, why: str | None) -> None:
        """A new scheduler; the workers of the old one have ended by themselves."""
        self._tell(f"Dask's scheduler ended ({why}); a new one is started, and the runs on the hosts go on meanwhile")
        self._disconnect()
        self._child = None
        for each in self._hosts.values():
            each.anew()
        try:
            self._connect()
        except HugewiseError as error:
            self._tell(error.message)

    def _look(self) -> None:
        client = self._client
        try:
            found = frozenset(client.sync(client.scheduler.hosts, callback_timeout=20))
        except Exception:  # of a scheduler that is gone: `_watch` sees why
            self._present = frozenset()
            return
        for name in self._present - found:
            if name in self._hosts:
                self._tell(f"{name}: its worker is gone; its run goes on, and another worker is started")
                self._hosts[name].anew()
        self._present = found & self._hosts.keys()

    def _begin(self, host: _Supervised) -> threading.Thread:
        """Have its worker started, by a thread that nobody waits for when this is over."""
        thread = threading.Thread(target=self._supervise, args=(host,), name=f"starting-{host.entry.name}", daemon=True)
        thread.start()
        return thread

    def _supervise(self, host: _Supervised) -> None:
        """Start its worker; failures are kept, and tried again later."""
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
        told = WorkerSettings(
            identity=self._authority.host(host.name, host.address),
            seal=self._hosts[host.name].seal,
            fleet=self._fleet,
            host=host.name,
            scheduler=scheduler,
            address=host.address,
            installation=self._inventory.installation(host),
            spool=self._inventory.spool(host),
            cpu=self._inventory.cpu(host),
            root=host.root,
        )
        return msgspec.json.encode(told) + b"\n"


def _why(error: Exception) -> str:
    """In words, what Dask says of a task that came to nothing."""
    kind = type(error).__name__
    if kind == "KilledWorker":
        return "its worker was lost while it had an order"
    if kind in ("CancelledError", "FutureCancelledError", "CommClosedError"):
        return "Dask's scheduler was lost while it had an order"
    return f"an order came to nothing ({kind}: {printable(str(error).partition(chr(10))[0])[:300]})"


class _Supervised:
    """A host, and what came of starting its worker. `busy` while that is under way; `silences`: orders in a row that
    were not answered in time.
    """

    def __init__(self, entry: HostEntry) -> None:
        self.entry = entry
        self.seal = settings.key()
        self.silences = 0
        self.busy = True  # the first start is asked for by who makes this
        self.told = ""
        self.hint: str | None = None
        self._next, self._pause = 0.0, _FIRST_PAUSE_S

    def due(self, now: float) -> bool:
        """Whether it is to be started now; it is under way then."""
        if self.busy or now < self._next:
            return False
        self.busy = True
        return True

    def anew(self) -> None:
        """What was known of it is of no use any more."""
        self._next, self._pause, self.silences = 0.0, _FIRST_PAUSE_S, 0

    def silent(self, now: float) -> None:
        """An order was not answered in time: of one that never is, the worker is replaced"""
        self.silences += 1
        if self.silences == _SILENCES:
            self._next = max(self._next, now)

    def started(self) -> None:
        """Its worker is registered."""
        self.told, self.hint = "", None
        self._next, self._pause = time.monotonic() + _FIRST_PAUSE_S, _FIRST_PAUSE_S
        self.silences = 0

    def failed(self, error: HugewiseError, now: float) -> None:
        """It is not."""
        self.told, self.hint = f": {error.message}", error.hint
        self._next = now + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_S)


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
