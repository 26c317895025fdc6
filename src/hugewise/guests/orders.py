"""Orders: requests that a guest finds in its initramfs and carries out before anybody can reach it.

A guest that counts instructions is told everything so, and heard when all is done: nothing from outside falls into what
it counts. When its answers are collected, the files of its jobs hold what those of a live guest would. Afterwards it
answers like any other: what does not belong into the counted part (groups, knobs, files) is asked for then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec

from hugewise.errors import ProbeError, SettingError
from hugewise.guests import messages
from hugewise.guests.agent import CHUNK, Agent, event
from hugewise.guests.leaf import ROOT
from hugewise.guests.machine import OUTPUTS, GuestHost, Launched, guest_spec, tell
from hugewise.guests.messages import Answer, Fault, Request
from hugewise.host import knob
from hugewise.machine import probe

__all__ = ["NAME", "Order", "Orders", "Spawned"]

NAME = "orders.jsonl"  # of the file in the root of the initramfs

_T = TypeVar("_T")


@dataclass
class Order(Generic[_T]):
    """One order, and what came of it once it is collected.

    optional  it may fail: then it is not named among what went wrong
    """

    request: Request
    form: Callable[[msgspec.Raw], _T]
    optional: bool = False
    answer: Future[Answer] = field(default_factory=Future)

    def get(self) -> _T:
        """What came of it. Raises OSError with the guest's errno, ValueError before it is collected."""
        if not self.answer.done():
            raise ValueError(f"{self.request}: nothing is known before the orders are collected")
        came = self.answer.result().came
        if isinstance(came, Fault):
            raise came.error(getattr(self.request, "path", None))
        return self.form(came)

    def problem(self) -> str | None:
        """What was asked for and why it could not be done; None where it was done."""
        try:
            self.get()
        except OSError as error:
            return f"{self.request}: {error.strerror}"
        return None


@dataclass
class Spawned:
    """A launcher that was ordered; its job's files are complete when the orders are collected."""

    process: int
    job: probe.Job
    order: Order[None]
    launched: Launched | None = None

    def status(self) -> int:
        """Its exit status (negative: the signal that killed it). Raises ProbeError, StorageError."""
        if (problem := self.order.problem()) is not None:
            raise ProbeError(problem)
        assert self.launched is not None
        return self.launched.wait(0)


