"""Slurm as the engine of a fleet: one exclusive job a host, as plain text for sbatch, whose body is the keeper.

The spool lies in a folder that the nodes share with the coordinator (such as a home on NFS): there all orders are
obeyed by the coordinator itself, but for the question who a host is, which is a short job on its node. A job that waits
is an assignment that has not begun; one that ended without a last word (its node went down, its time was over) is
queued again when it is looked at, as the same run. See sbatch(1), squeue(1), scancel(1), sinfo(1), sacct(1).
"""

from __future__ import annotations

import re
import secrets
import shlex
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from hugewise import reading
from hugewise.beneath import discard
from hugewise.errors import HostLostError, HugewiseError, UserError
from hugewise.files import write_whole
from hugewise.fleet import orders, spool
from hugewise.fleet.entries import HostEntry
from hugewise.fleet.inventory import Inventory
from hugewise.fleet.keeper import conclude
from hugewise.fleet.kept import FINAL, Spooled
from hugewise.fleet.orders import (
    MOST_MESSAGE,
    Assignment,
    AssignmentSeen,
    EndOrder,
    HelloOrder,
    HostAnswer,
    HostOrder,
    LookOrder,
    decode_answer,
)
from hugewise.fleet.place import HostPlace
from hugewise.fleet.queue import Queue, QueuedJob
from hugewise.visible import printable

__all__ = ["SlurmEngine", "job_text"]

_POLL_S: Final = 0.5
_MOST_SAID: Final = 8192
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PLAIN: Final = re.compile(r"[A-Za-z0-9._/@+=:,%-]+")


