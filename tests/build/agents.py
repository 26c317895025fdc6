"""The far end of an agent's channel in the hands of a test: it says whatever the test wants said."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from hugewise.machine.agent import PATIENCE_S, Agent

HELLO = b'{"hello":{"v":1,"probe":"0","arch":"x86_64","release":"6.12","page_size":4096,"cpus":[0,1],"boot_id":"b"}}\n'


class FakeGuest:
    """Requests are kept in `heard`; `reacts` says what is answered: bytes as they are, None nothing."""

    def __init__(self, channel: socket.socket, reacts: Callable[[dict[str, Any]], bytes | None]) -> None:
        self.heard: list[dict[str, Any]] = []
        self._channel, self._reacts = channel, reacts
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def say(self, words: bytes) -> None:
        self._channel.sendall(words)

    def leave(self) -> None:
        self._channel.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        # The host may end the connection while it has not read all that the guest said.
        with suppress(ConnectionError), self._channel.makefile("rb") as lines:
            for line in lines:
                request = msgspec.json.decode(line)
                self.heard.append(request)
                said = self._reacts(request)
                if said is not None:
                    with suppress(OSError):
                        self.say(said.replace(b"ID", str(request["id"]).encode()))

    def end(self) -> None:
        with suppress(OSError):
            self.leave()
        self._thread.join(5)
        self._channel.close()


@contextmanager
def fake_guest(
    reacts: Callable[[dict[str, Any]], bytes | None] = lambda _: b'{"id":ID,"ok":{}}\n',
    greeting: bytes = HELLO,
    patience: float = PATIENCE_S,
) -> Iterator[tuple[Agent, FakeGuest]]:
    ours, theirs = socket.socketpair()
    guest = FakeGuest(theirs, reacts)
    agent = Agent(ours, "guest fake", patience=patience)
    guest.say(greeting)
    try:
        yield agent, guest
    finally:
        agent.close()
        guest.end()


@contextmanager
def greeted(
    reacts: Callable[[dict[str, Any]], bytes | None] = lambda _: b'{"id":ID,"ok":{}}\n',
    patience: float = PATIENCE_S,
) -> Iterator[tuple[Agent, FakeGuest]]:
    """One that has said hello."""
    with fake_guest(reacts, patience=patience) as (agent, guest):
        agent.hello(60)
        yield agent, guest
