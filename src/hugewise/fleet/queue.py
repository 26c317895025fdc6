"""What Slurm knows of jobs and nodes, asked for by its own programs; one answer serves all who ask within a second."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

import msgspec

from hugewise.errors import HugewiseError, UserError
from hugewise.fleet.programs import talked
from hugewise.machine.programs import of_root
from hugewise.visible import printable

__all__ = ["Node", "Queue", "QueuedJob"]

_PATIENCE_S: Final = 60.0
_MOST: Final = 64 << 20
_PROGRAMS: Final = ("sbatch", "squeue", "scancel", "sinfo")
_FRESH_S: Final = 1.0
# Job states of squeue(1) that are still to end. One that is new, or suspended, or whose node boots, is not over.
_WAITING: Final = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT")
_RUNNING: Final = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING")
# Node states of sinfo(1), without what may follow them, under which a job begins sooner or later by itself.
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
        """Whether it has its node."""
        return self.state in _RUNNING

    @property
    def alive(self) -> bool:
        """Whether something is still to come of it."""
        return self.runs or self.state in _WAITING

    @property
    def words(self) -> str:
        """How it is, in words of Slurm's."""
        why = f" ({self.reason})" if self.reason not in ("", "None") else ""
        return f"is {self.state}{why}"


class Node(msgspec.Struct, frozen=True):
    """A node: its state as sinfo says it, and why somebody took it away."""

    state: str
    reason: str = ""

    @property
    def usable(self) -> bool:
        """Whether a job can come to run on it without anybody's doing."""
        found = _STATE.match(self.state)
        return found is not None and found[0] in _USABLE and not self.state.endswith("*")

    @property
    def words(self) -> str:
        """Its state, and the reason that was given."""
        return self.state if self.reason in ("", "none") else f"{self.state} ({self.reason})"


class _Asked(Generic[_Found]):
    """An answer that is kept for a moment; one thread asks, the others wait for it."""

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
    """Of the cluster that the caller's own configuration names."""

    def __init__(self) -> None:
        self._jobs: _Asked[dict[str, QueuedJob]] = _Asked(self._ask_jobs)
        self.nodes: Callable[[], dict[str, Node]] = _Asked(self._ask_nodes)

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
        said = self._said(["sbatch", "--parsable"], text.encode())
        number = _NUMBER.match(said.strip())
        if number is None:
            raise HugewiseError(f"sbatch gives no number of a job: {printable(said)[:200]}")
        name = next(line.partition("=")[2] for line in text.splitlines() if line.startswith("#SBATCH --job-name="))
        self._jobs.forget()
        return QueuedJob(int(number[0]), name, "PENDING")

    def job(self, name: str) -> QueuedJob | None:
        """The newest job of that name, which may have ended; None where Slurm knows none any more."""
        return self._jobs().get(name)

    def cancel(self, job: QueuedJob, *how: str) -> None:
        """End a job, or send it the signal that `how` names. A job that has ended is no error. Raises HugewiseError."""
        try:
            self._said(["scancel", "--quiet", *how, str(job.number)])
        except HugewiseError:
            # scancel fails without a message for a job that has ended since squeue was asked, so squeue is asked again.
            self._jobs.forget()
            found = self.job(job.name)
            if found is not None and found.number == job.number and found.alive:
                raise
        self._jobs.forget()

    def _ask_jobs(self) -> dict[str, QueuedJob]:
        found: dict[str, QueuedJob] = {}
        said = self._said(["squeue", "--noheader", "--me", "--states=all", "--format=%i|%T|%j|%r"])
        for line in said.splitlines():
            number, state, name, reason = (*line.split("|", 3), "", "", "")[:4]
            if _NUMBER.fullmatch(number) and (name not in found or found[name].number < int(number)):
                found[name] = QueuedJob(int(number), name, state, printable(reason)[:500])
        return found

    def _ask_nodes(self) -> dict[str, Node]:
        said = self._said(["sinfo", "--noheader", "--Node", "--format=%N|%T|%E"])
        rows = (line.split("|", 2) for line in said.splitlines())
        return {row[0].strip(): Node(row[1].strip(), printable(row[2].strip())[:500]) for row in rows if len(row) == 3}

    @staticmethod
    def _said(words: Sequence[str], data: bytes = b"") -> str:
        """What a program of Slurm's says. Raises HugewiseError where it fails."""
        program = of_root(words[0])
        if program is None:
            raise HugewiseError(f"{words[0]} is not there", hint="apt install slurm-client")
        found = talked([program, *words[1:]], data, timeout=_PATIENCE_S, most=_MOST)
        if found.status:
            raise HugewiseError(printable(f"{words[0]}: {found.why}")[:500], hint="see: scontrol ping")
        return found.said.decode(errors="replace")
