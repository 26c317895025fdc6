"""The keeper of an assignment: a process of its own that has the run conducted, whatever becomes of who began it.

It starts `hugewise run`, resumes it when it died (after `hugewise restore`, where it was killed), gives up after as
many times as it was ordered, and writes down how it is. While attempts are measured it has the engine's worker stopped,
or watches what that takes. Its lock is held as long as it lives; when it dies, its run is ended as by Ctrl-C, so that
the host is put back, and another keeper goes on.
"""

from __future__ import annotations

import os
import re
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final

import msgspec

from hugewise import processes, reading
from hugewise.errors import HugewiseError
from hugewise.fleet import protocol
from hugewise.fleet.installation import THIS
from hugewise.fleet.protocol import ENDED, BeginOrder, Cost, KeeperState
from hugewise.fleet.spool import FINAL, KeptState, SpoolEntry, last_words
from hugewise.fleet.worker import Guard, WorkerHeld, WorkerYield, let_go_on, process
from hugewise.session.progress import KeeperMessage
from hugewise.store.log import RunLog
from hugewise.store.records import Closed

_INTERRUPTED = 130  # exit status of a run that was interrupted
_ASKED_WRONGLY = 2
_PAUSES_S = (5.0, 30.0, 120.0, 300.0)
_SHUTDOWN_S = 3.0  # in which a host that goes down reaches the keeper too
_TRY_AGAIN_S = 30.0  # to write the last state
_RESTORE_S = 120.0
_TAKING_S = 10.0
_LONGEST_LINE = 1 << 16
HELD: Final = re.compile(r"holds (?:the lock of )?this host")  # as `errors.LockedError` says it
_STARTED: Final[list[subprocess.Popen[bytes]]] = []
_TOLD: msgspec.json.Decoder[KeeperMessage] = msgspec.json.Decoder(KeeperMessage)


