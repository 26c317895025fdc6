"""Drivers of attempts: `CommandDriver` for a command alone; `service.ServiceDriver` for one with data or servers."""

from __future__ import annotations

import pwd
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple

from hugewise.attempt.outcome import Problem
from hugewise.attempt.procedure import ProcedureError
from hugewise.machine import noise, probe
from hugewise.machine.machine import Machine, Running
from hugewise.model.procedure import Reading, RoleUse


class Surroundings(NamedTuple):
    """Environment, folder and CPUs (None: any) of the timed command."""

    environment: Mapping[str, str]
    cwd: str
    cpus: tuple[int, ...] | None


class AttemptDriver:
    """Actions beside the timed command; the runner's steps call them in order. The base class does nothing.

    served   servers are the system under test, and the timed command is a client
    visited  the timed command is a client of the servers of all arms
    elsewhere  the timed command is a client on a host of its own
    gate     the timed command says when it is set up, and waits to be let go where it can
    seconds  length of the measured part, where that is not the whole command
    filled   what backed the servers' memory before their turns (empty: nothing is proven of that); None where there are
             no turns
    peaks    bytes that each process of the servers had at its most, where that was looked at
    begun    what the servers have begun, where that was seen (`Attempt.begun`)
    around   the machine's counters at both ends of the measured part, where they were looked at
    """

    served = False
    visited = False
    elsewhere = False
    gate = False
    seconds: float | None = None
    around: tuple[noise.Snapshot, noise.Snapshot] | None = None
    problem: Problem | None = None
    reading: Reading = Reading()
    filled: Sequence[probe.Coverage] | None = None
    coverage: Sequence[probe.Coverage] = ()
    footprint: int | None = None
    peaks: Sequence[int] = ()
    begun: Mapping[str, int] = MappingProxyType({})
    marks: Sequence[str] = ()
    counted: probe.Counters | str = ""

    def surroundings(self, added: Mapping[str, str]) -> Surroundings:
        """Return the surroundings of the timed command, with `added` in its environment."""
        raise NotImplementedError

    def afar(self, spec: probe.Spec, machine: Machine, added: Mapping[str, str]) -> tuple[probe.Spec, Machine]:
        """Return how and where the timed command starts, with `added` in its environment."""
        return spec, machine

    def supply(self) -> None:
        """Lay out what it needs."""

    def serve(self) -> None:
        """Start its servers."""

    def timing(self, *, held: bool) -> Callable[[Sequence[Running]], None]:
        """Return the action while the timed command runs. `held`: a client with a gate waits there to be let go."""
        return lambda _: None

    def mark(self) -> None:
        """Mark the begin or the end of the measured part."""

    def begin_anew(self) -> None:
        """Begin the measured part once more, after it was broken off for another attempt's sake."""

    def timed(self, *, failed: bool = False) -> None:
        """Note that the timed command has ended."""

    def fail(self, error: ProcedureError) -> None:
        """Note that the timed command was broken off."""
        self.problem = self.problem or Problem("failed", error.message)

    def conclude(self) -> None:
        """Do what comes after, and read the outputs."""

    def dismiss(self) -> None:
        """Stop what still runs, and remove the folders."""

    def close(self) -> None:
        """Whatever happened: nothing of it lives on."""

    def use(self, role: Literal["sut", "client"]) -> RoleUse:
        """Return what a role used in the measured part."""
        return RoleUse()

    def facts(self) -> Mapping[str, str | int | float]:
        """Return facts about the attempt: its work, its data, and where the data lay."""
        return {}


@dataclass(kw_only=True)
class CommandDriver(AttemptDriver):
    """A command and nothing beside it; `before` is done before it, and before its twin, in the same surroundings."""

    account: pwd.struct_passwd | None
    inherited: Mapping[str, str]
    cwd: str
    cpus: tuple[int, ...] | None
    before: Callable[[Surroundings], None] | None = None

    def supply(self) -> None:
        if self.before is not None:
            self.before(self.surroundings({}))

    def surroundings(self, added: Mapping[str, str]) -> Surroundings:
        who = self.account
        own = {} if who is None else {"HOME": who.pw_dir, "USER": who.pw_name, "LOGNAME": who.pw_name}
        return Surroundings({**self.inherited, **added, **own}, self.cwd, self.cpus)
