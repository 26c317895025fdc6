"""The worker on a host: what `hugewise fleet work` becomes when it was told, on standard input, whose it is.

It leaves the terminal and the ssh session, so that a link that is cut does not end it; it ends when its scheduler is
gone, and the coordinator starts another one. A new one of the same fleet ends an earlier one first. It keeps nothing:
orders are obeyed in the spool, by keepers that are processes of their own.

It is bound to the housekeeping CPU, but for the orders themselves, since a keeper inherits that.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from hugewise import beneath, reading
from hugewise.errors import HugewiseError
from hugewise.files import storing, write_whole
from hugewise.fleet.certificates import Identity
from hugewise.fleet.dask import settings
from hugewise.fleet.dask.task import set_worker
from hugewise.fleet.engine import delivered
from hugewise.fleet.host_agent import have_spool
from hugewise.fleet.protocol import usual_spool
from hugewise.fleet.sigcont_watchdog import start_watchdog
from hugewise.fleet.spool import WorkerAt
from hugewise.fleet.worker import process
from hugewise.visible import say

_MOST: Final = 1 << 20  # bytes of what it is told
_CONNECTING_S: Final = 30.0
_RARELY_MS: Final = 60_000.0


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What it is told. `host` is its name in the inventory, `scheduler` an address of Dask's (tls://...).

    seal           the key of this host's answers, which no other host has (`settings`)
    address        of this host: it listens there alone
    installation   the folder of hugewise here
    spool          None: what is usual for the account
    cpu            that it is bound to; None: any
    root           whether orders are obeyed as root, by `sudo -n` where it is not
    """

    identity: Identity
    seal: str
    fleet: str
    host: str
    scheduler: str
    address: str
    installation: str
    spool: str | None = None
    cpu: int | None = None
    root: bool = False


_SETTINGS = msgspec.json.Decoder(WorkerSettings)


def main() -> int:
    """Start the worker, and return when it is registered: 0; 1 with the reason on standard output where it is not."""
    try:
        told = reading.decoded(_SETTINGS, sys.stdin.buffer.readline(_MOST))
    except reading.UnreadableError as error:
        say(f"what this worker is to be cannot be read: {error}")
        return 1
    hears, says = os.pipe()
    if os.fork() == 0:
        os.close(hears)
        _detached(told, says)
    os.close(says)
    with os.fdopen(hears, "rb") as pipe:
        said = pipe.read(4000).decode(errors="replace")
    say(said or "it ended without a word")
    return 0 if said.startswith("registered") else 1


def _detached(told: WorkerSettings, says: int) -> None:
    """In the child: away from the terminal and from ssh's pipes, for good."""
    status = 1
    try:
        os.setsid()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with Path(os.devnull).open("r+b") as nothing:
            for number in range(3):
                os.dup2(nothing.fileno(), number)
        with _alone(told) as folder:
            settings.load()
            asyncio.run(_work(told, folder, says))
        status = 0
    except HugewiseError as error:
        _say(says, f"{error.message} ({error.hint})" if error.hint else error.message)
    except BaseException as error:  # as at the end of any program
        _say(says, f"{type(error).__name__}: {error}")
    finally:
        os._exit(status)


def _say(pipe: int, text: str) -> None:
    with suppress(OSError):
        os.write(pipe, text.encode()[:4000])


def _bound(cpu: int | None) -> None:
    """Have all threads that there are, and so those that they start, on that CPU. One that is not there, or not ours,
    changes nothing: then it is as quiet as it is.
    """
    if cpu is None:
        return
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            os.sched_setaffinity(int(thread.name), {cpu})


def own_place(told: WorkerSettings) -> Path:
    """Where the worker has its own folder: in the spool; where orders are obeyed as root that is root's alone, and it
    is where this account would have one.
    """
    return Path(told.spool) if told.spool and (not told.root or os.geteuid() == 0) else usual_spool()


@contextmanager
def _alone(told: WorkerSettings) -> Iterator[Path]:
    """The worker's own folder, for as long as it lives; an earlier worker of the fleet on this host is ended."""
    top = own_place(told)
    name = f".worker-{told.fleet}-{told.host}"
    folder, known = top / name, top / f"{name}.json"
    with storing(f"the spool {top}", "name a folder that this account can write: spool = ..."):
        have_spool(top)
        with suppress(reading.UnreadableError):
            earlier = reading.stored(known, WorkerAt)
            if process(earlier.pid) == earlier:
                os.kill(earlier.pid, signal.SIGKILL)  # also where it is stopped
        here = process(os.getpid())
        write_whole(known, msgspec.json.encode(here), 0o600)
        beneath.discard(folder)
        folder.mkdir(0o700)
    try:
        yield folder
    finally:
        with suppress(HugewiseError, OSError):
            beneath.discard(folder)
            if reading.stored(known, WorkerAt) == here:
                beneath.discard(known)


async def _work(told: WorkerSettings, folder: Path, says: int) -> None:
    """Be the worker until the scheduler is gone."""
    distributed = importlib.import_module("distributed")

    class QuietWorker(distributed.Worker):  # type: ignore[misc, name-defined]
        """Dask's, without a server for browsers, and with what it does by itself done once a minute."""

        def start_http_server(self, *_: object, **__: object) -> None:
            """None: it would listen too."""

        def start_periodic_callbacks(self) -> None:
            for each in self.periodic_callbacks.values():
                each.callback_time = max(each.callback_time, _RARELY_MS)
            super().start_periodic_callbacks()

        async def heartbeat(self) -> None:
            await super().heartbeat()
            self.periodic_callbacks["heartbeat"].callback_time = _RARELY_MS  # the scheduler asks for each half second

    everywhere = os.sched_getaffinity(0)
    set_worker(_obeying(told, everywhere))
    _bound(told.cpu)
    worker = QuietWorker(
        told.scheduler,
        name=told.host,
        host=told.address,
        protocol="tls",
        security=settings.security(told.identity),
        nthreads=1,
        resources=settings.resource(told.host),
        memory_limit=0,
        local_directory=str(folder),
        dashboard=False,
        death_timeout=_CONNECTING_S,
    )
    try:
        await worker
    except TimeoutError:
        raise HugewiseError(
            f"{told.host} cannot connect to {told.scheduler} within {_CONNECTING_S:.0f} s",
            hint="open that port of the coordinator for this host; [fleet] port fixes which it is",
        ) from None
    here = process(os.getpid())
    if here is not None:
        start_watchdog(here.pid, here.start)
    _say(says, "registered")
    os.close(says)
    await worker.finished()


def _obeying(told: WorkerSettings, everywhere: set[int]) -> Callable[[bytes], bytes]:
    """What is done with an order. The thread may be on any CPU meanwhile: what it starts may be, too."""

    def obey(order: bytes) -> bytes:
        bound = os.sched_getaffinity(0)
        os.sched_setaffinity(0, everywhere)
        try:
            answer = delivered(
                settings.opened(order),
                installation=told.installation,
                spool_folder=told.spool,
                root=told.root,
                worker=os.getpid(),
            )
            return settings.sealed(told.seal, order, answer)
        finally:
            os.sched_setaffinity(0, bound)

    return obey
