"""Slurm as the engine of a fleet: one exclusive job a host, as plain text for sbatch, whose body is the keeper.

The spool lies in a folder that the nodes share with the coordinator, which obeys all orders there itself, but for the
question who a host is: a short job. A job that waits is an assignment not begun; one that ended without a last word is
queued again as the same run. See sbatch(1), squeue(1), scancel(1), sinfo(1), sacct(1).
"""

from __future__ import annotations

import re
import secrets
import shlex
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Generic, Self, TypeVar

import msgspec

from hugewise import reading
from hugewise.beneath import discard
from hugewise.errors import HostLostError, HugewiseError, UserError
from hugewise.files import write_whole
from hugewise.fleet import host_agent, protocol
from hugewise.fleet.engine import run_command
from hugewise.fleet.inventory import HostEntry, Inventory
from hugewise.fleet.keeper import conclude
from hugewise.fleet.protocol import (
    MOST_MESSAGE,
    Assignment,
    AssignmentSeen,
    EndOrder,
    HelloOrder,
    HostAnswer,
    HostContext,
    HostOrder,
    LookOrder,
    decode_answer,
)
from hugewise.fleet.spool import FINAL, SpoolEntry, last_words
from hugewise.machine.programs import of_root
from hugewise.visible import printable

_PATIENCE_S: Final = 60.0
_MOST: Final = 64 << 20
_PROGRAMS: Final = ("sbatch", "squeue", "scancel", "sinfo")
_FRESH_S: Final = 1.0
# Job states of squeue(1) that are still to end. One that is new, or suspended, or whose node boots, is not over.
_WAITING: Final = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT")
_RUNNING: Final = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING")
# Node states of sinfo(1), without suffixes, under which a job begins sooner or later by itself.
_USABLE: Final = ("idle", "mixed", "allocated", "completing", "planned", "reserved", "powering_up", "powered_down")
_NUMBER = re.compile(r"[0-9]{1,18}")
_STATE = re.compile(r"[a-z_]+")

_Found = TypeVar("_Found")


class QueuedJob(msgspec.Struct, frozen=True):
    """A job. `state` as squeue says it, `reason` why it waits or has ended so."""

    number: int
    name: str
    state: str
    reason: str = ""

    @property
    def runs(self) -> bool:
        return self.state in _RUNNING

    @property
    def alive(self) -> bool:
        return self.runs or self.state in _WAITING

    @property
    def words(self) -> str:
        why = f" ({self.reason})" if self.reason not in ("", "None") else ""
        return f"is {self.state}{why}"


class Node(msgspec.Struct, frozen=True):
    """A node: its state as sinfo says it, and why somebody took it away."""

    state: str
    reason: str = ""

    @property
    def usable(self) -> bool:
        """True if a job can come to run on the node without anybody's doing."""
        word = _STATE.match(self.state)
        return word is not None and word[0] in _USABLE and not self.state.endswith("*")

    @property
    def words(self) -> str:
        return self.state if self.reason in ("", "none") else f"{self.state} ({self.reason})"


class _CachedAnswer(Generic[_Found]):
    def __init__(self, ask: Callable[[], _Found]) -> None:
        self._ask, self._lock = ask, threading.Lock()
        self._known: _Found | None = None
        self._until = float("-inf")

    def __call__(self) -> _Found:
        with self._lock:
            if self._known is None or time.monotonic() >= self._until:
                self._known = self._ask()
                self._until = time.monotonic() + _FRESH_S
            return self._known

    def forget(self) -> None:
        with self._lock:
            self._until = float("-inf")


