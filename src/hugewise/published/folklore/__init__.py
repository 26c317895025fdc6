"""What is commonly said of page sizes, as data: `claims.toml`. `hugewise audit` shows those about programs that run;
docs/results/folklore.md says what the studies found of each.

Imports the ground.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Literal

import msgspec

__all__ = ["CommonClaim", "TestedBy", "claims"]


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
    """All of them, in the order of the file."""
    text = resources.files(__package__).joinpath("claims.toml").read_bytes()
    return msgspec.toml.decode(text, type=_Claims).claim