def begin_keeping(folder: Path, lock: int, command: Sequence[str] = THIS) -> None:
    """Start a keeper for the assignment in `folder`, which inherits the descriptor `lock`. It has a session of its own,
    none of the other descriptors of who starts it, and outlives that. Raises OSError.
    """
    _STARTED[:] = [each for each in _STARTED if each.poll() is None]  # of a worker: those that have ended are reaped
    _STARTED.append(
        subprocess.Popen(
            [*command, "fleet", "keep", str(folder), str(lock)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
            pass_fds=(lock,),
        )
    )


def main(folder: Path, lock: int | None) -> None:
    """`hugewise fleet keep FOLDER [LOCK]`: without the descriptor of the lock it is taken here, and where another
    keeper has it, nothing is left to do.
    """
    spooled = SpoolEntry(folder)
    if lock is not None:
        os.set_inheritable(lock, False)
        Keeper(spooled).keep()
        return
    end = time.monotonic() + _TAKING_S  # who looks holds it for a moment, too
    while True:
        with spooled.held() as free:
            if free is not None:
                Keeper(spooled).keep()
                return
        if time.monotonic() > end:
            return
        time.sleep(_TAKING_S / 100)


def conclude(spooled: SpoolEntry, order: BeginOrder, kept: KeptState) -> bool:
    """Write down the manifest of an assignment that has come to its end, then its state; whether that is on disk.

    Raises OSError, HugewiseError.
    """
    run = spooled.run()
    spooled.make_manifest(order)
    return spooled.keep(
        msgspec.structs.replace(kept, folder=None if run is None else str(run.relative_to(spooled.results)))
    )


@dataclass
class Keeper:
    """One keeper. `command` is the hugewise that it has run; `pauses` are those before a run that died is resumed, and
    `while_held` that before it is tried again on a host that another run holds.
    """

    spooled: SpoolEntry
    command: Sequence[str] = THIS
    pauses: Sequence[float] = _PAUSES_S
    while_held: float = _TRY_AGAIN_S
    clock: Callable[[], float] = time.monotonic
    kept: KeptState = field(default_factory=KeptState)
    told_to_go: bool = False
    _child: subprocess.Popen[bytes] | None = None
    _worker: WorkerHeld = field(init=False)

    def keep(self) -> None:
        """Until the assignment has come to an end, or the host goes down. Raises HugewiseError where none was begun."""
        order = self.spooled.ordered()
        if order is None:
            raise HugewiseError(f"{self.spooled.path}: nothing was begun there")
        if self.spooled.concluded():
            return
        before = self.spooled.kept()
        died = before.keeper is not None and before.state not in FINAL  # without a word
        restarts = before.restarts + (died and before.restarts < order.restarts)
        self.kept = msgspec.structs.replace(before, keeper=process(os.getpid()), restarts=restarts)
        guard = Guard() if order.stop else None
        self._worker = WorkerHeld(stop=order.stop, guard=guard)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._asked)
        self._say()  # before it is looked whether to end it: who orders that looks who keeps it, after saying so
        try:
            if died:
                let_go_on(
                    WorkerYield(self.spooled.path.parent / "order", self.clock).worker()
                )  # it may still be stopped
                if before.restarts >= order.restarts:
                    self._finally("failed", f"its keeper died without a word, after {before.restarts} restarts")
            while not self._over(order):
                try:
                    self._once(order)
                except HugewiseError as error:  # what the run left cannot be read
                    self._finally("failed", error.message)
                except OSError as error:  # it could not be started
                    self._again(order, f"it cannot be started: {error.strerror or error} ({error.filename or '-'})")
            self._say(keeper=None)  # it does not die: it has nothing more to do
        finally:
            self._worker.go_on()
            if guard is not None:
                guard.close()

    def _asked(self, number: int, frame: FrameType | None) -> None:
        """The host goes down, or the assignment is to end: so does the run."""
        del number, frame
        self.told_to_go = True
        if self._child is not None:
            with suppress(OSError):
                self._child.terminate()

    def _say(self, **changed: object) -> None:
        """Have it on disk; a last state only when all that is shipped is known, by `conclude`."""
        self.kept = msgspec.structs.replace(self.kept, **changed)
        if self.kept.state not in FINAL:
            self.spooled.keep(self.kept)

    def _finally(self, state: KeeperState, reason: str | None) -> None:
        """It has come to its end: what is left is to conclude it."""
        self.kept = msgspec.structs.replace(self.kept, state=state, reason=None if reason is None else reason[:4000])

    # -- what comes next

    def _over(self, order: BeginOrder) -> bool:
        """Whether nothing more is to be done; the last state is on disk then, as soon as there is room for it."""
        if self.kept.state not in FINAL:
            return self.told_to_go and not self.spooled.to_end()
        while True:
            try:
                if conclude(self.spooled, order, self.kept):
                    return True
            except OSError:
                pass  # no room for the manifest yet
            except HugewiseError as error:
                self._finally("failed", error.message)
                if self.spooled.keep(msgspec.structs.replace(self.kept, unreadable=True)):
                    return True
            if self.told_to_go and not self.spooled.to_end():
                return True
            time.sleep(_TRY_AGAIN_S)

    def _once(self, order: BeginOrder) -> None:
        """Run or resume it once, and see how that ended."""
        run = self.spooled.run()
        if run is not None and _closed(run):
            return self._finally("ended", None)
        if self.spooled.to_end():
            return self._finally("interrupted", ENDED)
        verb = ["run", str(self.spooled.path / "study.toml"), "--results", str(self.spooled.results)]
        verb += protocol.options(order.question)
        if order.client is not None:
            verb += ["--client", order.client.name, "--hosts", str(self.spooled.path / "hosts.toml")]
        self._say(state="running", reason=None)
        status = self._conducted(verb if run is None else ["resume", str(run)], order)
        run = self.spooled.run()
        if run is not None and _closed(run):
            return None
        if status < 0 or (run is not None and status not in (0, _INTERRUPTED)):
            self._restore()
        if status == _INTERRUPTED and not self.told_to_go and not self.spooled.to_end():
            self._pause(_SHUTDOWN_S)
        if self.told_to_go or self.spooled.to_end():
            return self._say(state="waiting", reason="its host has ended it; it goes on when it is looked at")
        if status == _INTERRUPTED:
            return self._finally("interrupted", "interrupted on its host")
        said = last_words(self.spooled.path / "said.txt")
        if status == _ASKED_WRONGLY and HELD.search(said):  # it is in use: that is no fault of the run
            self._say(state="waiting", reason=said[:4000])
            return self._pause(self.while_held)
        how = f"exit status {status}" if status >= 0 else f"killed by signal {-status}"
        if status == _ASKED_WRONGLY:  # nothing becomes right by trying it again
            return self._finally("failed", f"{how}: {said}")
        return self._again(order, f"{how}: {said}" if said else how)

    def _again(self, order: BeginOrder, reason: str) -> None:
        """Wait for the next try, where one is left."""
        if self.kept.restarts >= order.restarts:
            return self._finally("failed", reason)
        pause = self.pauses[min(self.kept.restarts, len(self.pauses) - 1)]
        self._say(state="waiting", reason=reason[:4000], restarts=self.kept.restarts + 1)
        return self._pause(pause)

    def _pause(self, seconds: float) -> None:
        """Wait, unless told to go meanwhile or before."""
        end = time.monotonic() + seconds
        while not self.told_to_go and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 1.0))  # a signal's handler does not end a sleep

    # -- the run

    def _conducted(self, verb: Sequence[str], order: BeginOrder) -> int:
        """Have hugewise do it, to its end; its exit status, negative the signal that ended it."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs, (self.spooled.path / "said.txt").open("ab") as said:
                self._child = subprocess.Popen(
                    [*self.command, *verb, f"--keeper={theirs.fileno()}"],
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=said,
                    cwd=order.question.directory,
                    start_new_session=True,
                    pass_fds=(theirs.fileno(),),
                    preexec_fn=partial(_end_with_keeper, os.getpid()),  # noqa: PLW1509  (no thread is running here)
                )
            if self.told_to_go:
                self._child.terminate()
            try:
                self._hear(ours)
            finally:
                self._worker.over(self.clock())
                self._worker.go_on()
                status = self._child.wait()
                self._child = None
        self._say(cost=self._cost())
        return status

    def _cost(self) -> Cost:
        held, before = self._worker, self.kept.cost
        added = held.worker_s
        held.worker_s, measured, held.measured_s = None, held.measured_s, 0.0
        return msgspec.structs.replace(
            before,
            measured_s=before.measured_s + measured,
            worker_s=before.worker_s if added is None else (before.worker_s or 0.0) + added,
            stopped=before.stopped or held.ever_stopped,
        )

    def _hear(self, run: socket.socket) -> None:
        """Answer the run until it says no more, or has ended without closing what it says it by."""
        assert self._child is not None
        breath = WorkerYield(self.spooled.path.parent / "order", self.clock)
        ended, rest = os.pidfd_open(self._child.pid), b""
        try:
            with selectors.DefaultSelector() as ready:
                ready.register(run, selectors.EVENT_READ)
                ready.register(ended, selectors.EVENT_READ)
                while True:
                    found = [key.fileobj for key, _ in ready.select()]
                    if run not in found:
                        if found:
                            return
                        continue
                    with suppress(ConnectionResetError):
                        if more := run.recv(_LONGEST_LINE):
                            *lines, rest = (rest + more)[-_LONGEST_LINE:].split(b"\n")
                            for line in lines:
                                self._heard(line, breath)
                                run.sendall(b".")
                            continue
                    return
        except BrokenPipeError:
            return
        finally:
            os.close(ended)

    def _heard(self, line: bytes, breath: WorkerYield) -> None:
        """What the run said: it waits for the answer, so that no attempt is under way."""
        try:
            told = reading.decoded(_TOLD, line)
        except reading.UnreadableError:
            return
        if told.event == "attempt":
            self._worker.attempt(breath.worker(), self.clock())
            return
        self._worker.over(self.clock())
        cost = self._cost()
        # The worker learns what there is to know before it is let go on.
        changed: dict[str, object] = {"closed": told.closed, "blocks": told.blocks, "left_s": told.left_s, "cost": cost}
        if told.run and (run := self.spooled.run()) is not None:
            changed["folder"] = str(run.relative_to(self.spooled.results))
        self._say(**changed)
        if breath.due():
            self._worker.go_on()
            breath.take()

    def _restore(self) -> None:
        """Have the host put back what a run left that died. What cannot be is told by the next run as well."""
        with (self.spooled.path / "said.txt").open("ab") as said, suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [*self.command, "restore"],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                cwd="/",
                check=False,
                timeout=_RESTORE_S,
            )


def _end_with_keeper(keeper: int) -> None:
    """In the run's process, before it is one: it is interrupted when its keeper dies, also in this moment."""
    processes.die_with_parent(signal.SIGTERM)
    if os.getppid() != keeper:
        os._exit(1)


def _closed(run: Path) -> bool:
    """Whether the run has its last record. Raises HugewiseError where its log is not what was written."""
    return any(isinstance(record, Closed) for _, record in RunLog(run / "run.jsonl").read().records)