class Queue:
    """Queue of the cluster that the caller's own configuration names."""

    def __init__(self) -> None:
        self._jobs: _CachedAnswer[dict[str, QueuedJob]] = _CachedAnswer(self._ask_jobs)
        self.nodes: Callable[[], dict[str, Node]] = _CachedAnswer(self._ask_nodes)

    def must_be_there(self) -> None:
        """Raise UserError where a program of Slurm's is missing, or its controller does not answer."""
        for name in _PROGRAMS:
            if of_root(name) is None:
                raise UserError(f'engine = "slurm": {name} is not there', hint="apt install slurm-client")
        try:
            self.nodes()
        except HugewiseError as error:
            raise UserError(f'engine = "slurm": {error.message}', hint="see: sinfo; scontrol ping") from None

    def submit(self, text: str) -> QueuedJob:
        """Queue a job. Raises HugewiseError with what sbatch says."""
        output = self._said(["sbatch", "--parsable"], text.encode())
        number = _NUMBER.match(output.strip())
        if number is None:
            raise HugewiseError(f"sbatch gives no number of a job: {printable(output)[:200]}")
        name = next(line.partition("=")[2] for line in text.splitlines() if line.startswith("#SBATCH --job-name="))
        self._jobs.forget()
        return QueuedJob(int(number[0]), name, "PENDING")

    def job(self, name: str) -> QueuedJob | None:
        """Return the newest job of that name, which may have ended; None where Slurm knows none any more."""
        return self._jobs().get(name)

    def cancel(self, job: QueuedJob, *how: str) -> None:
        """End a job, or send it the signal that `how` names. A job that has ended is no error. Raises HugewiseError."""
        try:
            self._said(["scancel", "--quiet", *how, str(job.number)])
        except HugewiseError:
            # scancel fails without a message for a job that has ended since squeue was asked, so squeue is asked again.
            self._jobs.forget()
            job_now = self.job(job.name)
            if job_now is not None and job_now.number == job.number and job_now.alive:
                raise
        self._jobs.forget()

    def _ask_jobs(self) -> dict[str, QueuedJob]:
        jobs: dict[str, QueuedJob] = {}
        output = self._said(["squeue", "--noheader", "--me", "--states=all", "--format=%i|%T|%j|%r"])
        for line in output.splitlines():
            number, state, name, reason = (*line.split("|", 3), "", "", "")[:4]
            if _NUMBER.fullmatch(number) and (name not in jobs or jobs[name].number < int(number)):
                jobs[name] = QueuedJob(int(number), name, state, printable(reason)[:500])
        return jobs

    def _ask_nodes(self) -> dict[str, Node]:
        output = self._said(["sinfo", "--noheader", "--Node", "--format=%N|%T|%E"])
        rows = (line.split("|", 2) for line in output.splitlines())
        return {row[0].strip(): Node(row[1].strip(), printable(row[2].strip())[:500]) for row in rows if len(row) == 3}

    @staticmethod
    def _said(words: Sequence[str], data: bytes = b"") -> str:
        program = of_root(words[0])
        if program is None:
            raise HugewiseError(f"{words[0]} is not there", hint="apt install slurm-client")
        output = run_command([program, *words[1:]], data, timeout=_PATIENCE_S, most=_MOST)
        if output.status:
            raise HugewiseError(printable(f"{words[0]}: {output.why}")[:500], hint="see: scontrol ping")
        return output.stdout.decode(errors="replace")


_POLL_S: Final = 0.5
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PLAIN: Final = re.compile(r"[A-Za-z0-9._/@+=:,%-]+")


