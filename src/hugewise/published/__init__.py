"""What others have published about page sizes: facts and figures, one TOML file for each source.

    names()          ("lkml-2009-paravirt", ...)
    load("redhat-2021")   by name, or by any beginning of it that only one has

`[source]` says where it stands and what it leaves out; each `[[benchmark]]` is a comparison of two arms that the source
gives in numbers. Everything else of a file (hosts, settings, counters, findings) is kept as it stands in `facts`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, Literal

import msgspec

from hugewise.errors import UserError

__all__ = ["Benchmark", "Layout", "Published", "Sample", "Source", "load", "names"]

Layout = Literal["fixed slots", "one after the other"]


class Sample(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One arm's figures in the benchmark's unit; None where the source does not give them. `sd` is the deviation of a
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


class Source(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the figures stand. `runs` and `statistic` say what a figure outside of a benchmark is made from."""

    title: str
    publisher: str
    date: str
    missing: tuple[str, ...]
    runs: int | None = None
    statistic: str | None = None


class Published(msgspec.Struct, frozen=True):
    """One source, whole."""

    name: str
    source: Source
    benchmarks: tuple[Benchmark, ...]
    facts: Mapping[str, Any]


@cache
def names() -> tuple[str, ...]:
    """All names in order."""
    files = resources.files(__package__).iterdir()
    return tuple(sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml")))


def load(name: str) -> Published:
    """The source called `name`, or that alone begins so. Raises UserError."""
    found = [known for known in names() if known == name] or [known for known in names() if known.startswith(name)]
    if len(found) != 1:
        what = "is not a published source" if not found else f"is the beginning of {len(found)} published sources"
        raise UserError(f"{name or 'an empty name'} {what}", hint=f"one of: {', '.join(found or names())}")
    data = msgspec.toml.decode(resources.files(__package__).joinpath(f"{found[0]}.toml").read_bytes())
    source = msgspec.convert(data.pop("source"), Source)
    benchmarks = msgspec.convert(data.pop("benchmark", []), tuple[Benchmark, ...])
    return Published(found[0], source, benchmarks, data)
