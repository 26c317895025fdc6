"""What staged workloads have in common: what a parameter can be, the programs that are needed, no data, no client."""

from __future__ import annotations

from collections.abc import Collection

from hugewise.model.policy import Treatment
from hugewise.model.scene import Data
from hugewise.model.workload import Missing, RunsAs
from hugewise.workloads import _program
from hugewise.workloads._parameters import Values, number

__all__ = ["StagedWorkload"]


class StagedWorkload:
    """A staged workload. A subclass gives the rest of the protocol, and what differs.

    programs  run by their bare names, each with the Debian package that brings it
    choices   all that a text can be
    least     what a number must be at least
    positive  numbers that must be above 0
    """

    account: RunsAs = "unprivileged"
    stage_account: RunsAs = "unprivileged"
    ports = 0
    clients = False
    programs: tuple[tuple[str, str], ...] = ()
    choices: tuple[tuple[str, Collection[str]], ...] = ()
    least: tuple[tuple[str, int], ...] = ()
    positive: tuple[str, ...] = ()

    def refuses(self, treatment: Treatment, values: Values) -> str | None:
        """Values that cannot be."""
        for name, known in self.choices:
            if str(values[name]) not in known:
                return f"{name} = {values[name]!r} is not one of {', '.join(known)}"
        for name, least in self.least:
            if number(values, name) < least:
                return f"{name} = {values[name]} must be at least {least}"
        for name in self.positive:
            if number(values, name) <= 0:
                return f"{name} = {values[name]} must be above 0"
        return None

    def missing(self, values: Values) -> tuple[Missing, ...]:
        """Its programs."""
        return tuple(_program.not_on_path(self.programs))

    def memory(self, treatment: Treatment, values: Values) -> int:
        """Unknown before it runs."""
        return 0

    def pool(self, treatment: Treatment, values: Values) -> int:
        """Bytes of the pool that it maps, under a policy of one."""
        return self.pooled(treatment, values) if treatment.target.kind == "hugetlb" else 0

    def pooled(self, treatment: Treatment, values: Values) -> int:
        """The same, where the policy is of a pool: all of its memory."""
        return self.memory(treatment, values)

    def stand_ins(self, values: Values) -> tuple[str, ...]:
        """Nothing stands in for anything."""
        return ()

    def data(self, values: Values) -> Data | None:
        """It needs none."""
        return None
