"""Kinds of values in a study file: each reads its value, or names the place, the mistake and the cure.

Every key of a study's structs has its meaning and an example in the file `keys.toml` beside them, and a `KeyKind` where
its type does not say what it may hold. The reader and the generated reference both go by `keys_of`, so that neither can
know a key that the other does not.
"""

from __future__ import annotations

import difflib
import functools
import json
import math
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from hugewise.errors import StudyError
from hugewise.quantity import parse_duration, parse_share, parse_size

_BARE = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_LONGEST = 80  # characters of a wrong value that are shown
_LARGEST = (1 << 63) - 1

S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T")


@dataclass(frozen=True)
class Place:
    """Place in a study: the file and the dotted key; `[[workload]]` tables count from 1."""

    file: str
    key: str = ""

    def at(self, key: str) -> Place:
        safe = key if _BARE.fullmatch(key) else json.dumps(_short(key))
        return Place(self.file, f"{self.key}.{safe}" if self.key else safe)

    def item(self, number: int) -> Place:
        return Place(self.file, f"{self.key}[{number}]")

    def items(self, key: str, values: Iterable[T]) -> Iterator[tuple[Place, T]]:
        """Yield each item of the list `key` in the table here, with its place."""
        return ((self.at(key).item(number), value) for number, value in enumerate(values, 1))

    def once(self, values: Sequence[object], shown: Sequence[object] | None = None) -> None:
        """Check that no item of the list here, written as in `shown`, stands twice. Raises StudyError."""
        for index, value in enumerate(values):
            if value in values[:index]:
                raise self.item(index + 1).wrong("stands twice", (shown or values)[index], hint="remove one of them")

    def wrong(self, message: str, value: object = None, *, hint: str | None = None) -> StudyError:
        return StudyError(message, file=self.file, key=self.key or None, value=_shown(value), hint=hint)


@dataclass(frozen=True)
class KeyKind:
    """A kind of value: how the reference calls it, and how it is read. `read` raises StudyError."""

    words: str
    read: Callable[[object, Place], Any]
    nested: type[msgspec.Struct] | None = None


@dataclass(frozen=True)
class Key:
    """Meaning of a study's field: for the reader, and for the reference."""

    meaning: str
    example: str
    default: str | None  # in words, where the default cannot be written in the file
    kind: KeyKind


def near(wanted: str, known: Collection[str], *, what: str = "known") -> str:
    """Return a hint for a name that is not `known`: the near ones, else all of them."""
    close = difflib.get_close_matches(wanted[:100], known, n=3, cutoff=0.6)
    if close:
        return "did you mean " + " or ".join(close) + "?"
    return f"{what}: {', '.join(sorted(known))}" if known else f"{what}: none"