class Orders:
    """What a guest is to do, in this order. Nothing is checked before the guest does it.

    outputs  folder in the guest for what programs say
    """

    def __init__(self, outputs: str = OUTPUTS) -> None:
        self._orders: list[Order[Any]] = []
        self._spawned: list[Spawned] = []
        self._knobs: dict[str, str] = {}
        self._outputs = outputs

    # -- giving them

    def read(self, path: str) -> Order[str]:
        """Read a file; its text, stripped."""
        return self._add(messages.Read(path), lambda raw: messages.reply(raw, messages.Text).text.strip())

    def write(self, path: str, text: str, *, optional: bool = False) -> Order[None]:
        """Write a file that is there."""
        return self._add(messages.Write(path, text), _nothing, optional=optional)

    def turn(self, wanted: Mapping[str, str]) -> None:
        """Turn knobs. Whether the kernel took them is looked at when the orders are collected."""
        self._knobs |= {path: knob.canonical(value) for path, value in wanted.items()}
        # Twice: the kernel refuses some values as long as another knob is not yet turned (`hugewise.host.knob.turn`).
        for path, value in (*wanted.items(), *wanted.items()):
            self.write(path, value, optional=True)

    def make(self, path: str, mode: int = 0o755, uid: int | None = None, gid: int | None = None) -> Order[None]:
        """Make a folder."""
        return self._add(messages.Make(path, mode, uid, gid), _nothing)

    def remove(self, path: str) -> Order[None]:
        """Remove a file, or a folder with everything in it."""
        return self._add(messages.Remove(path), _nothing)

    def put(self, path: str, content: bytes, mode: int, *, uid: int | None = None, gid: int | None = None) -> None:
        """Write a file, with the folders that it lies in."""
        for start in range(0, max(1, len(content)), CHUNK):
            data = content[start : start + CHUNK]
            self._add(messages.Put(path, mode, uid, gid, start, data), _nothing)

    def mount(self, source: str, target: str, kind: str, options: str = "") -> Order[None]:
        """Mount a file system."""
        return self._add(messages.Mount(source, target, kind, options), _nothing)

    def group(self, name: str) -> str:
        """Make a cgroup; returns its cgroup.procs file. `leaf.Groups.leaf(name)` is the same group afterwards."""
        if not any(order.request == messages.Make(ROOT, 0o755, None, None) for order in self._orders):
            self.make(ROOT)
            for controller in ("memory", "pids"):  # where the kernel has them
                self.write(f"{ROOT}/cgroup.subtree_control", f"+{controller}", optional=True)
        self.make(f"{ROOT}/{name}")
        return f"{ROOT}/{name}/cgroup.procs"

    def settle(self, seconds: float) -> Order[None]:
        """Idle: what a kernel does in the background after boot is done then."""
        return self._add(messages.Settle(seconds), _nothing)

    def spawn(self, job: probe.Job) -> Spawned:
        """Start a launcher. Raises StorageError when what it is told cannot be kept."""
        if job.spec.barrier is not None:
            raise ProbeError("launchers of a guest cannot meet those of this host")
        process = len(self._spawned) + 1
        spec = guest_spec(job.spec, process, self._outputs)
        tell(job, spec)
        spawned = Spawned(process, job, self._add(messages.Spawn(process, spec), _nothing))
        self._spawned.append(spawned)
        return spawned

    def wait(self, spawned: Spawned) -> None:
        """Begin nothing more before that launcher has ended."""
        self._add(messages.Wait(spawned.process), _nothing, optional=True)  # its start says why there is none

    def ask(self, *arguments: str) -> Order[probe.Event]:
        """The first event of a short subcommand of the probe."""
        return self._add(messages.Ask(arguments), lambda raw: event(messages.reply(raw, messages.Asked)))

    def _add(self, request: Request, form: Callable[[msgspec.Raw], _T], *, optional: bool = False) -> Order[_T]:
        order = Order(request, form, optional)
        self._orders.append(order)
        return order

    def render(self) -> bytes:
        """The file for the initramfs. Raises OSError for an order that cannot be said (`messages.encode`)."""
        return b"".join(messages.encode(number, order.request) for number, order in self._numbered())

    def _numbered(self) -> list[tuple[int, Order[Any]]]:
        return list(enumerate(self._orders, 1))

    # -- hearing what came of them

    def collect(self, agent: Agent, timeout: float) -> list[str]:
        """Hear the agent out, instead of its hello: answers, processes, and the files that these left.

        Returns what could not be done, by what was asked for. Raises MachineError when the guest is gone, says
        another thing, or not all within `timeout` seconds; SettingError when it did not take a knob; StorageError.
        """
        end = time.monotonic() + timeout
        late = "has not carried out its orders"
        for each in self._spawned:
            each.launched = Launched(agent, each.process, each.job, self._outputs)
        try:
            agent.expect(
                {number: order.answer for number, order in self._numbered()},
                {each.process: each.launched for each in self._spawned if each.launched is not None},
            )
            agent.hello(timeout)
            for order in self._orders:
                agent.await_answer(order.answer, max(0.0, end - time.monotonic()), late)
                self._check(agent, order)
            for each in self._spawned:
                self._finish(agent, each, max(0.0, end - time.monotonic()))
        finally:
            for each in self._spawned:
                if each.launched is not None:
                    each.launched.close()
        for drift in knob.differing(GuestHost(agent), self._knobs):
            raise SettingError(f"guest {agent.name} did not take {drift.path} = {drift.expected}: it is {drift.found}")
        problems = ((order, order.problem()) for order in self._orders)
        return [problem for order, problem in problems if problem is not None and not order.optional]

    @staticmethod
    def _check(agent: Agent, order: Order[Any]) -> None:
        try:
            with suppress(OSError):
                order.get()
        except messages.Malformed as error:
            raise agent.give_up(f"its agent answered something else than was ordered: {error}") from None

    @staticmethod
    def _finish(agent: Agent, spawned: Spawned, patience: float) -> None:
        assert spawned.launched is not None
        if spawned.order.problem() is not None:
            spawned.launched.lost()
            return
        try:
            spawned.launched.wait(patience)
        except TimeoutError:
            raise agent.give_up(f"it has not ended {' '.join(spawned.job.spec.argv)} in time") from None


def _nothing(raw: msgspec.Raw) -> None:
    messages.reply(raw, messages.Nothing)
