"""What the agent of another machine is asked to do, as values and as lines; the table is in docs/design/guests.md."""

from __future__ import annotations

import errno

import msgspec

from hugewise.machine.probe import Spec

__all__ = [
    "LONGEST",
    "AskClock",
    "AskProbe",
    "End",
    "Get",
    "JoinNetwork",
    "Make",
    "MountAt",
    "Names",
    "Ports",
    "Poweroff",
    "Put",
    "ReadFile",
    "Release",
    "Remove",
    "Request",
    "Settle",
    "Signal",
    "Spawn",
    "Status",
    "Wait",
    "WriteFile",
    "encode",
]

LONGEST = 1 << 20  # bytes of a line, its end included


class Request(msgspec.Struct, frozen=True, tag_field="do"):
    """Something to be done in the guest; `str` names it for an error."""

    def __str__(self) -> str:
        told = msgspec.structs.asdict(self)
        subject = told.get("path") or told.get("target") or told.get("process") or told.get("pid") or ""
        return f"{str(self.__struct_config__.tag).lower()} {subject}".strip()


class ReadFile(Request, frozen=True, tag="read"):
    """The text of a file."""

    path: str


class WriteFile(Request, frozen=True, tag="write"):
    """One write(2) to a file that is there."""

    path: str
    text: str

    def __str__(self) -> str:
        return f"write {self.text!r} to {self.path}"


class Names(Request, frozen=True, tag="names"):
    """The names in a folder."""

    path: str


class Status(Request, frozen=True, tag="status"):
    """What lies at a path."""

    path: str


class Make(Request, frozen=True, tag="make"):
    """A folder."""

    path: str
    mode: int
    uid: int | None
    gid: int | None


class Remove(Request, frozen=True, tag="remove"):
    """A file, or a folder with everything in it."""

    path: str


class Put(Request, frozen=True, tag="put"):
    """Bytes into a file; offset 0 makes it anew."""

    path: str
    mode: int
    uid: int | None
    gid: int | None
    offset: int
    data: bytes


class Get(Request, frozen=True, tag="get"):
    """Bytes of a file."""

    path: str
    offset: int
    length: int


class MountAt(Request, frozen=True, tag="mount"):
    """mount(2)."""

    source: str
    target: str
    type: str
    options: str


class JoinNetwork(Request, frozen=True, tag="network"):
    """An address for an interface."""

    interface: str
    address: str
    prefix: int
    gateway: str | None


class Ports(Request, frozen=True, tag="ports"):
    """Free TCP ports of the loopback."""

    count: int


class Spawn(Request, frozen=True, tag="spawn"):
    """Start a launcher, which is called `process` from then on. `held`: it waits at a barrier until it is released;
    left out where it does not, so that an older agent is not asked for it.
    """

    process: int
    spec: Spec
    held: bool | msgspec.UnsetType = msgspec.UNSET

    def __str__(self) -> str:
        return f"start {' '.join(self.spec.argv)}"


class Release(Request, frozen=True, tag="release"):
    """Let a launcher go on that waits at its barrier."""

    process: int


class Signal(Request, frozen=True, tag="signal"):
    """Send a signal to any process of the guest."""

    pid: int
    number: int


class End(Request, frozen=True, tag="end"):
    """Send a signal to a launcher."""

    process: int
    number: int


class AskProbe(Request, frozen=True, tag="ask"):
    """The first event of a short subcommand of the probe."""

    arguments: tuple[str, ...]

    def __str__(self) -> str:
        return f"hugewise-probe {' '.join(self.arguments)}"


class Wait(Request, frozen=True, tag="wait"):
    """Until a launcher has ended."""

    process: int


class Settle(Request, frozen=True, tag="settle"):
    """Some idle seconds."""

    seconds: float


class AskClock(Request, frozen=True, tag="clock"):
    """The time of day there."""


class Poweroff(Request, frozen=True, tag="poweroff"):
    """The end of the guest."""


def encode(number: int, request: Request) -> bytes:
    """The line of a request. Raises OSError when it cannot be said: too long, or a name that is not UTF-8."""
    try:
        line = msgspec.json.encode({"id": number, **msgspec.to_builtins(request)}) + b"\n"
    except UnicodeEncodeError:
        raise OSError(errno.EILSEQ, "its name is not UTF-8", str(request)) from None
    if len(line) > LONGEST:
        raise OSError(errno.EMSGSIZE, f"more than the {LONGEST} bytes of a message", str(request)[:200])
    return line
