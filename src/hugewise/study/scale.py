"""What a scale changes of a whole study (what it changes of a workload stands there)."""

from __future__ import annotations

from typing import Annotated

import msgspec

from hugewise.study import keys
from hugewise.study.guest import GuestUse
from hugewise.study.keys import Key
from hugewise.study.tables import Budget, Design

__all__ = ["StudyScale"]


class StudyScale(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a scale changes of the whole study."""

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
