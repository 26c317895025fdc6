"""Channel to the agent of another machine (a guest, a client's host): requests from any thread, answers read by one.

After a late answer, a malformed line or too much data the machine counts as gone: nothing of it is believed.
"""

from __future__ import annotations

import itertools
import socket
import stat
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Protocol, TypeVar

import msgspec

from hugewise.errors import MachineError, ProbeError
from hugewise.machine import messages, probe
from hugewise.machine.messages import AgentFault, Answer, Arrived, Ended, EventLine, Hello, Malformed, Request, plain

PATIENCE_S = 120.0  # for quick requests; an emulated guest may share its CPU with many others
WATCHED_S = 30.0  # between two looks whether a machine still answers
_LONG = 7.5  # factor for requests that take as long as their size: page tables, trees of files, a network
_WAITED_S = 7200.0  # for all answers to all requests: a slow machine is given up in the end
_RECEIVED = 1 << 16
_CLOSING_S = 5.0
_T = TypeVar("_T")


class Listener(Protocol):
    """Hears of one process. It is called by the thread that reads the channel: it must not ask the agent, nor raise."""

    def line(self, text: str) -> None:
        """Handle a line from the launcher."""
        ...

    def arrived(self) -> None:
        """Note that the launcher is held, and waits at its barrier."""
        ...

    def ended(self, status: int, stderr: str) -> None:
        """Note that the launcher has ended: its exit status (128 + signal), the end of its stderr."""
        ...

    def lost(self) -> None:
        """Note that the machine is gone, and the process with it."""
        ...


