"""A study that was stored: what its keys may hold is what they may hold in a file.

Only single values and lists of them are looked at. What they must agree in was so when the run began, or is no matter
to who reads its results.
"""

from __future__ import annotations

import msgspec

from hugewise.study.keys import Place, keys_of

__all__ = ["check"]

_SINGLE = (str, int, float)


def check(table: msgspec.Struct, place: Place) -> None:
    """That each value of a table of a study, and of those within it, is one that a file may give. Raises StudyError."""
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