def job_text(
    *, name: str, node: str, output: Path, body: str, partition: str | None = None, options: tuple[str, ...] = ()
) -> str:
    """What sbatch is given: a job that has the node for itself, and is not begun again by Slurm. Nothing of the
    coordinator's environment goes with it.
    """
    asked = [
        f"--job-name={name}",
        f"--nodelist={node}",
        *("--nodes=1", "--exclusive", "--no-requeue", "--export=NIL"),
        f"--output={output}",
        "--open-mode=append",
        *([] if partition is None else [f"--partition={partition}"]),
        *options,
    ]
    assert all(_PLAIN.fullmatch(each) for each in asked)  # the inventory and the fleet's names have no others
    lines = "".join(f"#SBATCH {each}\n" for each in asked)
    return f"#!/bin/sh\n{lines}PATH={_PATH}\nexport PATH\n{body}\n"


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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Jobs go on."""

    def present(self) -> frozenset[str]:
        """All of them: what lies in the spool can be asked whatever its node does."""
        return frozenset(self._entries)

    def call(self, host: str, order: HostOrder, timeout: float = 60.0) -> HostAnswer:
        """See `engine.Engine`. Lost is a host whose node is not to be had, and whose job does not run."""
        entry = self._entries[host]
        if isinstance(order, HelloOrder):
            return self._hello(entry, order, timeout)
        place = HostPlace(self._spool(entry), start=lambda folder, _: self._submit(entry, folder))
        if isinstance(order, EndOrder):
            return self._end(entry, order, place)
        answer = decode_answer(spool.answered(orders.encode(order), place))
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
        """The last job of an assignment that is known to Slurm."""
        return self._queue.job(self._name(entry, assignment))

    def _submit(self, entry: HostEntry, folder: Path) -> None:
        """Queue the keeper of the assignment in `folder`, unless it is queued. Raises HugewiseError."""
        order = Spooled(folder).ordered()
        assert order is not None
        known = self._job(entry, order.assignment)
        if known is not None and known.alive:
            return
        body = shlex.join(["exec", *self._hugewise(entry), "keep", str(folder)])
        self._queue.submit(self._text(entry, self._name(entry, order.assignment), folder / "job.txt", body))

    def _text(self, entry: HostEntry, name: str, output: Path, body: str) -> str:
        assert entry.slurm is not None  # the inventory sees to it
        fleet = self._inventory.fleet
        return job_text(
            name=name, node=entry.slurm, output=output, body=body, partition=fleet.partition, options=fleet.sbatch
        )

    def _waiting(self, entry: HostEntry, seen: AssignmentSeen) -> AssignmentSeen:
        """What is seen, with what its job waits for. Raises HostLostError where its node is not to be had."""
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
        said = "; ".join(each for each in (seen.reason, printable(queued)) if each)
        return msgspec.structs.replace(seen, keeper=job is not None and job.alive, reason=said[:4000])

    def _end(self, entry: HostEntry, order: EndOrder, place: HostPlace) -> HostAnswer:
        """The keeper of a job that runs is told by a signal; a job that waits is cancelled, and has never begun."""
        answer = decode_answer(spool.answered(orders.encode(order), place))
        job = self._job(entry, order.assignment)
        if job is None or not job.alive:
            self._concluded(place, order)
        elif job.runs:
            self._queue.cancel(job, "--signal=TERM", "--batch")
        else:
            self._queue.cancel(job)
            self._concluded(place, order)
        return answer

    def _concluded(self, place: HostPlace, order: EndOrder) -> None:
        """Write down the end of what no keeper has."""
        spooled = Spooled(place.spool / order.assignment.fleet / str(order.assignment.number))
        begun = spooled.ordered()
        if begun is None:
            return
        with spooled.held() as free:
            kept = spooled.kept()
            if free is not None and kept.state not in FINAL:
                told = msgspec.structs.replace(kept, state="interrupted", reason=orders.ENDED)
                conclude(spooled, begun, told)

    # -- who it is

    def _hello(self, entry: HostEntry, order: HelloOrder, timeout: float) -> HostAnswer:
        """A job that obeys one order on the node. Raises HostLostError where it has not run in time."""
        folder = self._spool(entry)
        try:
            spool.have_spool(folder)
            return self._asked(entry, order, folder, timeout)
        except OSError as error:
            raise HugewiseError(
                f"{entry.name}: {error.filename or folder}: {error.strerror}", hint="name a shared folder: spool = ..."
            ) from None

    def _asked(self, entry: HostEntry, order: HelloOrder, folder: Path, timeout: float) -> HostAnswer:
        token = f".hello-{secrets.token_hex(8)}"
        asking, saying, answer = (folder / f"{token}{end}" for end in (".order", ".part", ".answer"))
        said = folder / f"{token}.txt"
        words = shlex.join([*self._hugewise(entry), "obey", "--spool", str(folder)])
        body = f"{words} < {shlex.quote(str(asking))} > {shlex.quote(str(saying))} && mv {saying} {answer}"
        write_whole(asking, orders.encode(order), 0o600)
        job = None
        try:
            job = self._queue.submit(self._text(entry, f"hugewise{token}-{entry.name}", said, body))
            self._answered(entry, job, answer, timeout)
            return decode_answer(reading.content(answer, MOST_MESSAGE))
        except reading.UnreadableError:
            told = _tail(said)
            raise HugewiseError(
                f"{entry.name}: hugewise fleet obey on {entry.slurm}: {told or 'it gave no answer'}",
                hint="install it where the nodes see it, and name its folder with installation = ...",
            ) from None
        finally:
            if job is not None and not answer.exists():
                with suppress(HugewiseError):
                    self._queue.cancel(job)
            for path in (asking, saying, answer, said):
                discard(path)

    def _answered(self, entry: HostEntry, job: QueuedJob, answer: Path, timeout: float) -> None:
        end = time.monotonic() + timeout
        while not answer.exists():
            now = self._queue.job(job.name)
            if now is not None and not now.alive:
                time.sleep(_POLL_S)  # for the file to be seen here
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


def _tail(path: Path) -> str:
    try:
        lines = reading.content(path, _MOST_SAID, part="tail").decode(errors="replace").split("\n")
    except reading.UnreadableError:
        return ""
    return printable(" ".join([line for line in lines if line.strip()][-2:]))[:500]
