"""A study: a question about page sizes, typed. Nothing is known here of any machine.

A stored study is checked by single values and lists of them: rules over several keys held when the run began, or do not
matter to readers of its results.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from hugewise.study import keys, tables
from hugewise.study.guest import GuestUse, KernelUse, without_unsaid
from hugewise.study.keys import Key, KeyKind, Name, Place, keys_of
from hugewise.study.tables import (
    POLICY,
    Between,
    Budget,
    CalibrationRule,
    Design,
    PolicyUse,
    Retries,
    Sessions,
    Validity,
)
from hugewise.study.workload import SMALL, WorkloadUse, scales

OFF = "off"
_LONGEST = 3600.0


def _or_off(low: float) -> KeyKind:
    def read(value: object, place: Place) -> Any:
        if value == OFF:
            return 0.0
        found = keys.duration(low).read(value, place)
        if found > _LONGEST:
            raise place.wrong("is out of range", value, hint=f'choose a duration of at most {_LONGEST:g} s, or "{OFF}"')
        return found

    return KeyKind(f'duration or "{OFF}"', read)


class Sampling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The kernel's counters over time (docs/concepts/over-time.md)."""

    period: Annotated[
        float,
        _or_off(0.01),
        Key(
            "Time between two readings of the machine's counters while an attempt runs (page faults, huge pages by"
            " size, compaction, khugepaged, pressure, free memory by order). What the reading costs is measured in"
            " every attempt, and one in which it took more than 0.5% of the workload's CPU time is marked.",
            'period = "1s"',
        ),
    ] = 1.0
    idle: float = 0.0  # a key of earlier versions: stored studies have it