class Channel:
    """The way to one machine's agent. Every method raises MachineError when the machine is gone.

    name      what it is called in messages, such as `guest thp-b1`

    error     makes that error of a message; whoever booted the guest adds what its console said last
    patience  seconds for what takes a guest a moment
    """

    def __init__(
        self,
        connected: socket.socket,
        name: str,
        error: Callable[[str], MachineError] = MachineError,
        patience: float = PATIENCE_S,
    ) -> None:
        self.name = name
        self._socket, self._error, self._patience = connected, error, patience
        self._state, self._sending = threading.Lock(), threading.Lock()
        self._numbers, self._processes = itertools.count(1), itertools.count(1)
        self._waiting: dict[int, Future[Answer]] = {}
        self._listeners: dict[int, Listener] = {}
        self._arrived: set[int] = set()
        self._said: Counter[int] = Counter()  # bytes of lines by process
        self._waited = 0.0
        self._long = _LONG * patience
        self._hello: Future[Hello] = Future()
        self._gone: str | None = None
        self._closed = threading.Event()
        self._reader = threading.Thread(target=self._read_all, name=f"agent of {name}", daemon=True)
        self._socket.settimeout(None)
        seconds = struct.pack("ll", int(PATIENCE_S), 0)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)

    # -- beginning and end

    def hello(self, timeout: float = PATIENCE_S) -> Hello:
        """Wait for the agent's hello and return it. Raises MachineError after `timeout` seconds."""
        with self._state:
            if self._reader.ident is None and self._gone is None:
                self._reader.start()
        greeting = self.await_answer(self._hello, timeout, "did not say hello")
        if greeting.v != messages.VERSION:
            raise self.give_up(f"its agent speaks version {greeting.v} of the messages, not {messages.VERSION}")
        return greeting

    def watch(self, every: float = WATCHED_S, patience: float = PATIENCE_S) -> None:
        """Ask the guest every `every` seconds whether it is there, and give up a guest that hangs."""

        def watching() -> None:
            with suppress(MachineError, OSError):
                while not self._closed.wait(every):
                    self.ask_for(messages.Status("/"), messages.StatusFound, patience)

        threading.Thread(target=watching, name=f"watch of {self.name}", daemon=True).start()

    def expect(self, answers: Mapping[int, Future[Answer]], listeners: Mapping[int, Listener]) -> None:
        """Register answers to requests that the guest was given before it booted. Call it before `hello`."""
        with self._state:
            assert self._reader.ident is None, "the orders of a guest are collected instead of its hello"
            self._waiting |= answers
            self._listeners |= listeners
            self._numbers = itertools.count(max(answers, default=0) + 1)
            self._processes = itertools.count(max(listeners, default=0) + 1)

    def ended(self) -> bool:
        return self._gone is not None

    def gone(self) -> MachineError:
        return self._error(f"{self.name}: {self._gone or 'it was given up'}")

    def give_up(self, why: str) -> MachineError:
        self._end(why)
        return self.gone()

    def poweroff(self, timeout: float = PATIENCE_S) -> bool:
        """Tell the guest to end, and wait until the channel does; False when it has not after `timeout` seconds."""
        with suppress(MachineError):
            self._send(messages.Poweroff())
        return self._closed.wait(timeout)

    def close(self) -> None:
        self._end("it was given up")
        if self._reader.ident is not None and self._reader is not threading.current_thread():
            self._reader.join(_CLOSING_S)
        self._socket.close()

    # -- requests, answers and events

    def ask_for(self, request: Request, form: type[_T], patience: float | None = None) -> _T:
        """Send a request and wait `patience` seconds at most. Raises OSError with its errno, MachineError."""
        began = time.monotonic()
        patience = self._patience if patience is None else patience
        answer = self.await_answer(self._send(request), patience, f"does not answer ({request})")
        self._waited += time.monotonic() - began
        if self._waited > _WAITED_S:
            raise self.give_up(f"its answers were waited for longer than {_WAITED_S:g} s in all")
        if isinstance(answer.came, AgentFault):
            raise answer.came.error(getattr(request, "path", None))
        return self.read_reply(answer.came, form)

    def read_reply(self, raw: msgspec.Raw, form: type[_T]) -> _T:
        """Decode an answer; give up the guest when the answer has another form. Raises MachineError."""
        try:
            return messages.reply(raw, form)
        except Malformed as error:
            raise self.give_up(f"its agent answered something else than was asked for: {error}") from None

    def await_answer(self, future: Future[_T], patience: float, complaint: str) -> _T:
        """Wait for what the guest owes. Raises MachineError when it does not come, with `complaint` if too late."""
        try:
            return future.result(patience)
        except TimeoutError:
            raise self.give_up(f"it {complaint} within {patience:g} s") from None
        except _Gone:
            raise self.gone() from None

    def _send(self, request: Request) -> Future[Answer]:
        future: Future[Answer] = Future()
        with self._state:
            number = next(self._numbers)
        line = messages.encode(number, request)
        with self._state:
            if self._gone is not None:
                raise self.gone()
            self._waiting[number] = future
        try:
            with self._sending:
                self._socket.sendall(line)
        except BlockingIOError:
            raise self.give_up(f"it has taken nothing for {PATIENCE_S:g} s") from None
        except OSError as error:
            raise self.give_up(f"its channel broke: {error.strerror or error}") from None
        except BaseException:
            self._end("a request was broken off in the middle of its line")
            raise
        return future

    def _read_all(self) -> None:
        why = "it ended"
        try:
            for line in self._lines():
                self._hear(line)
        except OSError as error:
            why = f"its channel broke: {error.strerror or error}"
        except Malformed as error:
            why = f"its agent said something that was not agreed on: {error}"
        finally:
            self._end(why)
            self._closed.set()

    def _lines(self) -> Iterator[bytes]:
        pending = bytearray()
        while received := self._socket.recv(_RECEIVED):
            searched = len(pending)
            pending += received
            while (end := pending.find(b"\n", searched)) >= 0:
                line, searched = bytes(pending[:end]), 0
                del pending[: end + 1]
                yield line
            if len(pending) >= messages.LONGEST:
                raise Malformed(f"a line of more than {messages.LONGEST} bytes")

    def _hear(self, line: bytes) -> None:
        heard = messages.decode(line)
        with self._state:
            if isinstance(heard, Answer):
                waiting = self._waiting.pop(heard.id, None)
                listener = None
            elif isinstance(heard, Hello):
                if self._hello.done():
                    raise Malformed("hello, a second time")
                self._hello.set_result(heard)
                return
            else:
                waiting = None
                listener = self._listeners.get(heard.process)
                self._within_limits(heard, len(line))
                if isinstance(heard, Ended):
                    self._listeners.pop(heard.process, None)
        match heard:
            case Answer() if waiting is not None:
                waiting.set_result(heard)
            case EventLine() if listener is not None:
                listener.line(heard.text)
            case Arrived() if listener is not None:
                listener.arrived()
            case Ended() if listener is not None:
                listener.ended(heard.status, heard.stderr)
            case _:
                raise Malformed("an answer or an event that nothing was asked for")

    def _within_limits(self, heard: EventLine | Arrived | Ended, size: int) -> None:
        self._said[heard.process] += size
        if self._said[heard.process] > probe.MOST_EVENTS:
            raise Malformed(f"more than {probe.MOST_EVENTS} bytes of events of one process")
        if isinstance(heard, Arrived):  # each is answered by a thread
            if heard.process in self._arrived:
                raise Malformed("ready, a second time")
            self._arrived.add(heard.process)

    def _end(self, why: str) -> None:
        # whoever waits for the guest is told; the first reason is kept
        with self._state:
            if self._gone is not None:
                return
            self._gone = plain(why)
            waiting, self._waiting = list(self._waiting.values()), {}
            listeners, self._listeners = list(self._listeners.values()), {}
            if not self._hello.done():
                self._hello.set_exception(_Gone())
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        for future in waiting:
            future.set_exception(_Gone())
        for listener in listeners:
            listener.lost()


class _Gone(Exception):  # noqa: N818  (a state)
    pass


