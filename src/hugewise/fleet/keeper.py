"""Keeper of an assignment: a process of its own that conducts the run, even after its starter has gone.

The keeper starts `hugewise run`, resumes it when it died (after `hugewise restore`, where it was killed), gives up
after the ordered number of tries, and records the state. It holds a lock while it lives; when it dies, its run is ended
as by Ctrl-C, so that the host is restored, and another keeper continues.
"""

from __future__ import annotations

import os
import re
import signal
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

from hugewise import processes
from hugewise.errors import HugewiseError
from hugewise.fleet import protocol
from hugewise.fleet.protocol import ENDED, THIS, BeginOrder, KeeperState
from hugewise.fleet.spool import (
    FINAL,
    KeeperRecord,
    SpoolEntry,
    identify,
    last_words,
)
from hugewise.quantity import format_duration
from hugewise.store.log import RunLog
from hugewise.store.records import Closed

_INTERRUPTED = 130  # exit status of a run that was interrupted
_ASKED_WRONGLY = 2
_PAUSES_S = (5.0, 30.0, 120.0, 300.0)
_SHUTDOWN_S = 3.0  # after a shutdown began, until it reaches the keeper too
_TRY_AGAIN_S = 30.0  # between tries to write the last state
_LONGEST_HELD_S = 24 * 3600.0  # anybody may take the lock that accounts share, and keep it
_RESTORE_S = 120.0
_TAKING_S = 10.0


HELD: Final = re.compile(r"holds (?:the lock of )?this host")  # as `errors.LockedError` words it
_STARTED: Final[list[subprocess.Popen[bytes]]] = []


def start_keeper(folder: Path, lock: int, command: Sequence[str] = THIS) -> None:
    """Start a keeper for the assignment in `folder`, which inherits `lock` and outlives it. Raises OSError."""
    _STARTED[:] = [child for child in _STARTED if child.poll() is None]  # reaps the ended children of a worker
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
    """`hugewise fleet keep FOLDER [LOCK]`: without LOCK, take the lock here; nothing to do where a keeper has it."""
    spooled = SpoolEntry(folder)
    if lock is not None:
        os.set_inheritable(lock, False)
        Keeper(spooled).keep()
        return
    end = time.monotonic() + _TAKING_S  # a reader holds the lock for a moment, too
    while True:
        with spooled.held() as free:
            if free is not None:
                Keeper(spooled).keep()
                return
        if time.monotonic() > end:
            return
        time.sleep(_TAKING_S / 100)


def conclude(spooled: SpoolEntry, order: BeginOrder, kept: KeeperRecord) -> bool:
    """Write an ended assignment's manifest, then its state; return whether both are on disk. Raises OSError."""
    spooled.write_manifest(order)
    return spooled.keep(kept)


