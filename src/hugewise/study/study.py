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
from hugewise.study.keys import KeyKind, Name, Place, keys_of
from hugewise.study.tables import (
    POLICY,
    Between,
    Budget,
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

    period: Annotated[float, _or_off(0.01)] = 1.0
    idle: float = 0.0  # a key of earlier versions: stored studies have it


class StudyScale(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes of a scale to the whole study."""

    budget: Budget | None = None
    guest: GuestUse | None = None
    design: Design | None = None
    confidence: Annotated[float | None, keys.share(above=0.5, below=1)] = None


class Study(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The question, what is compared, and how the comparison is judged.

    Durations are in seconds, sizes in bytes, shares of one. `scale` is the one that was chosen (`at_scale`), `cells`
    those that were chosen by name of their workloads (`part`), `whole` the study with guests that this is a part of,
    `file` where the study came from; none is a key. `not_worse`, `covariate` and `calibration` were keys of earlier
    versions: stored studies have them, and no verdict rests on them.
    """

    format: Annotated[int, keys.integer(1)]
    name: Name
    question: str = ""
    published: Annotated[str | None, tables.SOURCE] = None
    published_arms: Annotated[Mapping[str, str], tables.ARMS] = {}
    policies: Annotated[
        tuple[PolicyUse, ...],
        keys.KeyKind("list of policy names and tables", keys.listing(POLICY, least=2).read, PolicyUse),
    ]
    baseline: Name | None = None
    margin: Annotated[float, keys.share(above=0, below=0.5)] = 0.005
    confidence: Annotated[float, keys.share(above=0.5, below=1)] = 0.99
    method: Annotated[str, keys.choice("fixed-n", "sequential", "exact", "screening")] = "fixed-n"
    end_points: Annotated[tuple[str, ...], keys.listing(keys.choice("mean", "slow", "p99"), least=0)] = ()
    unjudged: Annotated[tuple[str, ...], keys.listing(keys.name(), least=0)] = ()
    window: Annotated[float, keys.duration(1.0)] = 300.0
    budget: Budget = Budget()
    scales: Annotated[Mapping[str, StudyScale], scales(keys.table(StudyScale))] = {}
    design: Design = Design()
    calibration: Mapping[str, bool | float] = msgspec.field(
        default_factory=lambda: {"required": False, "agreement": 0.05, "age": 604_800.0}
    )
    workload: tuple[WorkloadUse, ...]
    between: Between = Between()
    validity: Validity = Validity()
    sessions: Sessions = Sessions()
    attempt: Retries = Retries()
    sampling: Sampling = Sampling()
    guest: GuestUse | None = None
    kernel: tuple[KernelUse, ...] = ()
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
