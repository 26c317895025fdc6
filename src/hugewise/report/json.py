"""`report.json`: `Results` without its attempts, with the answer of each cell; and the reference of its format, made
from the types themselves.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import inspect as types

from hugewise.model.answer import CellAnswer
from hugewise.model.results import Results
from hugewise.report.cell_answers import answers
from hugewise.visible import json_text

_ELSEWHERE = ("attempts",)


def encode(results: Results) -> bytes:
    """Indented JSON in UTF-8, keys in the order of the types. `msgspec.json.decode(_, type=Results)` reads it back."""
    told: dict[str, Any] = {
        name: value for name, value in msgspec.structs.asdict(results).items() if name not in _ELSEWHERE
    }
    told["answers"] = answers(results)
    return json_text(told).encode() + b"\n"


def reference() -> str:
    """docs/reference/report-json.md."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# report.json"
    yield ""
    yield "Made from the types in `model.results` and `model.answer` by `report.json`; a test keeps it current."
    yield ""
    yield (
        "Each run folder holds a `report.json` in UTF-8. Its key `format` rises when a meaning changes; new keys may "
        "come without that, so readers ignore keys that they do not know. A value that is not there is null, never 0. "
        "Times are seconds; sizes are bytes; all ratios are arm/baseline, beside the metric's direction."
    )
    yield ""
    yield (
        "Beside the keys of `Results` there is `answers`: a list of [CellAnswer](#cellanswer), one for each of `cells`,"
        " in their order."
    )
    yield from structures(Results)
    yield from structures(CellAnswer)


def structures(first: type[msgspec.Struct]) -> Iterator[str]:
    """Lines of Markdown: `first` and every struct in it, with what its docstring says, its keys, types and defaults."""
    for struct in _structs(first):
        yield from ("", f"## {struct.__name__}", "")
        yield from ("```text", inspect.cleandoc(struct.__doc__ or ""), "```")
        yield from ("", "| key | type | default |", "|---|---|---|")
        for field in _fields(struct):
            default = "required" if field.required else f"`{msgspec.json.encode(_default(field)).decode()}`"
            yield f"| `{field.encode_name}` | {_name(types.type_info(field.type))} | {default} |"


def _fields(struct: type[msgspec.Struct]) -> list[msgspec.structs.FieldInfo]:
    """Those of its fields that are told."""
    return [one for one in msgspec.structs.fields(struct) if struct is not Results or one.name not in _ELSEWHERE]


def _default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default if field.default is not msgspec.NODEFAULT else field.default_factory()


def _structs(first: type[msgspec.Struct]) -> list[type[msgspec.Struct]]:
    found: list[type[msgspec.Struct]] = []

    def visit(info: types.Type) -> None:
        if isinstance(info, types.StructType):
            if info.cls not in found:
                found.append(info.cls)
                for field in _fields(info.cls):
                    visit(types.type_info(field.type))
            return
        for inner in _inner(info):
            visit(inner)

    visit(types.type_info(first))
    return found


def _inner(info: types.Type) -> list[types.Type]:
    match info:
        case types.UnionType(types=several):
            return list(several)
        case types.VarTupleType(item_type=item) | types.ListType(item_type=item):
            return [item]
        case types.TupleType(item_types=items):
            return list(items)
        case types.DictType(key_type=key, value_type=value):
            return [key, value]
        case _:
            return []


def _name(info: types.Type) -> str:
    match info:
        case types.StructType(cls=struct):
            return f"[{struct.__name__}](#{struct.__name__.lower()})"
        case types.UnionType(types=several):
            return " or ".join(_name(one) for one in several)
        case types.VarTupleType(item_type=item) | types.ListType(item_type=item):
            return f"list of {_name(item)}"
        case types.TupleType(item_types=items):
            return f"list of {len(items)}: {', '.join(map(_name, items))}"
        case types.DictType(value_type=value):
            return f"object of {_name(value)}"
        case types.LiteralType(values=values):
            return " or ".join(f'`"{value}"`' for value in values)
        case _:
            return _SIMPLE[type(info)]


_SIMPLE: dict[type, str] = {
    types.StrType: "text",
    types.IntType: "integer",
    types.FloatType: "number",
    types.BoolType: "true or false",
    types.NoneType: "null",
    types.AnyType: "anything",
}


if __name__ == "__main__":
    sys.stdout.write(reference())