@dataclass
class Keeper:
    """Keeper. `pauses`: before a run that died is resumed; `while_held`: before a held host is tried again."""

    spooled: SpoolEntry
    command: Sequence[str] = THIS
    pauses: Sequence[float] = _PAUSES_S
    while_held: float = _TRY_AGAIN_S
    longest_held: float = _LONGEST_HELD_S
    clock: Callable[[], float] = time.monotonic
    kept: KeeperRecord = field(default_factory=KeeperRecord)
    terminating: bool = False
    _child: subprocess.Popen[bytes] | None = None
    _held_since: float | None = None

    def keep(self) -> None:
        """Keep the assignment until its end, or until the host goes down. Raises HugewiseError where none was begun."""
        order = self.spooled.order()
        if order is None:
            raise HugewiseError(f"{self.spooled.path}: nothing was begun there")
        if self.spooled.concluded():
            return
        before = self.spooled.kept()
        died = before.keeper is not None and before.state not in FINAL  # it died without a last record
        restarts = before.restarts + (died and before.restarts < order.restarts)
        self.kept = msgspec.structs.replace(before, keeper=identify(os.getpid()), restarts=restarts)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._asked)
        self._say()  # before the check for an end: the orderer first writes, then looks for a keeper
        if died and before.restarts >= order.restarts:
            self._set_final("failed", f"its keeper died without a word, after {before.restarts} restarts")
        while not self._over(order):
            try:
                self._once(order)
            except HugewiseError as error:  # the files that the run left cannot be read
                self._set_final("failed", error.message)
            except OSError as error:  # the run could not be started
                self._again(order, f"it cannot be started: {error.strerror or error} ({error.filename or '-'})")
        self._say(keeper=None)  # the keeper ends regularly

    def _asked(self, number: int, frame: FrameType | None) -> None:
        # the host goes down, or the assignment is to end: so does the run
        del number, frame
        self.terminating = True
        if self._child is not None:
            with suppress(OSError):
                self._child.terminate()

    def _say(self, **changed: object) -> None:
        self.kept = msgspec.structs.replace(self.kept, **changed)
        if self.kept.state not in FINAL:
            self.spooled.keep(self.kept)

    def _set_final(self, state: KeeperState, reason: str | None) -> None:
        self.kept = msgspec.structs.replace(self.kept, state=state, reason=None if reason is None else reason[:4000])

    # -- next steps

    def _over(self, order: BeginOrder) -> bool:
        if self.kept.state not in FINAL:
            return self.terminating and not self.spooled.end_ordered()
        while True:
            try:
                if conclude(self.spooled, order, self.kept):
                    return True
            except OSError:
                pass  # no room for the manifest yet
            except HugewiseError as error:
                self._set_final("failed", error.message)
                if self.spooled.keep(msgspec.structs.replace(self.kept, unreadable=True)):
                    return True
            if self.terminating and not self.spooled.end_ordered():
                return True
            time.sleep(_TRY_AGAIN_S)

    def _once(self, order: BeginOrder) -> None:
        run = self.spooled.run()
        if run is not None and _closed(run):
            return self._set_final("ended", None)
        if self.spooled.end_ordered():
            return self._set_final("interrupted", ENDED)
        verb = ["run", str(self.spooled.path / "study.toml"), "--results", str(self.spooled.results)]
        verb += protocol.run_options(order.question)
        if order.client is not None:
            verb += ["--client", order.client.name, "--hosts", str(self.spooled.path / "hosts.toml")]
        self._say(state="running", reason=None)
        status = self._run_hugewise(verb if run is None else ["resume", str(run)], order)
        run = self.spooled.run()
        if run is not None and _closed(run):
            return None
        if status < 0 or (run is not None and status not in (0, _INTERRUPTED)):
            self._restore()
        if status == _INTERRUPTED and not self.terminating and not self.spooled.end_ordered():
            self._pause(_SHUTDOWN_S)
        if self.terminating or self.spooled.end_ordered():
            return self._say(state="waiting", reason="its host has ended it; it goes on when it is looked at")
        if status == _INTERRUPTED:
            return self._set_final("interrupted", "interrupted on its host")
        words = last_words(self.spooled.path / "said.txt")
        if status == _ASKED_WRONGLY and HELD.search(words):  # the host is in use: that is no fault of the run
            return self._wait_for_host(words)
        self._held_since = None
        how = f"exit status {status}" if status >= 0 else f"killed by signal {-status}"
        if status == _ASKED_WRONGLY:  # nothing becomes right by trying it again
            return self._set_final("failed", f"{how}: {words}")
        return self._again(order, f"{how}: {words}" if words else how)

    def _wait_for_host(self, words: str) -> None:
        now, limit = self.clock(), format_duration(self.longest_held)
        self._held_since = now if self._held_since is None else self._held_since
        if now - self._held_since >= self.longest_held:
            return self._set_final("failed", f"the host was in use for {limit}: {words}")
        self._say(state="waiting", reason=f"{words} (waits for {limit} at most)"[:4000])
        return self._pause(self.while_held)

    def _again(self, order: BeginOrder, reason: str) -> None:
        if self.kept.restarts >= order.restarts:
            return self._set_final("failed", reason)
        pause = self.pauses[min(self.kept.restarts, len(self.pauses) - 1)]
        self._say(state="waiting", reason=reason[:4000], restarts=self.kept.restarts + 1)
        return self._pause(pause)

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self.terminating and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 1.0))  # a signal's handler does not end a sleep

    # -- the run

    def _run_hugewise(self, verb: Sequence[str], order: BeginOrder) -> int:
        with (self.spooled.path / "said.txt").open("ab") as output:
            self._child = subprocess.Popen(
                [*self.command, *verb],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=order.question.directory,
                start_new_session=True,
                preexec_fn=partial(_end_with_keeper, os.getpid()),  # noqa: PLW1509  (no thread is running here)
            )
        if self.terminating:
            self._child.terminate()
        status = self._child.wait()
        self._child = None
        return status

    def _restore(self) -> None:
        # what cannot be restored is told by the next run as well
        with (self.spooled.path / "said.txt").open("ab") as output, suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [*self.command, "restore"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                check=False,
                timeout=_RESTORE_S,
            )


def _end_with_keeper(keeper: int) -> None:
    processes.die_with_parent(signal.SIGTERM)
    if os.getppid() != keeper:
        os._exit(1)


def _closed(run: Path) -> bool:
    return any(isinstance(record, Closed) for _, record in RunLog(run / "run.jsonl").read().records)
