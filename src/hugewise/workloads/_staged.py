"""Common parts of staged workloads: types of parameters, programs needed; no data and no client by default.

Programs are looked for in the usual folders too; each missing one is reported with its package.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache

from hugewise import unprivileged
from hugewise.errors import HugewiseError
from hugewise.machine import programs as places
from hugewise.model.policy import Treatment
from hugewise.model.procedure import Data, Places
from hugewise.model.workload import Missing, ParameterValue, RunsAs

Values = Mapping[str, ParameterValue]


def integer(values: Values, name: str) -> int:
    """Return a parameter of type integer or size (bytes)."""
    value = values[name]
    assert isinstance(value, int)
    return value


def float_value(values: Values, name: str) -> float:
    """Return a parameter of type number, duration (seconds), share or integer."""
    value = values[name]
    assert isinstance(value, int | float)
    return float(value)


# Folders of daemons and games in Debian, and of locally built programs, which PATH may lack.
_USUAL = ("/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin", "/usr/games", "/usr/local/games")


def find(name: str, *more: str) -> str | None:
    """Return the path of a program, on PATH or in the usual folders and `more`; None where there is none."""
    return places.which(name, *_USUAL, *more)


@lru_cache
def program_output(*argv: str) -> str | None:
    """Return a host program's output, stripped; None where it fails. Under root the unprivileged account runs it."""
    try:
        done = unprivileged.run(argv)
    except HugewiseError:
        return None
    return done.stdout.strip() if done.status == 0 else None


def not_on_path(programs: Iterable[tuple[str, str]]) -> Iterator[Missing]:
    """Yield the programs that are not on PATH, each with its Debian package."""
    for name, package in programs:
        if places.which(name) is None:
            yield Missing(f"{name}: no such program on PATH", package)


def missing_named(programs: Iterable[str]) -> tuple[Missing, ...]:
    """Return the missing programs that the study names: on this host, or in the image of its guests."""
    lacking = [name for name in programs if places.which(name) is None]
    if places.place() is None:
        return tuple(Missing(f"{name}: no such program on PATH", named=name) for name in lacking)
    where = 'in the guests\' image: name the Debian package that has it, packages = ["..."] in [guest]'
    return tuple(Missing(f"{name}: no such program {where}", named=name) for name in lacking)


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
        for name, known in self.choices:
            if str(values[name]) not in known:
                return f"{name} = {values[name]!r} is not one of {', '.join(known)}"
        for name, least in self.least:
            if float_value(values, name) < least:
                return f"{name} = {values[name]} must be at least {least}"
        for name in self.positive:
            if float_value(values, name) <= 0:
                return f"{name} = {values[name]} must be above 0"
        return None

    def missing(self, values: Values) -> tuple[Missing, ...]:
        return tuple(not_on_path(self.programs))

    def memory(self, treatment: Treatment, values: Values) -> int:
        return 0

    def pool(self, treatment: Treatment, values: Values) -> int:
        return self.pooled(treatment, values) if treatment.target.kind == "hugetlb" else 0

    def pooled(self, treatment: Treatment, values: Values) -> int:
        return self.memory(treatment, values)

    def stand_ins(self, values: Values) -> tuple[str, ...]:
        return ()

    def data(self, values: Values) -> Data | None:
        return None


class TimedAsAWhole(StagedWorkload):
    """A staged workload without servers (`FixedWork`), which takes its memory in its own turns."""

    def turns_refused(self, values: Values) -> str | None:
        return None

    def filled(self, values: Values) -> bool:
        return False


class PartedWorkload(StagedWorkload):
    """A staged workload whose clients may be on a host of their own (`Parted`): one server, with a password.

    client_programs  needed there; the load generator comes with hugewise
    """

    client_programs: tuple[str, ...] = ()

    def parted_refused(self, values: Values) -> str | None:
        return None

    def far_ports(self, values: Values, places: Places) -> int:
        return 1

    def far_programs(self, values: Values) -> tuple[str, ...]:
        return self.client_programs

    def unprotected_access(self, values: Values) -> str | None:
        return None
