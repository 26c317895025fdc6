"""Engines, which carry orders to hosts and answers back, and nothing else.

An engine keeps no state that a fleet needs, and never tries again: what it carried may arrive twice, late or not at
all.

`SshEngine` uses the caller's own ssh and never asks for a password. ssh hands words to a shell on the host: they are
quoted, and consist of what an inventory may hold. `answer_as_worker` has an order obeyed on the host.
"""

from __future__ import annotations

import os
import queue
import shlex
import signal
import subprocess
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

import msgspec

from hugewise import reading, unprivileged
from hugewise.errors import FencedError, HostLostError, HugewiseError
from hugewise.fleet import host_agent, protocol
from hugewise.fleet.inventory import HostEntry, Inventory
from hugewise.fleet.protocol import MOST_MESSAGE, HostAnswer, HostContext, HostOrder, Refusal, default_spool
from hugewise.machine.programs import ssh_command


class Engine(Protocol):
    """Several threads may call; of each host one at a time."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def present(self) -> frozenset[str]:
        """Return names of the hosts that may be there now, without asking them: those that are not are not called."""
        ...

    def call(self, host: str, order: HostOrder, timeout: float = 60.0) -> HostAnswer:
        """Have `order` obeyed on `host` and return its answer, also a Refusal. Raises HostLostError where none came in
        time (it may have been obeyed), HugewiseError for what is no answer.
        """
        ...


def ask(engine: Engine, host: str, order: HostOrder, timeout: float = 60.0) -> HostAnswer:
    """Return the answer. Raises HugewiseError for a refusal, and FencedError for one that is for ever."""
    answer = engine.call(host, order, timeout)
    if isinstance(answer, Refusal):
        kind = FencedError if answer.fenced else HugewiseError
        raise kind(f"{host}: {answer.why}", hint=answer.hint)
    return answer


class CommandOutput(msgspec.Struct, frozen=True):
    """Result of a program: exit status (negative: the signal that ended it) and output."""

    status: int
    stdout: bytes
    errors: str

    @property
    def why(self) -> str:
        lines = [line for line in self.errors.strip().splitlines() if line.strip()]
        return lines[-1].strip()[:500] if lines else f"exit status {self.status}"


def run_command(argv: Sequence[str], data: bytes, *, timeout: float, most: int) -> CommandOutput:
    """Run a program in its own session with `data`; return its output. Raises HostLostError, HugewiseError."""
    try:
        running = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
    except OSError as error:
        raise HugewiseError(f"{argv[0]} cannot be started: {error.strerror or error}") from None
    feeding = threading.Thread(target=_feed, args=(running, data), daemon=True)
    feeding.start()
    try:
        stdout, errors = unprivileged.read_to_end(running, argv[0], timeout, most)
    except TimeoutError:
        raise HostLostError(f"no answer within {timeout:g} s ({argv[0]})") from None
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(running.pid, signal.SIGKILL)  # its remaining children
        running.wait()
        feeding.join()
        for pipe in (running.stdout, running.stderr):
            if pipe is not None:
                pipe.close()
    return CommandOutput(running.returncode, stdout, errors.decode(errors="replace"))


def _feed(running: subprocess.Popen[bytes], data: bytes) -> None:
    assert running.stdin is not None
    with suppress(OSError):  # it may end before it has read everything
        running.stdin.write(data)
    with suppress(OSError):
        running.stdin.close()


_PATIENCE_S = 300.0


def obey_words(installation: str, spool: str | None, *, root: bool) -> list[str]:
    """Return the words of the program that obeys one order on a host, from its standard input."""
    words = ["sudo", "-n", "--"] if root else []
    words += [f"{installation}/bin/hugewise", "fleet", "obey"]
    return words + ([] if spool is None else ["--spool", spool])


def answer_as_worker(data: bytes, *, installation: str, spool_folder: str | None, root: bool) -> bytes:
    """Answer an order in the engine's worker, as `root` where asked, by `sudo -n`. Raises nothing foreseeable."""
    if not root or os.geteuid() == 0:
        return host_agent.answer_order(data, HostContext(Path(spool_folder) if spool_folder else default_spool()))
    words = obey_words(installation, spool_folder, root=True)
    try:
        output = run_command(words, data, timeout=_PATIENCE_S, most=MOST_MESSAGE)
        protocol.decode_answer(output.stdout)
    except (HugewiseError, HostLostError) as error:
        return protocol.encode(protocol.refusal_of(error))
    except reading.UnreadableError:
        return protocol.encode(Refusal(why=f"hugewise as root by `sudo -n`: {output.why}"[:4000], hint=_SUDO))
    return output.stdout


_SUDO = (
    "have sudo let this account call hugewise there without a password (NOPASSWD), which makes the account root there,"
    " as a study's commands run as root; or write root = false"
)


_LOST = 255  # ssh's own exit status: there was no connection, or it broke
_CONNECT_S = _ALIVE_S = 15


def over_ssh(
    entry: HostEntry, words: Sequence[str], data: bytes = b"", *, timeout: float, most: int = MOST_MESSAGE
) -> CommandOutput:
    """Run a command on the host and return its output. Raises HostLostError, UserError without ssh, HugewiseError."""
    assert entry.ssh is not None  # the inventory sees to it
    asked = ssh_command([entry.ssh], shlex.join(words), connect_s=_CONNECT_S, alive_s=_ALIVE_S)
    output = run_command(asked, data, timeout=timeout, most=most)
    if output.status == _LOST:
        raise HostLostError(f"{entry.name}: ssh {entry.ssh}: {output.why}", hint=f"try: ssh {entry.ssh} true")
    return output


class SshEngine:
    """Asks by a command each; nothing of it stays on a host."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._entries = {entry.name: entry for entry in inventory.host}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def present(self) -> frozenset[str]:
        return frozenset(self._entries)

    def call(self, host: str, order: HostOrder, timeout: float = 60.0) -> HostAnswer:
        entry, inventory = self._entries[host], self._inventory
        words = obey_words(inventory.installation(entry), inventory.spool(entry), root=entry.root)
        output = over_ssh(entry, words, protocol.encode(order), timeout=timeout)
        try:
            return protocol.decode_answer(output.stdout)
        except reading.UnreadableError as error:
            why = output.why if output.status else f"what it said is no answer: {error}"
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
        return self.most - self.under_way

    def start(self, key: _Key, function: Callable[[], _Found]) -> None:

        def work() -> None:
            try:
                result: _Found | BaseException = function()
            except BaseException as error:  # whatever it is, it is raised where it is waited for
                result = error
            self._came.put((key, result))

        self.under_way += 1
        threading.Thread(target=work, daemon=True).start()

    def came(self, seconds: float) -> tuple[_Key, _Found | BaseException] | None:
        """Return the next that has returned or raised; None after so many seconds."""
        try:
            result = self._came.get(timeout=max(0.0, seconds))
        except queue.Empty:
            return None
        self.under_way -= 1
        return result


def call_all(
    function: Callable[[_Key], _Found], keys: Iterable[_Key], most: int = 32
) -> dict[_Key, _Found | BaseException]:
    """Return a function's result, or exception, for each key."""
    calls: Calls[_Key, _Found] = Calls(most)
    results: dict[_Key, _Found | BaseException] = {}
    left = list(keys)[::-1]
    wanted = len(left)
    while len(results) < wanted:
        while left and calls.free:
            key = left.pop()
            calls.start(key, lambda key=key: function(key))  # type: ignore[misc]
        if (result := calls.came(1.0)) is not None:
            results[result[0]] = result[1]
    return results
