"""A guest whose instructions are counted: it is told everything before it boots, so that nothing reaches it meanwhile.

To whoever plays an attempt it is a machine like any other, but one that is not there before its one program is started:
what is turned before becomes an order, and starting the program is what boots it. With the same orders and seed it
counts the same, bit for bit.

Orders: requests that a guest finds in its initramfs and carries out before anybody can reach it.

A guest that counts instructions is told everything so, and heard when all is done: nothing from outside falls into what
it counts. When its answers are collected, the files of its jobs hold what those of a live guest would. Afterwards it
answers like any other: what does not belong into the counted part (groups, knobs, files) is asked for then.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

from hugewise.errors import MachineError, ProbeError, SettingError
from hugewise.guests.survey import Survey, Surveyed
from hugewise.host import knob
from hugewise.machine import messages, probe, programs
from hugewise.machine.agent import Agent
from hugewise.machine.machine import Drift
from hugewise.machine.messages import AgentFault, Answer, Request
from hugewise.machine.remote import OUTPUTS, RemoteLauncher, remote_spec
from hugewise.model.host import Host

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
        self._add(messages.WriteFile(path, text), optional=optional)

    def turn(self, wanted: Mapping[str, str]) -> None:
        """Turn knobs. Whether the kernel took them is looked at when the orders are collected."""
        self._knobs |= {path: knob.canonical(value) for path, value in wanted.items()}
        # Twice: the kernel refuses some values as long as another knob is not yet turned (`hugewise.host.knob.turn`).
        for path, value in (*wanted.items(), *wanted.items()):
            self.write(path, value, optional=True)

    def settle(self, seconds: float) -> None:
        """Idle: what a kernel does in the background after boot is done then."""
        self._add(messages.Settle(seconds))

    def spawn(self, job: probe.Job) -> Spawned:
        """Start a launcher. Raises StorageError when what it is told cannot be kept."""
        if job.spec.barrier is not None:
            raise ProbeError("launchers of a guest cannot meet those of this host")
        process = len(self._spawned) + 1
        spec = remote_spec(job.spec, process, self._outputs)
        job.tell(spec)
        spawned = Spawned(process, job, self._add(messages.Spawn(process, spec)))
        self._spawned.append(spawned)
        return spawned

    def wait(self, spawned: Spawned) -> None:
        """Begin nothing more before that launcher has ended."""
        self._add(messages.Wait(spawned.process), optional=True)  # its start says why there is none

    def _add(self, request: Request, *, optional: bool = False) -> Order:
        self._orders.append(Order(request, optional))
        return self._orders[-1]

    def render(self) -> bytes:
        """The file for the initramfs. Raises OSError for an order that cannot be said (`messages.encode`)."""
        return b"".join(messages.encode(number, order.request) for number, order in enumerate(self._orders, 1))

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
        for drift in knob.differing_knobs(agent, self._knobs):
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


class CountingMachine:
    """A machine for one micro-workload: `machine.Machine`.

    boot     boots the guest with these orders, and returns its agent before anything was heard of it
    settle   seconds on the guest's clock in which it idles before the program starts: what a kernel does in the
             background after boot is done then
    patience seconds on this host's clock until all orders must be done
    """

    emulated = True
    counters = False

    def __init__(
        self, survey: Survey, name: str, boot: Callable[[bytes], Agent], *, settle: float, patience: float
    ) -> None:
        self.host: Host = _Planned(survey, name)
        self.environment: Mapping[str, str] = {"PATH": programs.PATH}
        self.knobs: dict[str, str] = {}
        self._boot, self._settle, self._patience = boot, settle, patience

    def cpus(self) -> tuple[int, ...]:
        """Its only one."""
        return (0,)

    def ports(self, count: int) -> tuple[int, ...]:
        """It has no network. Raises MachineError."""
        if count:
            raise self._cannot("has no network")
        return ()

    def start(self, job: probe.Job, inherited: tuple[int, ...] = ()) -> _Done:
        """Boot it, let it do everything, and hear it out; the launcher has ended then.

        Raises ProbeError, SettingError when a knob was not taken, MachineError when the guest is gone.
        """
        if inherited:
            raise ProbeError("launchers of a guest cannot meet those of this host")
        orders = Orders()
        for path, text in self._planned.writes:
            orders.write(path, text)
        orders.write("/proc/sys/kernel/perf_event_paranoid", "0", optional=True)  # the guest is nobody else's
        orders.turn(self.knobs)
        orders.settle(self._settle)
        spawned = orders.spawn(job)
        orders.wait(spawned)
        if problems := orders.collect(self._boot(orders.render()), self._patience):
            raise ProbeError(f"{self.host.name}: {'; '.join(problems)}")
        return _Done(spawned.status())

    def signal(self, pid: int, number: int) -> None:
        """Its program has ended."""

    def ask(self, *arguments: str) -> probe.Event:
        """It cannot be asked. Raises ProbeError."""
        raise ProbeError(f"{self.host.name} counts: it cannot be asked for {' '.join(arguments)}")

    def folder(self, path: str, uid: int | None, gid: int | None) -> None:
        """It has no files of its own. Raises MachineError."""
        raise self._cannot(f"has no folder {path}")

    def put(
        self, folder: str, name: str, content: bytes, uid: int | None, gid: int | None, *, mode: int = 0o644
    ) -> None:
        """Likewise."""
        raise self._cannot(f"takes no file {folder}/{name}")

    def files(self, folder: str, pattern: re.Pattern[str]) -> Iterator[bytes]:
        """Likewise."""
        raise self._cannot(f"has no files in {folder}")

    def remove(self, path: str) -> None:
        """There is nothing to remove."""

    @property
    def _planned(self) -> _Planned:
        assert isinstance(self.host, _Planned)
        return self.host

    def _cannot(self, what: str) -> MachineError:
        return MachineError(
            f"{self.host.name} counts instructions and runs micro-workloads alone: it {what}",
            hint="remove counting = true from [guest], or the workload from the study",
        )


class _Planned(Surveyed):
    """What the survey of its kernel says; what is written is kept as an order."""

    def __init__(self, survey: Survey, name: str) -> None:
        super().__init__(survey, name)
        self.writes: list[tuple[str, str]] = []

    def write(self, path: str, text: str) -> None:
        """Have it written when the guest has booted."""
        self.writes.append((path, text))


class CountingKnobs:
    """Its page settings: `serving.Knobs`. They are turned when it boots, and read back when it is heard out."""

    def __init__(self, machine: CountingMachine) -> None:
        self._machine = machine

    def apply(self, knobs: Mapping[str, str]) -> list[Drift]:
        """Have them turned."""
        self._machine.knobs = dict(knobs)
        return []

    def drift(self) -> list[Drift]:
        """Nobody else is there."""
        return []

    def values(self) -> Mapping[str, str]:
        """What was turned, and taken."""
        return self._machine.knobs


class _Done:
    """A launcher that has ended: `machine.Running`."""

    def __init__(self, status: int) -> None:
        self._status = status
        self._descriptor = os.eventfd(1, os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return self._descriptor

    def poll(self) -> int:
        return self._status

    def wait(self, timeout: float | None = None) -> int:
        return self._status

    def terminate(self) -> None:
        pass

    def kill(self) -> None:
        pass

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
