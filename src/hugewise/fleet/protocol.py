"""Protocol between a coordinator and its hosts: one JSON message each for an order and its answer.

A host obeys its coordinator as far as its account goes; a coordinator believes a host's answers only as values within
the bounds that stand here. docs/design/fleet.md has the list. The study that a fleet asks is made from an order by
`study_of_question`, and the hugewise here is described by `installed`: alike on the coordinator and on every host.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

import hugewise
from hugewise import reading
from hugewise.errors import HugewiseError
from hugewise.fleet.inventory import ClientEntry
from hugewise.machine import probe
from hugewise.model.host import Check
from hugewise.reading import UnreadableError
from hugewise.study import load
from hugewise.study.study import Study

MOST_MESSAGE = 64 << 20
"""Bytes of one message."""
CHUNK = 4 << 20
"""Bytes of a run that one answer carries at most."""
MOST_GREETING = 1 << 20
"""Bytes that a host may say of itself."""
MOST_FILES = 200_000
"""Files of one run."""
_MOST_STUDY = 1 << 20
_LONGEST_FILE = 400
_PART = re.compile(r"[A-Za-z0-9_=+@,%~][A-Za-z0-9._=+@,%~ -]{0,254}")
_DEEPEST = 8

ENDED = "ended by its coordinator"
"""The reason of an assignment that was interrupted by an order."""

KeeperState = Literal["unknown", "starting", "running", "waiting", "ended", "interrupted", "failed"]
"""State of an assignment on its host: `unknown` was never begun there (or is forgotten); `starting` and `running`;
`waiting` between a run that died and its resumption; then one of three ends: `ended` regularly, `interrupted` by an
order or by somebody there, `failed`: not resumed any more.
"""

_Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")]
_Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
_Text = Annotated[str, msgspec.Meta(max_length=4000)]
_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class Assignment(msgspec.Struct, frozen=True):
    """Ordinary run on one host. `number` is the fence: it only grows over the fleet `fleet`."""

    fleet: _Name
    number: Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]


class FleetQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """The study that a host is to run, as its file has it, with what `hugewise run` was told beside it.

    directory   where its commands run on the host
    """

    text: Annotated[str, msgspec.Meta(max_length=_MOST_STUDY)]
    scale: Annotated[str, msgspec.Meta(max_length=100)] | None = None
    only: Annotated[str, msgspec.Meta(max_length=4000)] | None = None
    arms: Annotated[str, msgspec.Meta(max_length=4000)] | None = None
    time: Annotated[str, msgspec.Meta(max_length=40)] | None = None
    directory: Annotated[str, msgspec.Meta(max_length=_LONGEST_FILE, pattern="^/")] = "/"


# -- orders


class _Order(msgspec.Struct, frozen=True, kw_only=True, tag_field="order"):
    pass


class HelloOrder(_Order, frozen=True, tag="hello"):
    """Order to describe the host and, with a question, what of it can run there."""

    question: FleetQuestion | None = None


class BeginOrder(_Order, frozen=True, tag="begin"):
    """Have a keeper conduct the assignment; twice is once. Refused where a higher number of that fleet was seen.

    restarts   how often a run that died is resumed before it has failed
    client  the host that clients of its servers are on; None: beside them
    package    the digest of the hugewise that was greeted there: another one is refused
    """

    assignment: Assignment
    question: FleetQuestion
    restarts: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 3
    client: ClientEntry | None = None
    package: _Digest | None = None


class LookOrder(_Order, frozen=True, tag="look"):
    """Order to report the state of an assignment. A keeper that died is started again."""

    assignment: Assignment


class ManifestOrder(_Order, frozen=True, tag="manifest"):
    """Order to list the files of the ended run."""

    assignment: Assignment


class ReadOrder(_Order, frozen=True, tag="read"):
    """Bytes of the files of the manifest, as if they lay one after another in its order."""

    assignment: Assignment
    offset: _Count
    size: Annotated[int, msgspec.Meta(ge=1, le=CHUNK)]


class ForgetOrder(_Order, frozen=True, tag="forget"):
    """Remove what there is of it. Refused while its keeper lives."""

    assignment: Assignment


class EndOrder(_Order, frozen=True, tag="end"):
    """Interrupt the run, as by Ctrl-C: it puts the host back and is kept. Answered at once."""

    assignment: Assignment


HostOrder = HelloOrder | BeginOrder | LookOrder | ManifestOrder | ReadOrder | ForgetOrder | EndOrder


# -- answers


class _Answer(msgspec.Struct, frozen=True, kw_only=True, tag_field="answer"):
    pass


class Installed(msgspec.Struct, frozen=True, kw_only=True):
    """The hugewise of a host: what two hosts must have alike. Hashes are SHA-256; `probe` is None where there is none.

    package    over the source files of the package
    machine    the architecture, as uname says it
    """

    version: _Name
    package: _Digest
    probe: _Digest | None
    probe_version: Annotated[str, msgspec.Meta(max_length=200)] | None
    python: Annotated[str, msgspec.Meta(max_length=60)]
    machine: Annotated[str, msgspec.Meta(max_length=60)]


class Examined(msgspec.Struct, frozen=True, kw_only=True):
    """Result of `hugewise doctor` there, for the question where there was one.

    cells      cells with the arms that they can take, as `CELL: ARM, ARM against BASELINE`; None without a question
    left_out   what cannot run there, with the reason
    error      why it could not be examined; the rest is empty then
    """

    mechanism: Annotated[str, msgspec.Meta(max_length=20)] | None = None
    checks: tuple[Check, ...] = ()
    cells: tuple[_Text, ...] | None = None
    left_out: tuple[_Text, ...] = ()
    install: _Text | None = None
    error: _Text | None = None


class Greeting(_Answer, frozen=True, tag="greeting"):
    """Answer to hello. `fingerprint` as `machine.fingerprint` makes it; `spool_free` in bytes."""

    installed: Installed
    account: Annotated[str, msgspec.Meta(max_length=100)]
    root: bool
    fingerprint: Mapping[str, Any]
    examined: Examined
    memory_age: Annotated[str, msgspec.Meta(max_length=40)] | None = None
    thp: Mapping[str, str] = {}
    spool_free: _Count | None = None


class AssignmentSeen(_Answer, frozen=True, tag="seen"):
    """State of an assignment; `closed`: its blocks that are done, `words`: its last, `reason`: why it waits."""

    assignment: Assignment
    state: KeeperState
    keeper: bool = False
    run: _Name | None = None
    closed: _Count = 0
    words: _Text = ""
    reason: _Text | None = None
    restarts: _Count = 0


class FileEntry(msgspec.Struct, frozen=True):
    """A file of a run: its name below the run's folder, its size in bytes and its SHA-256."""

    name: Annotated[str, msgspec.Meta(max_length=_LONGEST_FILE)]
    size: _Count
    digest: _Digest

    def __post_init__(self) -> None:
        if not safe_file(self.name):
            raise ValueError(f"{reading.shown(self.name)} is no name of a file of a run")


