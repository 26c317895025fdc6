"""What runs on a client's host for hugewise: everything below the agent there, as its /proc shows it.

An account that is not root's has no cgroup of its own there in general. So the tree is looked at; what has ended in it
is counted by those that waited for it: the launchers do, and the agent for them.

Source: proc_pid_stat(5), proc_tid_children(5).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from hugewise.machine.agent import Agent
from hugewise.machine.foreign import heard
from hugewise.machine.machine import Contained
from hugewise.machine.noise import TICK
from hugewise.model.scene import RoleUse
from hugewise.reading import whole

__all__ = ["Below"]

_MOST = 4096  # processes that are looked at
_LAUNCHED = 3  # below the agent: guardian, launcher, program
_USER, _SYSTEM = 11, 12  # fields of `stat` behind the name, from the state on; those of children follow


@dataclass(frozen=True)
class Below(Contained):
    """Of the agent's host. Whatever makes no sense there is a MachineError."""

    agent: Agent

    def processes(self) -> list[int]:
        """The programs that were launched, and what descends from them."""
        with heard(self.agent.name, "its processes"):
            return [pid for pid, depth in self._tree() if depth >= _LAUNCHED]

    def used(self) -> RoleUse:
        """CPU time of all that was ever started, in steps of a clock tick; None where its kernel does not say."""
        with heard(self.agent.name, "the CPU time of its processes"):
            user = system = 0
            for pid, depth in self._tree():
                times = self._times(pid)
                if depth == 0:
                    times = (0, 0, *times[2:])  # its own are nobody's
                user, system = user + times[0] + times[2], system + times[1] + times[3]
            return RoleUse(cpu_s=(user + system) * TICK, user_s=user * TICK, system_s=system * TICK)

    def _tree(self) -> Iterator[tuple[int, int]]:
        """Each process with its depth below the agent, which is the first."""
        left = [(whole(self.agent.read("/proc/self/stat").split(" ", 1)[0], "its own number", low=1), 0)]
        seen = 0
        while left and (seen := seen + 1) <= _MOST:
            pid, depth = left.pop(0)
            yield pid, depth
            with suppress(OSError):  # it has ended
                told = self.agent.read(f"/proc/{pid}/task/{pid}/children").split()
                left += [(whole(child, "the number of a process", low=1), depth + 1) for child in told]

    def _times(self, pid: int) -> tuple[int, int, int, int]:
        """utime, stime, and those of its children that were waited for; none of a process that has ended."""
        try:
            fields = self.agent.read(f"/proc/{pid}/stat").rpartition(")")[2].split()
        except OSError:
            return (0, 0, 0, 0)
        user, system, child_user, child_system = (whole(each, "CPU time") for each in fields[_USER : _SYSTEM + 3])
        return user, system, child_user, child_system
