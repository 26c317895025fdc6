"""The messages between hugewise and the agent of another machine, as values and as lines: docs/design/guests.md.

Nothing that comes from a guest is believed before it is checked here: a line has its bounds, its form and its types.
The guest's texts (/proc, /sys, control groups) are read by the same functions as those of this host. Whatever these
raise for a text that no kernel writes becomes a MachineError (`parse_foreign`), so that an attempt ends and not a run.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Literal, TypeVar

import msgspec

from hugewise.errors import MachineError
from hugewise.machine.probe import Spec
from hugewise.reading import UnreadableError, believing
from hugewise.visible import printable

_LONGEST = 300


def plain(text: str) -> str:
    """Return a foreign text for an error: without line breaks and what a terminal obeys, and not long."""
    return printable(text[:_LONGEST])


@contextmanager
def parse_foreign(name: str, what: str) -> Iterator[None]:
    """Read `what` of the guest `name`. Raises MachineError for whatever is wrong with it, an OSError included."""
    try:
        with believing(what):
            yield
    except UnreadableError as error:
        raise MachineError(f"{name}: {what}: this makes no sense ({plain(error.reason)})") from error


LONGEST = 1 << 20  # bytes of a line, its end included


class Request(msgspec.Struct, frozen=True, tag_field="do"):
    """Something to be done in the guest; `str` names it for an error."""

    def __str__(self) -> str:
        fields = msgspec.structs.asdict(self)
        subject = fields.get("path") or fields.get("target") or fields.get("process") or fields.get("pid") or ""
        return f"{str(self.__struct_config__.tag).lower()} {subject}".strip()


class ReadFile(Request, frozen=True, tag="read"):
    """The text of a file."""

    path: str


class WriteFile(Request, frozen=True, tag="write"):
    """Write(2) to a file that is there."""

    path: str
    text: str

    def __str__(self) -> str:
        return f"write {self.text!r} to {self.path}"


class Names(Request, frozen=True, tag="names"):
    """The names in a folder."""

    path: str


class Status(Request, frozen=True, tag="status"):
    """Ask for the status of a path."""

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
    """Start a launcher, called `process` from then on; `held`: it waits at a barrier (unset for older agents)."""

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
    """Ask for an answer when a launcher has ended."""

    process: int


class Settle(Request, frozen=True, tag="settle"):
    """Idle time in seconds."""

    seconds: float


class AskClock(Request, frozen=True, tag="clock"):
    """The time of day there."""


class Poweroff(Request, frozen=True, tag="poweroff"):
    """The end of the guest."""


def encode(number: int, request: Request) -> bytes:
    """Return the line of a request. Raises OSError where it is too long, or has a name that is not UTF-8."""
    try:
        line = msgspec.json.encode({"id": number, **msgspec.to_builtins(request)}) + b"\n"
    except UnicodeEncodeError:
        raise OSError(errno.EILSEQ, "its name is not UTF-8", str(request)) from None
    if len(line) > LONGEST:
        raise OSError(errno.EMSGSIZE, f"more than the {LONGEST} bytes of a message", str(request)[:200])
    return line


VERSION = 1
MOST_NAMES = 50_000  # in one folder

_T = TypeVar("_T")
_Natural = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Cpu = Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)]
_Word = Annotated[str, msgspec.Meta(pattern=r"\A[\x20-\x7e]{0,256}\Z")]  # becomes part of names and tables
_Words = Annotated[str, msgspec.Meta(max_length=1 << 16)]
_FileName = Annotated[str, msgspec.Meta(pattern=r"\A[^/\x00]{1,255}\Z")]


# -- answers


class Nothing(msgspec.Struct, frozen=True):
    """Done."""


class Text(msgspec.Struct, frozen=True):
    """Answer to `read`."""

    text: str


class NamesFound(msgspec.Struct, frozen=True):
    """Answer to `names`. Names that no file can have are refused."""

    names: Annotated[list[_FileName], msgspec.Meta(max_length=MOST_NAMES)]

    def __post_init__(self) -> None:
        if "." in self.names or ".." in self.names:
            raise ValueError("a folder does not name itself")


class StatusFound(msgspec.Struct, frozen=True):
    """Answer to `status`; links are not followed."""

    kind: Literal["file", "folder", "link", "other", "none"]
    mode: _Natural
    size: _Natural


class Piece(msgspec.Struct, frozen=True):
    """Answer to `get`; `size` is the size of the whole file."""

    data: bytes
    size: _Natural


class PortsFound(msgspec.Struct, frozen=True):
    """Answer to `ports`."""

    ports: tuple[Annotated[int, msgspec.Meta(gt=0, lt=1 << 16)], ...]


class ClockSaid(msgspec.Struct, frozen=True):
    """Answer to `clock`: nanoseconds since 1970."""

    realtime_ns: _Natural


class ProbeSaid(msgspec.Struct, frozen=True):
    """Answer to `ask`: the event as the probe says it."""

    event: msgspec.Raw


# -- messages of the guest


class AgentFault(msgspec.Struct, frozen=True):
    """Reason why a request failed."""

    errno: Annotated[int, msgspec.Meta(ge=0, lt=4096)]
    message: str

    @property
    def why(self) -> str:
        return plain(self.message)

    def error(self, path: str | None = None) -> OSError:
        return OSError(self.errno, self.why) if path is None else OSError(self.errno, self.why, path)


class Hello(msgspec.Struct, frozen=True):
    """The agent is there. `page_size` in bytes; `cpus` by number."""

    v: _Natural
    probe: _Word
    arch: _Word
    release: _Word
    page_size: Annotated[int, msgspec.Meta(ge=4096, le=1 << 20)]
    cpus: Annotated[tuple[_Cpu, ...], msgspec.Meta(min_length=1, max_length=1 << 13)]
    boot_id: _Word


class Answer(msgspec.Struct, frozen=True):
    """Answer to the request of number `id`; `reply` decodes `came`."""

    id: int
    came: msgspec.Raw | AgentFault


class EventLine(msgspec.Struct, frozen=True):
    """A launcher said this, which has no line break."""

    process: int
    text: str


class Arrived(msgspec.Struct, frozen=True):
    """A launcher that is held waits at its barrier."""

    process: int


class Ended(msgspec.Struct, frozen=True):
    """A launcher has ended: exit status (128 + signal), the end of its stderr."""

    process: int
    status: int
    stderr: str


Heard = Answer | Hello | EventLine | Arrived | Ended


class Malformed(Exception):  # noqa: N818  (what was heard, not what failed)
    """A message from the guest that does not have the agreed form."""


class _End(msgspec.Struct, frozen=True):
    status: Annotated[int, msgspec.Meta(ge=0, le=255)]
    stderr: _Words


class _Said(msgspec.Struct, frozen=True):
    id: _Natural | None = None
    ok: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: AgentFault | None = None
    hello: Hello | None = None
    process: _Natural | None = None
    line: str | None = None
    ready: bool | None = None
    ended: _End | None = None


_DECODER = msgspec.json.Decoder(_Said)


def decode(line: bytes) -> Heard:
    """Decode a line from the guest. Raises Malformed."""
    if len(line) >= LONGEST:
        raise Malformed(f"a line of more than {LONGEST} bytes")
    try:
        line.decode()  # the decoder does not check strings that it keeps raw or skips
        fields = _DECODER.decode(line)
    except (ValueError, RecursionError) as error:
        raise Malformed(str(error)) from None
    match fields:
        case _Said(id=int(number), ok=msgspec.Raw() as ok, error=None, hello=None, process=None):
            return Answer(number, ok)
        case _Said(id=int(number), ok=msgspec.UNSET, error=AgentFault() as fault, hello=None, process=None):
            return Answer(number, fault)
        case _Said(id=None, hello=Hello() as hello, process=None):
            return hello
        case _Said(id=None, hello=None, process=int(process), line=str(text), ended=None) if "\n" not in text:
            return EventLine(process, text)
        case _Said(id=None, hello=None, process=int(process), line=None, ended=_End(status, stderr)):
            return Ended(process, status, stderr)
        case _Said(id=None, hello=None, process=int(process), line=None, ended=None, ready=True):
            return Arrived(process)
    if fields.error is not None:
        raise Malformed(f"it did not understand what it was asked: {fields.error.message}")
    raise Malformed("it is neither an answer nor an event")


def reply(raw: msgspec.Raw, form: type[_T]) -> _T:
    """Decode an answer. Raises Malformed."""
    try:
        return msgspec.json.decode(raw, type=form)
    except (ValueError, RecursionError) as error:
        raise Malformed(str(error)) from None
