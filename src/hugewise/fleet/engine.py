"""What carries orders to hosts and answers back, and nothing else.

An engine keeps no state that a fleet needs: what it carried may arrive twice, late or not at all, and hosts and
coordinator are made for that (`host_agent`, `coordinator`). It never tries again by itself.

Programs that carry: the caller's own ssh, and sudo on a host. They are given bytes, and heard with limits.

What an engine does with an order on its host: has it obeyed, as root where the inventory says so.

The engine of a fleet that has ssh and nothing else: each order is a command over the caller's own ssh.

Its configuration, agents, keys and jump hosts are the caller's. It never asks: what would need a password fails. ssh
hands words to a shell on the host, joined by blanks: they are quoted, and consist of what an inventory may hold.

Calls to many hosts at once: each in a thread of its own, which nobody waits for when the coordinator ends.
"""

from __future__ import annotations

import os
import queue
import resource
import selectors
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

import msgspec

from hugewise import reading
from hugewise.errors import FencedError, HostLostError, HugewiseError
from hugewise.fleet import host_agent, protocol
from hugewise.fleet.inventory import HostEntry, Inventory
from hugewise.fleet.protocol import MOST_MESSAGE, HostAnswer, HostOrder, HostPlace, Refusal, usual_spool
from hugewise.machine.programs import ssh_command


class Engine(Protocol):
    """Several threads may call; of each host one at a time."""

    def __enter__(self) -> Self:
        """Connect. Raises UserError where that cannot be, such as for a missing extra, before any host is touched."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go; whatever runs on hosts goes on."""
        ...

    def present(self) -> frozenset[str]:
        """Names of the hosts that may be there now, without asking them: those that are not are not called."""
        ...

    def call(self, host: str, order: HostOrder, timeout: float = 60.0) -> HostAnswer:
        """Have `order` obeyed on `host` (its name in the inventory) and return what it answered, also a Refusal.

        Raises HostLostError where no answer came within `timeout` seconds: whether it was obeyed is not known. Raises
        HugewiseError where what came is no answer.
        """
        ...


def ask(engine: Engine, host: str, order: HostOrder, timeout: float = 60.0) -> HostAnswer:
    """The answer, where it is not a refusal: that is a HugewiseError, and a FencedError where it is one for ever."""
    answer = engine.call(host, order, timeout)
    if isinstance(answer, Refusal):
        kind = FencedError if answer.fenced else HugewiseError
        raise kind(f"{host}: {answer.why}", hint=answer.hint)
    return answer


_CHUNK = 1 << 16
_MOST_ERRORS = 64 << 10


class Talked(msgspec.Struct, frozen=True):
    """What a program said to its end. `status` negative: the signal that ended it."""

    status: int
    said: bytes
    errors: str

    @property
    def why(self) -> str:
        """Its last words, or its exit status."""
        lines = [line for line in self.errors.strip().splitlines() if line.strip()]
        return lines[-1].strip()[:500] if lines else f"exit status {self.status}"


def talked(argv: Sequence[str], data: bytes, *, timeout: float, most: int) -> Talked:
    """Start a program, give it `data` on its standard input, and hear it to its end.

    It ends with this process group's Ctrl-C only by what it is given: it has a session of its own, so that an order
    that is under way is not torn. Raises HostLostError after `timeout` seconds, HugewiseError where it says more than
    `most` bytes or cannot be started.
    """
    try:
        running = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
    except OSError as error:
        raise HugewiseError(f"{argv[0]} cannot be started: {error.strerror or error}") from None
    feeding = threading.Thread(target=_feed, args=(running, data), daemon=True)
    feeding.start()
    try:
        said, errors = _heard(running, argv[0], timeout, most)
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(running.pid, signal.SIGKILL)  # of one that has ended: what it left
        running.wait()
        feeding.join()
        for pipe in (running.stdout, running.stderr):
            if pipe is not None:
                pipe.close()
    return Talked(running.returncode, said, errors.decode(errors="replace"))


def _feed(running: subprocess.Popen[bytes], data: bytes) -> None:
    assert running.stdin is not None
    with suppress(OSError):  # it may end before it has heard all
        running.stdin.write(data)
    with suppress(OSError):
        running.stdin.close()