class _Text(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    meaning: str
    example: str
    default: str | None = None


@functools.cache
def _texts(package: str) -> tuple[dict[str, dict[str, _Text]], dict[str, dict[str, str]]]:
    """Return the keys of each struct, and its keys and values of earlier versions with their cures."""
    file = resources.files(package).joinpath("keys.toml")
    if not file.is_file():  # a table of `model`, whose keys are read where a study names it
        return {}, {}
    data = msgspec.toml.decode(file.read_bytes())
    gone = msgspec.convert(data.pop("gone", {}), dict[str, dict[str, str]])
    return msgspec.convert(data, dict[str, dict[str, _Text]]), gone


def _package(struct: type) -> str:
    return struct.__module__.rpartition(".")[0]


def _refuse_gone(kind: type[msgspec.Struct], table: Mapping[Any, object], place: Place) -> None:
    gone = _texts(_package(kind))[1].get(kind.__name__, {})
    for key, value in table.items():
        cure = gone.get(key) or gone.get(f"{key} = {value}" if isinstance(value, str) else "")
        if cure is not None:
            raise place.at(str(key)).wrong("is of earlier versions", value, hint=cure)


@functools.cache
def keys_of(kind: type[msgspec.Struct]) -> Mapping[str, tuple[Key, msgspec.structs.FieldInfo]]:
    """Return the documented keys of a struct by the name that stands in the file, in order of definition."""
    hints = typing.get_type_hints(kind, include_extras=True)
    texts: dict[str, _Text] = {}
    for owner in kind.__mro__:
        if issubclass(owner, msgspec.Struct) and owner is not msgspec.Struct:
            texts = _texts(_package(owner))[0].get(owner.__name__, {}) | texts
    found: dict[str, tuple[Key, msgspec.structs.FieldInfo]] = {}
    for field in msgspec.structs.fields(kind):
        if (text := texts.pop(field.encode_name, None)) is not None:
            key = Key(text.meaning, text.example, text.default, _kind(hints[field.name]))
            found[field.encode_name] = (key, field)
    assert not texts, f"keys.toml has keys that {kind.__name__} has not: {', '.join(texts)}"
    return found


def _notes(hint: Any) -> Iterator[object]:
    yield from getattr(hint, "__metadata__", ())
    if typing.get_origin(hint) in _UNIONS:
        yield from _notes(typing.get_args(hint)[0])


def _kind(hint: Any) -> KeyKind:
    for note in _notes(hint):
        if isinstance(note, KeyKind):
            return note
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return choice(*parts)
    if origin is tuple:
        return listing(_kind(parts[0]))
    if origin is Annotated or origin in _UNIONS:
        return _kind(parts[0])
    return _PLAIN[hint]() if hint in _PLAIN else table(hint)


def read_table(kind: type[S], value: object, place: Place, **more: object) -> S:
    """Return a struct from a TOML table; `more` gives fields that are no keys of the file. Raises StudyError."""
    if not isinstance(value, Mapping):
        raise place.wrong("must be a table", value, hint="write [table] and its keys below, or { key = value }")
    keys = keys_of(kind)
    _refuse_gone(kind, value, place)
    for key in value:
        if key not in keys:
            raise place.at(str(key)).wrong("unknown key", value[key], hint=_elsewhere(str(key), kind, keys))
    for key, (note, field) in keys.items():
        if field.required and key not in value:
            raise place.at(key).wrong("is missing", hint=f"add: {note.example}")
    read = {keys[key][1].name: keys[key][0].kind.read(item, place.at(key)) for key, item in value.items()}
    return kind(**read, **more)


def text(*, pattern: re.Pattern[str] | None = None, words: str = "text", cure: str | None = None) -> KeyKind:
    """Return text without control characters, of a `pattern` where one is given."""

    def read(value: object, place: Place) -> str:
        if not isinstance(value, str):
            raise place.wrong("must be text", value, hint='write it in quotes: "..."')
        if _CONTROL.search(value):
            raise place.wrong("must be one line without control characters", value, hint="remove them")
        if pattern is not None and not pattern.fullmatch(value):
            raise place.wrong(f"is not {words}", value, hint=cure)
        return plain(value, place)

    return KeyKind(words, read)


def plain(value: str, place: Place) -> str:
    """`value`, if it can be an argument of a program: no NUL, and Unicode throughout. Raises StudyError."""
    if "\0" in value:
        raise place.wrong("holds a NUL character", value, hint="remove it")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise place.wrong("is not valid Unicode text", value, hint="spell it in UTF-8") from None
    return value


def name() -> KeyKind:
    """Return the kind of a name that is also the name of a folder."""
    return text(
        pattern=_NAME,
        words="a name",
        cure="use at most 64 letters, digits, dots, - and _, and begin with a letter or digit",
    )


Name = Annotated[str, name()]


def choice(*known: str, stored: Sequence[str] = ()) -> KeyKind:
    """Return the kind of one of a few words. Stored studies may have those of `stored` too, which are `gone`."""

    def read(value: object, place: Place) -> str:
        if not isinstance(value, str) or value not in (*known, *stored):
            wanted = value if isinstance(value, str) else ""
            raise place.wrong("is not one of the choices", value, hint=near(wanted, known, what="choices"))
        return value

    return KeyKind(" or ".join(f'"{word}"' for word in known), read)


def flag() -> KeyKind:
    """Return the kind of true or false."""

    def read(value: object, place: Place) -> bool:
        if not isinstance(value, bool):
            raise place.wrong("must be true or false", value, hint="write it without quotes")
        return value

    return KeyKind("true or false", read)


_UNIONS = (typing.Union, types.UnionType)
_PLAIN: Mapping[object, Callable[[], KeyKind]] = {bool: flag, str: text}


def integer(low: int = 0, high: int = _LARGEST, *, few: str = "") -> KeyKind:
    """Return the kind of a whole number within `low` and `high`; `few` is the reason for `low`."""

    def read(value: object, place: Place) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise place.wrong("must be a whole number", value, hint="write it without quotes, as in 12")
        if not low <= value <= high:
            why = f": {few}" if few and value < low else ""
            raise place.wrong("is out of range", value, hint=f"choose from {low} to {high}{why}")
        return value

    return KeyKind("whole number", read)


def number(low: float = -math.inf, high: float = math.inf) -> KeyKind:
    """Return the kind of a finite number within `low` and `high`."""

    def read(value: object, place: Place) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise place.wrong("must be a number", value, hint="write it without quotes, as in 1.5")
        if isinstance(value, int) and abs(value) > _LARGEST:
            raise place.wrong("is out of range", value, hint="choose a smaller number")
        if not math.isfinite(value) or not low <= value <= high:
            raise place.wrong("is out of range", value, hint=f"choose a number from {low:g} to {high:g}")
        return float(value)

    return KeyKind("number", read)


def size(low: int = 0, high: int = 1 << 62) -> KeyKind:
    """Return the kind of a number of bytes within `low` and `high`."""
    limits = f"from {low} to {high} bytes"
    return _quantity("size", parse_size, (str, int), lambda found: low <= found <= high, limits)


def duration(low: float = 0.0) -> KeyKind:
    """Return seconds, from `low`; where `low` is 0 none may be asked for."""
    return _quantity("duration", parse_duration, (str, int, float), lambda found: found >= low, f"at least {low:g} s")


def share(*, above: float = -1.0, below: float = 2.0) -> KeyKind:
    """Return the kind of a share of one, strictly between the limits."""
    limits = f"above {max(above, 0):g} and below {min(below, 1):g}"
    return _quantity("share", parse_share, (str, int, float), lambda found: above < found < below, limits)


def _quantity(
    words: str,
    parse: Callable[[Any], Any],
    types: tuple[type, ...],
    fits: Callable[[Any], bool],
    limits: str,
) -> KeyKind:
    def read(value: object, place: Place) -> Any:
        if isinstance(value, bool) or not isinstance(value, types):
            raise place.wrong(f"must be a {words}", value, hint=f"write {_SAMPLES[words]}")
        try:
            found = parse(value)
        except ValueError as error:
            raise place.wrong(str(error), value, hint=f"write for example {_SAMPLES[words]}") from None
        if not fits(found):
            raise place.wrong("is out of range", value, hint=f"choose a {words} {limits}")
        return found

    return KeyKind(words, read)


_SAMPLES = {"size": '"64k" or "1g"', "duration": '"20ms" or "5m"', "share": '"0.5%" or 0.005'}


def listing(kind: KeyKind, *, least: int = 1) -> KeyKind:
    """Return the kind of a list of one kind."""

    def read(value: object, place: Place) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            double = kind.nested is not None and isinstance(value, Mapping)
            cure = f"write [[{place.key}]], in double brackets" if double else "write [first, second]"
            raise place.wrong("must be a list", value, hint=cure)
        if len(value) < least:
            raise place.wrong(
                f"needs at least {least} {'item' if least == 1 else 'items'}", value, hint="add to the list"
            )
        return tuple(kind.read(item, place.item(index)) for index, item in enumerate(value, 1))

    return KeyKind(f"list of: {kind.words}", read, kind.nested)


def mapping(key_pattern: re.Pattern[str], key_words: str, kind: KeyKind) -> KeyKind:
    """Return the kind of a table from names of a pattern to values of one kind."""

    def read(value: object, place: Place) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise place.wrong("must be a table", value, hint='write { name = "value" }')
        for key in value:
            if not isinstance(key, str) or not key_pattern.fullmatch(key):
                raise place.at(str(key)).wrong(f"the name is not {key_words}", value[key], hint="correct the name")
        return {key: kind.read(item, place.at(key)) for key, item in value.items()}

    return KeyKind(f"table: {key_words} = {kind.words}", read)


def table(struct: type[msgspec.Struct]) -> KeyKind:
    """Return the kind of a nested table of documented keys."""
    return KeyKind("table", lambda value, place: read_table(struct, value, place), struct)


def _elsewhere(key: str, kind: type[msgspec.Struct], keys: Mapping[str, tuple[Key, object]]) -> str:
    for owner, (note, _) in keys.items():
        nested = note.kind.nested
        if nested is not None and nested is not kind and key in keys_of(nested):
            written = f"[[{owner}]]" if note.kind.words.startswith("list") else f"[{owner}]"
            return f"the key {key} belongs below {written}"
    return near(key, keys.keys(), what="keys here")


def _short(value: str) -> str:
    return value if len(value) <= _LONGEST else value[:_LONGEST] + "..."


def _shown(value: object) -> object:
    if value is None:
        return None
    try:
        written = repr(value)
    except (ValueError, RecursionError):
        return "(a value too large to show)"
    return value if len(written) <= _LONGEST else _short(written)
