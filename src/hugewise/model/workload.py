"""A workload: one file under `workloads/`, found by its module's `WORKLOAD`.

It declares its parameters and metrics, which treatments it can take, what it needs of the machine, how much memory it
touches, and where the proof of its pages comes from. It performs no effects itself: the runner does. There are two ways
to say what runs: `Direct` is one command an attempt; `Staged` (`model.procedure`) has data, servers, clients, or an
output that must be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol, runtime_checkable

import msgspec

from hugewise.model.metric import Metric
from hugewise.model.policy import DeployedFile, Treatment

Configuration = tuple[Mapping[str, str], tuple[DeployedFile, ...]]
"""The variables that a server is started with, and the files that configure it."""

MARKS = ("{port}", "{folder}")
"""Placeholders in the commands of a service for a free port, and for the attempt's own folder."""

ParameterValue = str | int | float | bool | tuple[str, ...]
ParameterType = Literal["size", "integer", "number", "duration", "share", "text", "texts", "argv", "flag"]

# Where the coverage of an attempt comes from:
#   ranges    the micro-workload names its address ranges and holds them mapped after its timed region
#   exit      processes are stopped at exit with their memory still mapped, the clock already read
#   counters  the kernel's per-size fault counters around the attempt (memory too short-lived to scan)
#   twin      an untimed second run of the same command, in which every process is stopped and scanned
#   live      the servers' named memory, scanned when the measured window is over and they still hold it
Proof = Literal["ranges", "exit", "counters", "twin", "live"]

# Whom a program runs as where hugewise is root, unless the study names a user: `nobody`, or who called sudo.
RunsAs = Literal["unprivileged", "caller", "root"]


class Parameter(msgspec.Struct, frozen=True):
    """A workload's parameter; in a study a list of values makes a factor of it.

    `pattern` is a regular expression that the whole of a text must match, `words` says what such a text is.
    """

    name: str
    type: ParameterType
    default: ParameterValue | None
    description: str
    pattern: str | None = None
    words: str = "text"


GONE: Mapping[str, Mapping[str, ParameterValue]] = {
    "memcached": {"large_pages": False, "client": "probe"},
    "redis": {"malloc_conf": "", "client": "probe"},
    "sysbench-memory": {"scope": "global", "operation": "write", "access": "seq"},
    "tpcc": {"seed": 1, "sysbench_tpcc": ""},
    "x264": {"clips": "", "preset": "medium", "copy_binary": True},
}
"""Parameters that workloads had, with their defaults: stored runs have them. Where another workload
has a parameter of that name, its default is the same.
"""


def without_defaults(values: Mapping[str, ParameterValue]) -> dict[str, ParameterValue]:
    """Return the values without empty lists, empty texts, flags that are not set, and defaults of `GONE`. Such a
    parameter can be younger than a run, or gone since: the run was the same all the same.
    """
    said = {name: value for name, value in values.items() if value not in ((), "") and value is not False}
    gone = [parameter for each in GONE.values() for parameter in each.items()]
    return {name: value for name, value in said.items() if (name, value) not in gone}


class Missing(msgspec.Struct, frozen=True):
    """A requirement that the machine lacks, in words, and the Debian package that brings it (None: nothing to install).

    Several packages are separated by blanks. `here`: it is this host that lacks it, also where the workload runs in a
    guest. `named`: a program that the study names, of which nobody here knows which package has it.
    """

    reason: str
    package: str | None = None
    here: bool = False
    named: str = ""


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """Command that the probe starts. `micro` means one of the probe's own micro-workloads: argv without the program's
    name.

    cwd       where it runs; None: where hugewise was started
    success   exit statuses that mean that it did its work (SAT solvers say 10 and 20)
    prepare   what is run to its end before it, outside the timed region; empty: nothing
    stdin     path of the file that is its standard input, opened anew for each run; empty: no input
    """

    argv: tuple[str, ...]
    proof: Proof
    micro: bool = False
    environment: Mapping[str, str] = {}
    cwd: str | None = None
    success: tuple[int, ...] = (0,)
    prepare: tuple[str, ...] = ()
    stdin: str = ""


class Workload(Protocol):
    """Program that runs under each policy of a cell."""

    name: str
    description: str
    parameters: tuple[Parameter, ...]
    metrics: tuple[Metric, ...]  # the first is judged unless the study names another
    account: RunsAs  # of the timed command
    delivered_share: float  # default share of the named memory at the stated size that counts as delivered

    def refuses(self, treatment: Treatment, values: Mapping[str, ParameterValue]) -> str | None:
        """Return why this workload cannot take the treatment, or None when it can."""
        ...

    def missing(self, values: Mapping[str, ParameterValue]) -> tuple[Missing, ...]:
        """Return the requirements of this workload that the machine lacks; empty when it can run."""
        ...

    def memory(self, treatment: Treatment, values: Mapping[str, ParameterValue]) -> int:
        """Return bytes that one attempt touches, as far as known before it runs (0: unknown)."""
        ...

    def pool(self, treatment: Treatment, values: Mapping[str, ParameterValue]) -> int:
        """Bytes of hugetlb pages that one attempt maps under this treatment (0: none, or another kind of pages)."""
        ...


@runtime_checkable
class OutputParser(Workload, Protocol):
    """A command whose output holds metrics that its parameters name (a `Staged` one reads its outputs itself)."""

    def named(self, values: Mapping[str, ParameterValue]) -> tuple[Metric, ...]:
        """Return the metrics that the parameters name, the judged one first. Raises ValueError."""
        ...

    def parse(self, stdout: str, stderr: str, values: Mapping[str, ParameterValue]) -> Mapping[str, float]:
        """Return their numbers, in what the command printed. Raises ValueError naming what was looked for and found."""
        ...


@runtime_checkable
class Laid(Workload, Protocol):
    """A workload whose program takes a layout of its heap."""

    def unlaid(self, treatment: Treatment, values: Mapping[str, ParameterValue]) -> str | None:
        """Return why the treatment's layout does not reach its program, or None when it does."""
        ...


@runtime_checkable
class OwnPool(Workload, Protocol):
    """A workload whose program may be told, by an option of its own, to take pages of a pool."""

    def short(
        self, treatment: Treatment, values: Mapping[str, ParameterValue], coverage: Mapping[str, int]
    ) -> str | None:
        """Return why its option had no effect, by the pages of its memory (bytes by `kind:page size`), or None where it
        had, or was not asked for.
        """
        ...


@runtime_checkable
class StandIn(Workload, Protocol):
    """A workload with something in it that stands in for what others publish figures of."""

    def stand_ins(self, values: Mapping[str, ParameterValue]) -> tuple[str, ...]:
        """Return the programs that stand in for others, in words that reports print beside the figures, or nothing."""
        ...


@runtime_checkable
class Direct(Workload, Protocol):
    """A workload that is one command, timed as a whole or by itself."""

    def launch(self, treatment: Treatment, values: Mapping[str, ParameterValue]) -> Launch:
        """Return the command for one attempt."""
        ...


@runtime_checkable
class Filled(Workload, Protocol):
    """A workload that says whether its memory is there before its timed part begins."""

    def filled(self, values: Mapping[str, ParameterValue]) -> bool:
        """Return whether all memory that matters was touched before."""
        ...


@runtime_checkable
class Configured(Workload, Protocol):
    """A workload whose server is told of its pages by a configuration, or by variables of its own."""

    def configuration(self, treatment: Treatment, values: Mapping[str, ParameterValue]) -> Configuration:
        """Return the configuration by which its server gets the pages that the arm of this treatment had."""
        ...