class ManifestFound(_Answer, frozen=True, tag="manifest"):
    """The files of the ended run, in the order in which they are read."""

    assignment: Assignment
    run: _Name
    files: Annotated[tuple[FileEntry, ...], msgspec.Meta(max_length=MOST_FILES)]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


class RunBytes(_Answer, frozen=True, tag="bytes"):
    """A part of the files; shorter than asked for only at their end."""

    data: Annotated[bytes, msgspec.Meta(max_length=CHUNK)]


class Done(_Answer, frozen=True, tag="done"):
    """Answer that an order was done, now or before."""


class Refusal(_Answer, frozen=True, tag="refusal"):
    """Answer that an order was not done. `fenced`: because a higher number of that fleet was seen there."""

    why: _Text
    hint: _Text | None = None
    fenced: bool = False


HostAnswer = Greeting | AssignmentSeen | ManifestFound | RunBytes | Done | Refusal

_ORDER: msgspec.json.Decoder[HostOrder] = msgspec.json.Decoder(HostOrder)
_ANSWER: msgspec.json.Decoder[HostAnswer] = msgspec.json.Decoder(HostAnswer)


def encode(message: HostOrder | HostAnswer) -> bytes:
    """Encode a message for transport."""
    return msgspec.json.encode(message)


def decode_order(data: bytes) -> HostOrder:
    """Decode an order. Raises UnreadableError."""
    return reading.decoded(_ORDER, _limited(data))