class StudyScale(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes of a scale to the whole study."""

    budget: Annotated[Budget | None, Key("In place of the whole table `[budget]`.", "budget = { blocks = 30 }")] = None
    guest: Annotated[
        GuestUse | None, Key("In place of the whole table `[guest]`.", 'guest = { memory = "12g", cpus = 14 }')
    ] = None
    design: Annotated[
        Design | None, Key("In place of the whole table `[design]`.", 'design = { slots = ["0-13", "14-27"] }')
    ] = None
    confidence: Annotated[
        float | None, keys.share(above=0.5, below=1), Key("In place of `confidence`.", "confidence = 0.9999")
    ] = None


class Study(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The question, what is compared, and how the comparison is judged.

    Durations are in seconds, sizes in bytes, shares of one. `scale` is the one that was chosen (`at_scale`), `cells`
    those that were chosen by name of their workloads (`part`), `whole` the study with guests that this is a part of,
    `file` where the study came from; none is a key. `not_worse` and `covariate` were keys of earlier versions: stored
    studies have them, and no verdict rests on them.
    """

    format: Annotated[int, keys.integer(1), Key("The version of this format: 1.", "format = 1")]
    name: Annotated[Name, Key("The study's name, and its folder's below `results/`.", 'name = "demo"')]
    question: Annotated[str, Key("The question in words, for the report.", 'question = "Which page size?"')] = ""
    published: Annotated[
        str | None,
        tables.SOURCE,
        Key(
            "The published experiment that the study restates (`hugewise list published`): the report puts its figures"
            " beside the measured ones. Each workload then names its entry.",
            'published = "lpc-2024-mthp-arm64"',
        ),
    ] = None
    published_arms: Annotated[
        Mapping[str, str],
        tables.ARMS,
        Key(
            "Which published arm a policy stands for, in the source's own words; several may stand for one. The"
            " baseline must stand for the arm that the source compares with.",
            'published_arms = { base = "4K (4KPS)", thp = "2M (4KPS)" }',
        ),
    ] = {}
    policies: Annotated[
        tuple[PolicyUse, ...],
        keys.KeyKind("list of policy names and tables", keys.listing(POLICY, least=2).read, PolicyUse),
        Key(
            "The policies to compare (`hugewise list policies`).",
            'policies = ["base", "thp", { name = "thp-defer", from = "thp", set = { "defrag" = "defer" } }]',
        ),
    ]
    baseline: Annotated[
        Name | None, Key("The policy that all others are compared with.", 'baseline = "base"', default="the first")
    ] = None
    margin: Annotated[
        float,
        keys.share(above=0, below=0.5),
        Key(
            "Equivalence margin: two arms are equivalent when the whole interval of arm/baseline lies between"
            " 1/(1 + margin) and 1 + margin.",
            'margin = "0.5%"',
        ),
    ] = 0.005
    confidence: Annotated[
        float,
        keys.share(above=0.5, below=1),
        Key("Confidence of the verdicts, over all comparisons of the study together.", "confidence = 0.99"),
    ] = 0.99
    method: Annotated[
        str,
        keys.choice("fixed-n", "sequential", "exact", "screening"),
        Key(
            "The statistical method: a planned number of blocks; an exact test after every block; in guests, counts"
            " that are the same in every boot, and the exact test where they are not; or a screening, which drops arms"
            " that others beat, ends when one is not behind any other by more than the margin, and claims nothing"
            " (confidence: that the one that it chose is not).",
            'method = "sequential"',
        ),
    ] = "fixed-n"
    end_points: Annotated[
        tuple[str, ...],
        keys.listing(keys.choice("mean", "slow", "p99"), least=0),
        Key(
            "End points that are judged beside the typical ratio, with an equal share of the error rate each (method"
            " sequential): the ratio of arithmetic means, the rate of slow runs, the 99th percentile over all runs.",
            'end_points = ["mean"]',
        ),
    ] = ()
    unjudged: Annotated[
        tuple[str, ...],
        keys.listing(keys.name(), least=0),
        Key(
            "Policies that are measured in the blocks of the others and claim nothing (method sequential): they have an"
            " interval and no verdict, take nothing of the error rate, and never prolong a run.",
            'unjudged = ["thp-defer"]',
        ),
    ] = ()
    window: Annotated[
        float,
        keys.duration(1.0),
        Key("Longest interruption of a block; one broken off for longer is replaced by a new block.", 'window = "5m"'),
    ] = 300.0
    budget: Annotated[Budget, Key("How much to measure.", "[budget]")] = Budget()
    scales: Annotated[
        Mapping[str, StudyScale],
        scales(keys.table(StudyScale)),
        Key(
            "What a scale changes beside its workloads: `budget`, `guest` and `design`, in place of whole tables, and"
            " `confidence`.",
            'scales = { published = { budget = { blocks = 30, time = "48h" } } }',
        ),
    ] = {}
    design: Annotated[Design, Key("How the arms of a block are laid out in time and over CPUs.", "[design]")] = Design()
    calibration: Annotated[
        CalibrationRule, Key("What must be calibrated before a verdict is given.", "[calibration]")
    ] = CalibrationRule()
    workload: Annotated[tuple[WorkloadUse, ...], Key("What is run; one table for each workload.", "[[workload]]")]
    between: Annotated[Between, Key("Carry-over control between attempts.", "[between]")] = Between()
    validity: Annotated[Validity, Key("Rules that flag disturbed attempts.", "[validity]")] = Validity()
    sessions: Annotated[Sessions, Key("Statistical sessions.", "[sessions]")] = Sessions()
    attempt: Annotated[Retries, Key("The single attempt.", "[attempt]")] = Retries()
    sampling: Annotated[Sampling, Key("The kernel's counters over time.", "[sampling]")] = Sampling()
    guest: Annotated[
        GuestUse | None,
        Key("Every arm runs in a guest of QEMU, which is this.", "[guest]", default="none: on the host"),
    ] = None
    kernel: Annotated[
        tuple[KernelUse, ...],
        Key("The kernels that guests boot; the first is that of arms that name none.", "[[kernel]]", default="none"),
    ] = ()
    scale: str = SMALL
    blocks_open: bool = False  # the number of blocks was not given: a first run tells how many fit into the time
    cells: tuple[str, ...] = ()
    whole: Study | None = None
    file: str = ""
    not_worse: bool = False
    covariate: str | None = None

    @property
    def compared_with(self) -> str:
        return self.baseline or self.policies[0].name

    def kernel_of(self, use: PolicyUse) -> KernelUse:
        """Return the kernel that the arm's guests boot: its own, or the study's first. The study has guests."""
        return next((kernel for kernel in self.kernel if kernel.name == use.kernel), self.kernel[0])

    @property
    def environment_pad(self) -> int:
        """Return the most bytes that are added to an attempt's environment: none in guests that count."""
        return 0 if self.guest is not None and self.guest.counting else self.attempt.environment_pad

    def declared(self, blocks: int) -> Study:
        """Return the study with so many blocks in its budget."""
        return msgspec.structs.replace(self, budget=msgspec.structs.replace(self.budget, blocks=blocks))

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the study's contents, in hex, without comments, spelling and place."""
        return stored_digest(msgspec.json.encode(self))


def stored_digest(text: bytes) -> str:
    """Return the digest of a stored study, without later versions' empty keys. Raises msgspec.DecodeError."""
    said = without_unsaid(msgspec.json.decode(text, type=dict[str, Any]) | {"file": "", "whole": None})
    return hashlib.sha256(msgspec.json.encode(said, order="sorted")).hexdigest()


_SINGLE = (str, int, float)


def check(table: msgspec.Struct, place: Place) -> None:
    """Check each value of a study's table, and of the tables within it. Raises StudyError."""
    for key, (note, field) in keys_of(type(table)).items():
        value = getattr(table, field.name)
        items = value if isinstance(value, tuple) else (value,)
        if isinstance(value, msgspec.Struct):
            check(value, place.at(key))
        elif items and all(isinstance(item, msgspec.Struct) for item in items):
            for here, item in place.items(key, items):
                check(item, here)
        elif items and value != field.default and all(isinstance(item, _SINGLE) for item in items):
            note.kind.read(value, place.at(key))
