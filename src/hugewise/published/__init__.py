"""Published facts and figures about page sizes, one TOML file for each source.

    names()          ("lkml-2009-paravirt", ...)
    load("redhat-2021")   by name, or by any beginning of it that only one has

`[source]` says where it stands and what it leaves out. An *entry* is what a workload of a study can stand beside:

    [[benchmark]]   two arms, each with its own figures
    [[table]]       changes in percent of several metrics, of several arms against the first
    [counters]      one measurement of two arms, quantity by quantity
    [[finding]]     what the source says in words, and as `claim` the sign or the trend that it says

`[metrics]` names the metrics of hugewise that measure the same quantity. Everything else of a file (host, settings,
method) is kept as it stands in `facts`. `claims()` is what is commonly said of page sizes, of `folklore/claims.toml`.

Imports the ground. A new source is a TOML file here; what stands beside its figures is decided in `analysis.published`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, Literal

import msgspec

from hugewise.errors import UserError

Layout = Literal["fixed slots", "one after the other"]


class Sample(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arm's figures in the benchmark's unit; None where the source does not give them. `sd` is the deviation of a
    single sample, `margin_of_error` the half-width of the mean's interval at the benchmark's confidence.
    """

    mean: float
    n: int | None = None
    sd: float | None = None
    min: float | None = None
    max: float | None = None
    margin_of_error: float | None = None
    beyond_3_sigma: int | None = None
    beyond_6_sigma: int | None = None