def _heard(running: subprocess.Popen[bytes], name: str, timeout: float, most: int) -> tuple[bytes, bytes]:
    assert running.stdout is not None
    assert running.stderr is not None
    end = time.monotonic() + timeout
    said = {running.stdout.fileno(): bytearray(), running.stderr.fileno(): bytearray()}
    out, errors = said
    with selectors.DefaultSelector() as waiting:
        for descriptor in said:
            waiting.register(descriptor, selectors.EVENT_READ)
        while waiting.get_map():
            ready = waiting.select(max(0.0, end - time.monotonic()))
            if not ready or time.monotonic() > end:
                raise HostLostError(f"no answer within {timeout:g} s ({name})")
            for key, _ in ready:
                more = os.read(key.fd, _CHUNK)
                if not more:
                    waiting.unregister(key.fd)
                elif key.fd == out:
                    said[out] += more
                    if len(said[out]) > most:
                        raise HugewiseError(f"{name} says more than {most:,} bytes")
                else:
                    said[errors] = (said[errors] + more)[-_MOST_ERRORS:]
    try:
        running.wait(max(0.1, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise HostLostError(f"no end within {timeout:g} s ({name})") from None
    return bytes(said[out]), bytes(said[errors])


_PATIENCE_S = 300.0


def command(installation: str, spool: str | None, *, root: bool, worker: int | None = None) -> list[str]:
    """The words of the program that obeys one order on a host, from its standard input."""
    words = ["sudo", "-n", "--"] if root else []
    words += [f"{installation}/bin/hugewise", "fleet", "obey"]
    words += [] if spool is None else ["--spool", spool]
    return words + ([] if worker is None else ["--worker", str(worker)])


def delivered(data: bytes, *, installation: str, spool_folder: str | None, root: bool, worker: int | None) -> bytes:
    """In the engine's worker on a host: the answer to the order in `data`. Raises nothing that can be foreseen.

    root      whether it is obeyed as root: by `sudo -n`, in a program of its own, where the worker is not
    worker    the pid of the worker, where it may be stopped while attempts are measured
    """
    if not root or os.geteuid() == 0:
        return host_agent.answered(data, HostPlace(Path(spool_folder) if spool_folder else usual_spool(), worker))
    words = command(installation, spool_folder, root=True, worker=worker)
    try:
        said = talked(words, data, timeout=_PATIENCE_S, most=MOST_MESSAGE)
        protocol.decode_answer(said.said)
    except (HugewiseError, HostLostError) as error:
        return protocol.encode(protocol.refused(error))
    except reading.UnreadableError:
        return protocol.encode(Refusal(why=f"hugewise as root by `sudo -n`: {said.why}"[:4000], hint=_SUDO))
    return said.said


_SUDO = "have sudo let this account call hugewise there without a password (NOPASSWD), or write root = false"


def obeyed_alone(data: bytes, place: HostPlace) -> bytes:
    """Of a program that obeys one order: its answer, and what it took of the host is counted."""
    answer = host_agent.answered(data, place)
    try:
        order = protocol.decode_order(data)
        if not isinstance(order, protocol.HelloOrder | protocol.ForgetOrder):
            used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
            seconds = sum(each.ru_utime + each.ru_stime for each in used)
            host_agent.cost_of(order.assignment, place.spool, seconds)
    except (reading.UnreadableError, HugewiseError, OSError):
        pass  # what it took stays unknown; the answer stands
    return answer


_LOST = 255  # ssh's own exit status: there was no connection, or it broke
_CONNECT_S = _ALIVE_S = 15


def over_ssh(
    entry: HostEntry, words: Sequence[str], data: bytes = b"", *, timeout: float, most: int = MOST_MESSAGE
) -> Talked:
    """What a command says on the host. Raises HostLostError where there is no connection, UserError where there is no
    ssh, HugewiseError.
    """
    assert entry.ssh is not None  # the inventory sees to it
    asked = ssh_command([entry.ssh], shlex.join(words), connect_s=_CONNECT_S, alive_s=_ALIVE_S)
    found = talked(asked, data, timeout=timeout, most=most)
    if found.status == _LOST:
        raise HostLostError(f"{entry.name}: ssh {entry.ssh}: {found.why}", hint=f"try: ssh {entry.ssh} true")
    return found


class SshEngine:
    """Asks by a command each; nothing of it stays on a host."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._entries = {entry.name: entry for entry in inventory.host}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is held."""

    def present(self) -> frozenset[str]:
        """All of them: that one is not there is only known by asking."""
        return frozenset(self._entries)

    def call(self, host: str, order: HostOrder, timeout: float = 60.0) -> HostAnswer:
        """See `engine.Engine`."""
        entry, inventory = self._entries[host], self._inventory
        words = command(inventory.installation(entry), inventory.spool(entry), root=entry.root)
        found = over_ssh(entry, words, protocol.encode(order), timeout=timeout)
        try:
            return protocol.decode_answer(found.said)
        except reading.UnreadableError as error:
            why = found.why if found.status else f"what it said is no answer: {error}"
            hint = "install it there: hugewise fleet provision, or name its folder with installation = ..."
            raise HugewiseError(f"{host}: {' '.join(words[:5])}: {why}", hint=hint) from None


_Key = TypeVar("_Key", bound=Hashable)
_Found = TypeVar("_Found")


class Calls(Generic[_Key, _Found]):
    """Functions that are under way, by what they are called for. At most `most` of them."""

    def __init__(self, most: int = 32) -> None:
        self.most, self.under_way = most, 0
        self._came: queue.SimpleQueue[tuple[_Key, _Found | BaseException]] = queue.SimpleQueue()

    @property
    def free(self) -> int:
        """How many more may be under way."""
        return self.most - self.under_way

    def start(self, key: _Key, function: Callable[[], _Found]) -> None:
        """Have it called."""

        def work() -> None:
            try:
                found: _Found | BaseException = function()
            except BaseException as error:  # whatever it is, it is raised where it is waited for
                found = error
            self._came.put((key, found))

        self.under_way += 1
        threading.Thread(target=work, daemon=True).start()

    def came(self, seconds: float) -> tuple[_Key, _Found | BaseException] | None:
        """The next that has returned or raised; None after so many seconds."""
        try:
            found = self._came.get(timeout=max(0.0, seconds))
        except queue.Empty:
            return None
        self.under_way -= 1
        return found


def at_once(
    function: Callable[[_Key], _Found], keys: Iterable[_Key], most: int = 32
) -> dict[_Key, _Found | BaseException]:
    """What a function returns, or raises, for each key."""
    calls: Calls[_Key, _Found] = Calls(most)
    found: dict[_Key, _Found | BaseException] = {}
    left = list(keys)[::-1]
    wanted = len(left)
    while len(found) < wanted:
        while left and calls.free:
            key = left.pop()
            calls.start(key, lambda key=key: function(key))  # type: ignore[misc]
        if (one := calls.came(1.0)) is not None:
            found[one[0]] = one[1]
    return found
