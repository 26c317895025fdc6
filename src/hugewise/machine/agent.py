"""What the agent of another machine (a guest, the host of a client) can be asked to do; how, is `channel`'s."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import suppress

import msgspec

from hugewise.errors import ProbeError
from hugewise.machine import messages, probe, requests
from hugewise.machine.channel import PATIENCE_S, WATCHED_S, Channel, Listener
from hugewise.machine.foreign import plain

__all__ = ["CHUNK", "MOST_OF_A_FILE", "PATIENCE_S", "WATCHED_S", "Agent", "Listener"]

CHUNK = 256 << 10  # bytes of a file in one message
MOST_OF_A_FILE = probe.MOST_SAID  # bytes that are taken over


class Agent(Channel):
    """One machine's agent. Every method raises MachineError when the machine is gone."""

    # -- files: it is the machine's `host.Host`

    def privileged(self) -> bool:
        """Every knob of a guest can be turned."""
        return True

    def writable(self, path: str) -> bool:
        """Whether it is a file with the owner's write bit."""
        with suppress(OSError):
            found = self.status(path)
            return found.kind == "file" and bool(found.mode & stat.S_IWUSR)
        return False

    def read(self, path: str) -> str:
        """The text of a file, stripped, at most 512 KiB. Raises OSError."""
        return self.ask_for(requests.ReadFile(path), messages.Text).text.strip()

    def write(self, path: str, text: str) -> None:
        """Write a file that is there, in one call. Raises OSError."""
        self.ask_for(requests.WriteFile(path, text), messages.Nothing)

    def names(self, path: str) -> list[str]:
        """The sorted names in a folder; empty when there is none."""
        return sorted(self.ask_for(requests.Names(path), messages.NamesFound).names)

    def status(self, path: str) -> messages.StatusFound:
        """What lies there; links are not followed. Raises OSError."""
        return self.ask_for(requests.Status(path), messages.StatusFound)

    def make(self, path: str, mode: int, uid: int | None = None, gid: int | None = None) -> None:
        """Make a folder, with those that it lies in. Raises OSError."""
        self.ask_for(requests.Make(path, mode, uid, gid), messages.Nothing)

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with everything in it. Raises OSError."""
        self.ask_for(requests.Remove(path), messages.Nothing, self._long)

    def put(
        self, path: str, content: bytes, mode: int, *, uid: int | None = None, gid: int | None = None, offset: int = 0
    ) -> None:
        """Bytes into a file, in as many messages as it takes; offset 0 makes it anew. Raises OSError."""
        view = memoryview(content)
        for start in range(0, max(1, len(content)), CHUNK):
            data = bytes(view[start : start + CHUNK])
            self.ask_for(requests.Put(path, mode, uid, gid, offset + start, data), messages.Nothing, self._long)

    def get(self, path: str) -> Iterator[bytes]:
        """The content of a file, piece by piece, up to the size that it has at first, within MOST_OF_A_FILE.

        A piece that is not whole is the last: there is less of the file by now. Raises OSError; MachineError for a file
        that is too large, of which nothing is taken.
        """
        offset, size = 0, CHUNK
        while offset < size:
            length = min(CHUNK, size - offset)
            piece = self.ask_for(requests.Get(path, offset, length), messages.Piece, self._long)
            if len(piece.data) > length:
                raise self.give_up("it gave more of a file than it was asked for")
            size = max(piece.size, len(piece.data)) if offset == 0 else size
            if size > MOST_OF_A_FILE:
                why = f"has {size} bytes, more than the {MOST_OF_A_FILE} that are taken over"
                raise self._error(f"{self.name}: {plain(path)} {why}")
            yield piece.data
            offset += length
            if len(piece.data) < length:
                return

    # -- the system

    def mount(self, source: str, target: str, kind: str, options: str = "") -> None:
        """Mount a file system; the target is made. Raises OSError."""
        self.ask_for(requests.MountAt(source, target, kind, options), messages.Nothing, self._long)

    def network(self, interface: str, address: str, prefix: int) -> None:
        """Give an interface its address; it is told no gateway. Raises OSError."""
        self.ask_for(requests.JoinNetwork(interface, address, prefix, None), messages.Nothing)

    def ports(self, count: int) -> tuple[int, ...]:
        """TCP ports that are free on the loopback. Raises OSError."""
        found = self.ask_for(requests.Ports(count), messages.PortsFound).ports
        if len(found) != count:
            raise self.give_up(f"it named {len(found)} ports, not {count}")
        return found

    def clock(self) -> float:
        """The time of day there at a moment between asking and answer, UTC epoch seconds. Raises OSError."""
        return self.ask_for(requests.AskClock(), messages.ClockSaid).realtime_ns / 1e9

    # -- processes

    def process(self) -> int:
        """A number for a process that is to be started."""
        return next(self._processes)

    def spawn(self, process: int, spec: probe.Spec, listener: Listener, *, held: bool = False) -> None:
        """Start a launcher; `listener` hears of it from here on, unless it cannot be started. Raises OSError.

        `held`: it waits at a barrier, where `listener` hears that it has arrived, until it is released.
        """
        with self._state:
            self._listeners[process] = listener
        try:
            self.ask_for(requests.Spawn(process, spec, held or msgspec.UNSET), messages.Nothing)
        except OSError:
            with self._state:
                self._listeners.pop(process, None)
            raise

    def release(self, process: int) -> None:
        """Let a launcher go on that is held, without waiting for an answer."""
        self._send(requests.Release(process))

    def end(self, process: int, number: int) -> None:
        """Send a signal to a launcher, without waiting for an answer: it is heard when the launcher ends."""
        self._send(requests.End(process, number))

    def signal(self, pid: int, number: int) -> None:
        """Send a signal to a process. Raises OSError (ProcessLookupError when it is gone)."""
        self.ask_for(requests.Signal(pid, number), messages.Nothing)

    def ask(self, *arguments: str) -> probe.Event:
        """The first event of a short subcommand of the probe. Raises ProbeError."""
        request = requests.AskProbe(arguments)
        try:
            asked = self.ask_for(request, messages.ProbeSaid, self._long)
        except OSError as error:
            raise ProbeError(f"{request} failed in {self.name}: {error.strerror}") from None
        try:
            return next(probe.decode([bytes(asked.event) + b"\n"]))
        except ProbeError as error:
            raise self.give_up(f"{request} said something unknown: {error.message}") from None
