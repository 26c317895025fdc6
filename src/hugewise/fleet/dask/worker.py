"""Worker on a host: `hugewise fleet work` becomes it after reading its settings on standard input.

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
from hugewise.fleet.dask import settings
from hugewise.fleet.dask.settings import Identity
from hugewise.fleet.dask.task import set_worker
from hugewise.fleet.engine import answer_as_worker
from hugewise.fleet.host_agent import make_spool
from hugewise.fleet.protocol import default_spool
from hugewise.fleet.spool import ProcessIdentity, identify
from hugewise.visible import say

_MOST: Final = 1 << 20  # bytes of its settings
_CONNECTING_S: Final = 30.0
_RARELY_MS: Final = 60_000.0


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a worker. `host` is its name in the inventory, `scheduler` an address of Dask's (tls://...).

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


_REGISTERED = "registered"
_SETTINGS = msgspec.json.Decoder(WorkerSettings)


def main() -> int:
    """Start the worker, and return when it is registered: 0; 1 with the reason on standard output where it is not."""
    try:
        config = reading.decoded(_SETTINGS, sys.stdin.buffer.readline(_MOST))
    except reading.UnreadableError as error:
        say(f"what this worker is to be cannot be read: {error}")
        return 1
    hears, says = os.pipe()
    if os.fork() == 0:
        os.close(hears)
        _detached(config, says)
    os.close(says)
    with os.fdopen(hears, "rb") as pipe:
        message = pipe.read(4000).decode(errors="replace")
    say(message or "it ended without a word")
    return 0 if message == _REGISTERED else 1


def _detached(config: WorkerSettings, says: int) -> None:
    status = 1
    try:
        os.setsid()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with Path(os.devnull).open("r+b") as nothing:
            for number in range(3):
                os.dup2(nothing.fileno(), number)
        with _own_folder(config) as folder:
            settings.load()
            asyncio.run(_work(config, folder, says))
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
    if cpu is None:
        return
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            os.sched_setaffinity(int(thread.name), {cpu})


def spool_folder(config: WorkerSettings) -> Path:
    """Return the worker's folder in the spool; for orders as root, in the account's default spool."""
    return Path(config.spool) if config.spool and (not config.root or os.geteuid() == 0) else default_spool()


@contextmanager
def _own_folder(config: WorkerSettings) -> Iterator[Path]:
    top = spool_folder(config)
    name = f".worker-{config.fleet}-{config.host}"
    folder, known = top / name, top / f"{name}.json"
    with storing(f"the spool {top}", "name a folder that this account can write: spool = ..."):
        make_spool(top)
        with suppress(reading.UnreadableError):
            earlier = reading.stored(known, ProcessIdentity)
            if identify(earlier.pid) == earlier:
                os.kill(earlier.pid, signal.SIGKILL)  # works on a stopped process, too
        here = identify(os.getpid())
        write_whole(known, msgspec.json.encode(here), 0o600)
        beneath.discard(folder)
        folder.mkdir(0o700)
    try:
        yield folder
    finally:
        with suppress(HugewiseError, OSError):
            beneath.discard(folder)
            if reading.stored(known, ProcessIdentity) == here:
                beneath.discard(known)


async def _work(config: WorkerSettings, folder: Path, says: int) -> None:
    distributed = importlib.import_module("distributed")

    class QuietWorker(distributed.Worker):  # type: ignore[misc, name-defined]
        """Dask's, without a server for browsers, and with what it does by itself done once a minute."""

        def start_http_server(self, *_: object, **__: object) -> None: ...

        def start_periodic_callbacks(self) -> None:
            for callback in self.periodic_callbacks.values():
                callback.callback_time = max(callback.callback_time, _RARELY_MS)
            super().start_periodic_callbacks()

        async def heartbeat(self) -> None:
            await super().heartbeat()
            self.periodic_callbacks["heartbeat"].callback_time = _RARELY_MS  # the scheduler asks for each half second

    everywhere = os.sched_getaffinity(0)
    set_worker(_order_handler(config, everywhere))
    _bound(config.cpu)
    worker = QuietWorker(
        config.scheduler,
        name=config.host,
        host=config.address,
        protocol="tls",
        security=settings.security(config.identity),
        nthreads=1,
        resources=settings.resource(config.host),
        memory_limit=0,
        local_directory=str(folder),
        dashboard=False,
        death_timeout=_CONNECTING_S,
    )
    try:
        await worker
    except TimeoutError:
        raise HugewiseError(
            f"{config.host} cannot connect to {config.scheduler} within {_CONNECTING_S:.0f} s",
            hint="open that port of the coordinator for this host; [fleet] port fixes which it is",
        ) from None
    _say(says, _REGISTERED)
    os.close(says)
    await worker.finished()


def _order_handler(config: WorkerSettings, everywhere: set[int]) -> Callable[[bytes], bytes]:

    def obey(order: bytes) -> bytes:
        bound = os.sched_getaffinity(0)
        os.sched_setaffinity(0, everywhere)
        try:
            answer = answer_as_worker(
                settings.order_in(order),
                installation=config.installation,
                spool_folder=config.spool,
                root=config.root,
            )
            return settings.sign_answer(config.seal, order, answer)
        finally:
            os.sched_setaffinity(0, bound)

    return obey
