"""Orders: requests that a guest finds in its initramfs and carries out before anybody can reach it.

A guest that counts instructions is told everything so, and heard when all is done: nothing from outside falls into what
it counts. When its answers are collected, the files of its jobs hold what those of a live guest would. Afterwards it
answers like any other: what does not belong into the counted part (groups, knobs, files) is asked for then.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

from hugewise.errors import ProbeError, SettingError
from hugewise.host import knob
from hugewise.machine import messages, probe, requests
from hugewise.machine.agent import Agent
from hugewise.machine.messages import AgentFault, Answer
from hugewise.machine.remote import OUTPUTS, RemoteLauncher, remote_spec
from hugewise.machine.requests import Request

__all__ = ["NAME", "Order", "Orders", "Spawned"]

NAME = "orders.jsonl"  # of the file in the root of the initramfs


@dataclass
class Order:
    """One order, and what came of it once it is collected.

    optional  it may fail: then it is not named among what went wrong
    """

    request: Request
    optional: bool = False
    answer: Future[Answer] = field(default_factory=Future)

    def problem(self) -> str | None:
        """What was asked for and why it could not be done; None where it was done. Raises Malformed."""
        came = self.answer.result(0).came
        if isinstance(came, AgentFault):
            return f"{self.request}: {came.why}"
        messages.reply(came, messages.Nothing)
        return None


@dataclass
class Spawned:
    """A launcher that was ordered; its job's files are complete when the orders are collected."""

    process: int
    job: probe.Job
    order: Order
    launched: RemoteLauncher | None = None

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
        self._orders: list[Order] = []
        self._spawned: list[Spawned] = []
        self._knobs: dict[str, str] = {}
        self._outputs = outputs

    # -- giving them

    def write(self, path: str, text: str, *, optional: bool = False) -> None:
        """Write a file that is there."""
        self._add(requests.WriteFile(path, text), optional=optional)

    def turn(self, wanted: Mapping[str, str]) -> None:
        """Turn knobs. Whether the kernel took them is looked at when the orders are collected."""
        self._knobs |= {path: knob.canonical(value) for path, value in wanted.items()}
        # Twice: the kernel refuses some values as long as another knob is not yet turned (`hugewise.host.knob.turn`).
        for path, value in (*wanted.items(), *wanted.items()):
            self.write(path, value, optional=True)

    def settle(self, seconds: float) -> None:
        """Idle: what a kernel does in the background after boot is done then."""
        self._add(requests.Settle(seconds))

    def spawn(self, job: probe.Job) -> Spawned:
        """Start a launcher. Raises StorageError when what it is told cannot be kept."""
        if job.spec.barrier is not None:
            raise ProbeError("launchers of a guest cannot meet those of this host")
        process = len(self._spawned) + 1
        spec = remote_spec(job.spec, process, self._outputs)
        job.tell(spec)
        spawned = Spawned(process, job, self._add(requests.Spawn(process, spec)))
        self._spawned.append(spawned)
        return spawned

    def wait(self, spawned: Spawned) -> None:
        """Begin nothing more before that launcher has ended."""
        self._add(requests.Wait(spawned.process), optional=True)  # its start says why there is none

    def _add(self, request: Request, *, optional: bool = False) -> Order:
        self._orders.append(Order(request, optional))
        return self._orders[-1]

    def render(self) -> bytes:
        """The file for the initramfs. Raises OSError for an order that cannot be said (`requests.encode`)."""
        return b"".join(requests.encode(number, order.request) for number, order in enumerate(self._orders, 1))

    # -- hearing what came of them

    def collect(self, agent: Agent, timeout: float) -> list[str]:
        """Hear the agent out, instead of its hello: answers, processes, and the files that these left.

        Returns what could not be done, by what was asked for. Raises MachineError when the guest is gone, says
        another thing, or not all within `timeout` seconds; SettingError when it did not take a knob; StorageError.
        """
        end = time.monotonic() + timeout
        late = "has not carried out its orders"
        for each in self._spawned:
            each.launched = RemoteLauncher(agent, each.process, each.job, self._outputs)
        try:
            agent.expect(
                {number: order.answer for number, order in enumerate(self._orders, 1)},
                {each.process: each.launched for each in self._spawned if each.launched is not None},
            )
            agent.hello(timeout)
            for order in self._orders:
                agent.await_answer(order.answer, max(0.0, end - time.monotonic()), late)
                order.problem()
            for each in self._spawned:
                self._finish(agent, each, max(0.0, end - time.monotonic()))
        except messages.Malformed as error:
            raise agent.give_up(f"its agent answered something else than was ordered: {error}") from None
        finally:
            for each in self._spawned:
                if each.launched is not None:
                    each.launched.close()
        for drift in knob.differing(agent, self._knobs):
            raise SettingError(f"{agent.name} did not take {drift.path} = {drift.expected}: it is {drift.found}")
        problems = [order.problem() for order in self._orders if not order.optional]
        return [problem for problem in problems if problem is not None]

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