CHUNK = 256 << 10  # bytes of a file in one message
MOST_OF_A_FILE = probe.MOST_SAID  # bytes that are taken over


class Agent(Channel):
    """Machine's agent. Every method raises MachineError when the machine is gone."""

    # -- files: it is the machine's `host.Host`

    def privileged(self) -> bool:
        # every knob of a guest can be turned
        return True

    def writable(self, path: str) -> bool:
        with suppress(OSError):
            status = self.status(path)
            return status.kind == "file" and bool(status.mode & stat.S_IWUSR)
        return False

    def read(self, path: str) -> str:
        """Read the text of a file, stripped, at most 512 KiB. Raises OSError."""
        return self.ask_for(messages.ReadFile(path), messages.Text).text.strip()

    def write(self, path: str, text: str) -> None:
        """Write a file that is there, in one call. Raises OSError."""
        self.ask_for(messages.WriteFile(path, text), messages.Nothing)

    def names(self, path: str) -> list[str]:
        return sorted(self.ask_for(messages.Names(path), messages.NamesFound).names)

    def status(self, path: str) -> messages.StatusFound:
        """Return the status of `path`; links are not followed. Raises OSError."""
        return self.ask_for(messages.Status(path), messages.StatusFound)

    def make(self, path: str, mode: int, uid: int | None = None, gid: int | None = None) -> None:
        """Make a folder, with those that it lies in. Raises OSError."""
        self.ask_for(messages.Make(path, mode, uid, gid), messages.Nothing)

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with everything in it. Raises OSError."""
        self.ask_for(messages.Remove(path), messages.Nothing, self._long)

    def put(
        self, path: str, content: bytes, mode: int, *, uid: int | None = None, gid: int | None = None, offset: int = 0
    ) -> None:
        """Write bytes into a file, in as many messages as needed; offset 0 makes it anew. Raises OSError."""
        view = memoryview(content)
        for start in range(0, max(1, len(content)), CHUNK):
            data = bytes(view[start : start + CHUNK])
            self.ask_for(messages.Put(path, mode, uid, gid, offset + start, data), messages.Nothing, self._long)

    def get(self, path: str) -> Iterator[bytes]:
        """Yield a file's content in pieces, up to its first size. Raises OSError, MachineError."""
        offset, size = 0, CHUNK
        while offset < size:
            length = min(CHUNK, size - offset)
            piece = self.ask_for(messages.Get(path, offset, length), messages.Piece, self._long)
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
        self.ask_for(messages.MountAt(source, target, kind, options), messages.Nothing, self._long)

    def network(self, interface: str, address: str, prefix: int) -> None:
        """Give an interface its address; it is told no gateway. Raises OSError."""
        self.ask_for(messages.JoinNetwork(interface, address, prefix, None), messages.Nothing)

    def ports(self, count: int) -> tuple[int, ...]:
        """TCP ports that are free on the loopback. Raises OSError."""
        free_ports = self.ask_for(messages.Ports(count), messages.PortsFound).ports
        if len(free_ports) != count:
            raise self.give_up(f"it named {len(free_ports)} ports, not {count}")
        return free_ports

    def clock(self) -> float:
        """Return the time of day there at a moment between asking and answer, UTC epoch seconds. Raises OSError."""
        return self.ask_for(messages.AskClock(), messages.ClockSaid).realtime_ns / 1e9

    # -- processes

    def process(self) -> int:
        return next(self._processes)

    def spawn(self, process: int, spec: probe.Spec, listener: Listener, *, held: bool = False) -> None:
        """Start a launcher that `listener` hears of; `held`: it waits at a barrier until released. Raises OSError."""
        with self._state:
            self._listeners[process] = listener
        try:
            self.ask_for(messages.Spawn(process, spec, held or msgspec.UNSET), messages.Nothing)
        except OSError:
            with self._state:
                self._listeners.pop(process, None)
            raise

    def release(self, process: int) -> None:
        """Let a launcher go on that is held, without waiting for an answer."""
        self._send(messages.Release(process))

    def end(self, process: int, number: int) -> None:
        """Send a signal to a launcher, without waiting for an answer: it is heard when the launcher ends."""
        self._send(messages.End(process, number))

    def signal(self, pid: int, number: int) -> None:
        """Send a signal to a process. Raises OSError (ProcessLookupError when it is gone)."""
        self.ask_for(messages.Signal(pid, number), messages.Nothing)

    def ask(self, *arguments: str) -> probe.Event:
        """Run a short subcommand of the probe, and return its first event. Raises ProbeError."""
        request = messages.AskProbe(arguments)
        try:
            asked = self.ask_for(request, messages.ProbeSaid, self._long)
        except OSError as error:
            raise ProbeError(f"{request} failed in {self.name}: {error.strerror}") from None
        try:
            return next(probe.decode([bytes(asked.event) + b"\n"]))
        except ProbeError as error:
            raise self.give_up(f"{request} said something unknown: {error.message}") from None