def decode_answer(data: bytes) -> HostAnswer:
    """Decode an answer. Raises UnreadableError."""
    answer = reading.decoded(_ANSWER, _limited(data))
    if isinstance(answer, Greeting) and len(data) > MOST_GREETING:
        raise UnreadableError(f"a host says more than {MOST_GREETING:,} bytes of itself")
    return answer


def _limited(data: bytes) -> bytes:
    if len(data) > MOST_MESSAGE:
        raise UnreadableError(f"a message of more than {MOST_MESSAGE:,} bytes")
    return data


def safe_file(name: str) -> bool:
    """Return whether `name` can be a file of a run: below its folder, not hidden, with no part that leads elsewhere."""
    parts = name.split("/")
    return len(name) <= _LONGEST_FILE and len(parts) <= _DEEPEST and all(_PART.fullmatch(part) for part in parts)


def refusal_of(error: HugewiseError) -> Refusal:
    """Return an error of the host, as an answer."""
    return Refusal(why=error.message[:4000], hint=None if error.hint is None else error.hint[:4000])


CHECK = """
format = 1
name = "fleet-check"
question = "Is the same called different on this host?"
policies = ["as-is", {{ name = "again", from = "as-is", environment = {{ HUGEWISE_AGAIN = "1" }} }}]
method = "sequential"
confidence = 0.999
budget = {{ blocks = {blocks} }}

[[workload]]
name = "spin"
metric = "loop_cpu_s"
timeout = "60s"
"""
"""The same against the same: a loop of about 100 ms in the first cache, under the settings as they are."""


def study_of_question(question: FleetQuestion, file: str) -> Study:
    """Return the study as a host runs it; `file` is named in errors. Raises StudyError, UserError."""
    study = load.parse(question.text, file)
    if question.scale is not None:
        study = load.at_scale(study, question.scale)
    study = load.part(study, _names(question.only), _names(question.arms))
    return load.with_budget(study, None, question.time)


def _names(listed: str | None) -> list[str]:
    return [name.strip() for name in listed.split(",")] if listed else []


def run_options(question: FleetQuestion) -> list[str]:
    """Return the options of `hugewise run` besides the study."""
    named = {"scale": question.scale, "only": question.only, "arms": question.arms, "time": question.time}
    return [f"--{name}={value}" for name, value in named.items() if value is not None]


def default_spool() -> Path:
    """Return the caller's folder for runs until they are shipped."""
    if os.geteuid() == 0:
        return Path("/var/lib/hugewise/fleet")
    return Path.home() / ".local/state/hugewise/fleet"


@dataclass(frozen=True)
class HostContext:
    """A host, as orders find it.

    spool    the folder with all assignments; made with mode 0700
    start    starts a keeper for the folder of an assignment, which inherits the descriptor of its lock, and returns at
             once; a simulation has its own
    """

    spool: Path
    start: Callable[[Path, int], None] | None = None


THIS = (sys.executable, "-P", "-c", "from hugewise.cli.main import main; main()")
"""The hugewise that this is, as a command."""


def installed() -> Installed:
    """Return the installation on this machine. A missing probe is None, no error."""
    return Installed(
        version=version("hugewise"),
        package=package_digest(Path(hugewise.__file__).parent),
        probe=_probe_digest(),
        probe_version=_probe_version(),
        python=platform.python_version(),
        machine=os.uname().machine,
    )


_SOURCES = frozenset({".py", ".toml", ".sql", ".lua", ".pl", ".conf"})


def package_digest(folder: Path) -> str:
    """Return the SHA-256 over names and contents of the package's sources, which wheel and checkout share."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix in _SOURCES)
    return reading.tree_digest({str(path.relative_to(folder)): reading.sha256(path) for path in paths})


def _probe_digest() -> str | None:
    try:
        return reading.sha256(Path(probe.find()))
    except (HugewiseError, reading.UnreadableError):
        return None


def _probe_version() -> str | None:
    try:
        return probe.version()
    except HugewiseError:
        return None


def difference(here: Installed, there: Installed) -> str | None:
    """Return why a host's hugewise is not the coordinator's, or None. Probes are compared in `conduct.problems`."""
    if there.version != here.version:
        return f"hugewise {there.version} is there, and {here.version} here"
    if there.package != here.package:
        return (
            f"hugewise {there.version} is there with other files than here ({there.package[:12]}, {here.package[:12]})"
        )
    if there.probe is None:
        return "its hugewise has no probe"
    return None