class Benchmark(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A published comparison; the first of the two `arms` is what the other is compared with.

    layout  `fixed slots`: at the same time, each arm in a place of its own (VM, host) for good;
            `one after the other`: all of one arm, then all of the other
    """

    name: str
    tool: str
    schedule: str
    layout: Layout
    metric: str
    unit: str
    better: Literal["lower", "higher"]
    arms: Mapping[str, Sample]
    published_effect_percent: float
    command: str | None = None
    confidence: float | None = None

    @property
    def pair(self) -> tuple[tuple[str, Sample], tuple[str, Sample]]:
        """The baseline and the arm, each with its name."""
        (baseline, arm) = self.arms.items()
        return baseline, arm


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes in percent by metric, an entry for each of `arms`, against the first of them (whose change is 0)."""

    name: str
    workload: str
    unit: Literal["% change"]
    arms: tuple[str, ...]
    changes: Mapping[str, tuple[float, ...]]

    def __post_init__(self) -> None:
        for metric, changes in self.changes.items():
            if len(changes) != len(self.arms) or changes[0] != 0:
                raise ValueError(f"{self.name}: {metric} needs a change for each of {len(self.arms)} arms, the first 0")


class CounterRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A quantity of both arms, in the order of `CounterTable.arms`; `change_percent` where the source prints one."""

    name: str
    unit: str
    values: tuple[float, float]
    change_percent: float | None = None


class CounterTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Measurement of two arms side by side; the second is compared with the first."""

    name: str
    workload: str
    arms: tuple[str, str]
    statistic: str
    counter: tuple[CounterRow, ...]


class Claim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Statement of a source, in words, on `arm` against `against`.

    effect      better, worse, or none: no noticeable effect. With `parameters` it is a trend of the effect instead:
                `grows` with the parameter that a workload calls by one of these names
    condition   what the source limits it to
    within      the same for a workload's parameters: the largest level that the source speaks of
    """

    arm: str
    against: str
    effect: Literal["better", "worse", "none", "grows"]
    words: str
    parameters: tuple[str, ...] = ()
    condition: str = ""
    within: Mapping[str, float] = {}


class SourceFinding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Statement of a source, in words, about its `entries`. `figures`: the numbers that it gives, in words (`none
    ...`); `metric`: its subject, a name of `Published.metrics` (None: whatever a study judges).
    """

    entries: tuple[str, ...]
    text: str
    figures: str
    metric: str | None = None
    claim: tuple[Claim, ...] = ()


class Source(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Source of the figures. `runs` and `statistic` say what a figure outside of a benchmark is made from; `caveats`
    what must be known before it is compared with a figure of today.
    """

    title: str
    publisher: str
    date: str
    missing: tuple[str, ...]
    runs: int | None = None
    statistic: str | None = None
    caveats: tuple[str, ...] = ()


class Published(msgspec.Struct, frozen=True):
    """Source, whole. `machine` and `kernel` are None where it does not say; `metrics`: its word -> hugewise's."""

    name: str
    source: Source
    benchmarks: tuple[Benchmark, ...]
    facts: Mapping[str, Any]
    tables: tuple[Table, ...] = ()
    counters: tuple[CounterTable, ...] = ()
    findings: tuple[SourceFinding, ...] = ()
    metrics: Mapping[str, tuple[str, ...]] = {}
    machine: str | None = None
    kernel: str | None = None

    @property
    def entries(self) -> tuple[str, ...]:
        """Names of the entries that a workload of a study can stand beside."""
        entries = [table.name for table in self.tables]
        entries += [counters.name for counters in self.counters]
        entries += [benchmark.name for benchmark in self.benchmarks]
        entries += [entry for finding in self.findings for entry in finding.entries]
        return tuple(dict.fromkeys(entries))

    @property
    def arms(self) -> tuple[str, ...]:
        """The source's own names of everything that it compares."""
        arms = [arm for table in self.tables for arm in table.arms]
        arms += [arm for counters in self.counters for arm in counters.arms]
        arms += [arm for benchmark in self.benchmarks for arm in benchmark.arms]
        arms += [arm for finding in self.findings for claim in finding.claim for arm in (claim.against, claim.arm)]
        return tuple(dict.fromkeys(arms))


@cache
def names() -> tuple[str, ...]:
    """Return all names in order."""
    files = resources.files(__package__).iterdir()
    return tuple(sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml")))


@cache
def load(name: str) -> Published:
    """Return the source called `name`, or that alone begins so. Raises UserError."""
    fitting = [known for known in names() if known == name] or [known for known in names() if known.startswith(name)]
    if len(fitting) != 1:
        what = "is not a published source" if not fitting else f"is the beginning of {len(fitting)} published sources"
        raise UserError(f"{name or 'an empty name'} {what}", hint=f"one of: {', '.join(fitting or names())}")
    data = msgspec.toml.decode(resources.files(__package__).joinpath(f"{fitting[0]}.toml").read_bytes())
    host = data.get("host", {})
    return Published(
        name=fitting[0],
        source=msgspec.convert(data.pop("source"), Source),
        benchmarks=msgspec.convert(data.pop("benchmark", []), tuple[Benchmark, ...]),
        tables=msgspec.convert(data.pop("table", []), tuple[Table, ...]),
        counters=msgspec.convert(data.pop("counters", []), tuple[CounterTable, ...]),
        findings=msgspec.convert(data.pop("finding", []), tuple[SourceFinding, ...]),
        metrics=msgspec.convert(data.pop("metrics", {}), dict[str, tuple[str, ...]]),
        machine=host.get("cpu"),
        kernel=host.get("kernel"),
        facts=data,
    )


class TestedBy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Comparisons that test a claim: those of the study `study` in cells that match the pattern `cells` (fnmatch)."""

    study: str
    cells: str


class CommonClaim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A claim: `better` policies serve the programs better than `worse` ones.

    programs    kinds of servers, names of programs, or `lib:NAME` for those that have that allocator mapped
    expects     equivalent: the claim is that `better` is as good as `worse`, not that it is better
    metrics     of the comparisons that test it; none: what each cell judges of speed
    tested      what tests it; none: no study of hugewise does
    takes       where none does: what a test would take
    """

    id: str
    says: str
    better: tuple[str, ...]
    worse: tuple[str, ...]
    sources: tuple[str, ...]
    programs: tuple[str, ...] = ()
    expects: Literal["better", "equivalent"] = "better"
    metrics: tuple[str, ...] = ()
    tested: tuple[TestedBy, ...] = ()
    takes: str = ""

    def __post_init__(self) -> None:
        if bool(self.tested) == bool(self.takes):
            raise ValueError(f"{self.id}: a claim is tested by a study, or says what a test would take")


class _Claims(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    claim: tuple[CommonClaim, ...]


@cache
def claims() -> tuple[CommonClaim, ...]:
    """Return all claims, in the order of the file."""
    text = resources.files(__package__).joinpath("folklore", "claims.toml").read_bytes()
    return msgspec.toml.decode(text, type=_Claims).claim