class SlurmEngine:
    """`spool` in the inventory is a folder that the nodes see under the same path."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._entries = {entry.name: entry for entry in inventory.host}
        self._queue = Queue()

    def __enter__(self) -> Self:
        self._queue.must_be_there()
        nodes = self._queue.nodes()
        for entry in self._entries.values():
            if entry.slurm not in nodes:
                raise UserError(
                    f"{self._inventory.file}: host {entry.name}: slurm = {entry.slurm!r}: Slurm has no such node",
                    hint="see: sinfo -N",
                )
        return self

    def __exit__(self, *_: object) -> None: ...

    def present(self) -> frozenset[str]:
        """Return all hosts: the spool can be read whatever a host's node does."""
        return frozenset(self._entries)

    def call(self, host: str, order: HostOrder, timeout: float = 60.0) -> HostAnswer:
        """See `engine.Engine`. Lost is a host whose node is not to be had, and whose job does not run."""
        entry = self._entries[host]
        if isinstance(order, HelloOrder):
            return self._hello(entry, order, timeout)
        place = HostContext(self._spool(entry), start=lambda folder, _: self._submit(entry, folder))
        if isinstance(order, EndOrder):
            return self._end(entry, order, place)
        answer = decode_answer(host_agent.answer_order(protocol.encode(order), place))
        if isinstance(order, LookOrder) and isinstance(answer, AssignmentSeen) and answer.state not in FINAL:
            return self._waiting(entry, answer)
        return answer

    def _spool(self, entry: HostEntry) -> Path:
        folder = self._inventory.spool(entry)
        assert folder is not None  # the inventory sees to it
        return Path(folder) / entry.name

    def _hugewise(self, entry: HostEntry) -> list[str]:
        return [f"{self._inventory.installation(entry)}/bin/hugewise", "fleet"]

    # -- jobs

    @staticmethod
    def _name(entry: HostEntry, assignment: Assignment) -> str:
        return f"hugewise-{assignment.fleet}-{assignment.number}-{entry.name}"

    def _job(self, entry: HostEntry, assignment: Assignment) -> QueuedJob | None:
        return self._queue.job(self._name(entry, assignment))

    def _submit(self, entry: HostEntry, folder: Path) -> None:
        order = SpoolEntry(folder).order()
        assert order is not None
        known = self._job(entry, order.assignment)
        if known is not None and known.alive:
            return
        body = shlex.join(["exec", *self._hugewise(entry), "keep", str(folder)])
        self._queue.submit(self._text(entry, self._name(entry, order.assignment), folder / "job.txt", body))

    def _text(self, entry: HostEntry, name: str, output: Path, body: str) -> str:
        """Return the script for sbatch: an exclusive job, not restarted, without the coordinator's environment."""
        fleet = self._inventory.fleet
        asked = [
            f"--job-name={name}",
            f"--nodelist={entry.slurm}",
            *("--nodes=1", "--exclusive", "--no-requeue", "--export=NIL"),
            f"--output={output}",
            "--open-mode=append",
            *([] if fleet.partition is None else [f"--partition={fleet.partition}"]),
            *fleet.sbatch,
        ]
        assert all(_PLAIN.fullmatch(option) for option in asked)  # the inventory and the fleet's names have no others
        lines = "".join(f"#SBATCH {option}\n" for option in asked)
        return f"#!/bin/sh\n{lines}PATH={_PATH}\nexport PATH\n{body}\n"

    def _waiting(self, entry: HostEntry, seen: AssignmentSeen) -> AssignmentSeen:
        job = self._job(entry, seen.assignment)
        if job is not None and job.runs:
            return seen
        node = self._queue.nodes().get(entry.slurm or "")
        queued = "no job of it is queued" if job is None else f"its job {job.number} {job.words}"
        if node is not None and not node.usable:
            raise HostLostError(
                f"{entry.name}: the node {entry.slurm} is {node.words}; {queued}",
                hint=f"when it is mended: scontrol update nodename={entry.slurm} state=resume",
            )
        reason = "; ".join(part for part in (seen.reason, printable(queued)) if part)
        return msgspec.structs.replace(seen, keeper=job is not None and job.alive, reason=reason[:4000])

    def _end(self, entry: HostEntry, order: EndOrder, place: HostContext) -> HostAnswer:
        answer = decode_answer(host_agent.answer_order(protocol.encode(order), place))
        job = self._job(entry, order.assignment)
        if job is None or not job.alive:
            self._concluded(place, order)
        elif job.runs:
            self._queue.cancel(job, "--signal=TERM", "--batch")
        else:
            self._queue.cancel(job)
            self._concluded(place, order)
        return answer

    def _concluded(self, place: HostContext, order: EndOrder) -> None:
        spooled = SpoolEntry(place.spool / order.assignment.fleet / str(order.assignment.number))
        begun = spooled.order()
        if begun is None:
            return
        with spooled.held() as free:
            kept = spooled.kept()
            if free is not None and kept.state not in FINAL:
                interrupted = msgspec.structs.replace(kept, state="interrupted", reason=protocol.ENDED)
                conclude(spooled, begun, interrupted)

    # -- identity

    def _hello(self, entry: HostEntry, order: HelloOrder, timeout: float) -> HostAnswer:
        folder = self._spool(entry)
        try:
            host_agent.make_spool(folder)
            return self._asked(entry, order, folder, timeout)
        except OSError as error:
            raise HugewiseError(
                f"{entry.name}: {error.filename or folder}: {error.strerror}", hint="name a shared folder: spool = ..."
            ) from None

    def _asked(self, entry: HostEntry, order: HelloOrder, folder: Path, timeout: float) -> HostAnswer:
        token = f".hello-{secrets.token_hex(8)}"
        asking, saying, answer = (folder / f"{token}{end}" for end in (".order", ".part", ".answer"))
        log = folder / f"{token}.txt"
        words = shlex.join([*self._hugewise(entry), "obey", "--spool", str(folder)])
        body = f"{words} < {shlex.quote(str(asking))} > {shlex.quote(str(saying))} && mv {saying} {answer}"
        write_whole(asking, protocol.encode(order), 0o600)
        job = None
        try:
            job = self._queue.submit(self._text(entry, f"hugewise{token}-{entry.name}", log, body))
            self._answered(entry, job, answer, timeout)
            return decode_answer(reading.content(answer, MOST_MESSAGE))
        except reading.UnreadableError:
            last = printable(" ".join(last_words(log).splitlines()[-2:]))[:500]
            raise HugewiseError(
                f"{entry.name}: hugewise fleet obey on {entry.slurm}: {last or 'it gave no answer'}",
                hint="install it where the nodes see it, and name its folder with installation = ...",
            ) from None
        finally:
            if job is not None and not answer.exists():
                with suppress(HugewiseError):
                    self._queue.cancel(job)
            for path in (asking, saying, answer, log):
                discard(path)

    def _answered(self, entry: HostEntry, job: QueuedJob, answer: Path, timeout: float) -> None:
        end = time.monotonic() + timeout
        while not answer.exists():
            now = self._queue.job(job.name)
            if now is not None and not now.alive:
                time.sleep(_POLL_S)  # until the file is seen here
                return
            if time.monotonic() > end:
                node = self._queue.nodes().get(entry.slurm or "")
                state = "" if node is None else f"; the node {entry.slurm} is {node.words}"
                why = job.words if now is None else now.words
                raise HostLostError(
                    f"{entry.name}: its job {job.number} {why}: not run within {timeout:g} s{state}",
                    hint=f"see: squeue -w {entry.slurm}",
                )
            time.sleep(_POLL_S)
