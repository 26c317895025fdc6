"""The run that stands behind a file, as a comment of its format."""

from __future__ import annotations

import re

import msgspec

from hugewise.model.deployment import DeployedFile
from hugewise.visible import printable

__all__ = ["with_evidence"]

_LONGEST = 300
_HYPHENS = re.compile(r"-(?=-|$)")  # two of them end a comment of XML


def with_evidence(file: DeployedFile, told: tuple[str, ...]) -> DeployedFile:
    """The file with the lines of `told` as comments at its head; whatever stands in them, they stay comments."""
    lines = [_line(line) for line in told]
    if file.kind == "libvirt":
        body = "\n".join(f"  {_HYPHENS.sub('- ', line)}" for line in lines)
        return msgspec.structs.replace(file, content=f"<!--\n{body}\n-->\n{file.content}")
    comments = "".join(f"# {line}\n" for line in lines)
    first, newline, rest = file.content.partition("\n")
    if first.startswith("#!"):
        return msgspec.structs.replace(file, content=f"{first}{newline}{comments}{rest}")
    return msgspec.structs.replace(file, content=comments + file.content)


def _line(text: str) -> str:
    """One line; a backslash at its end would go on with the next one in some formats."""
    told = printable(text)
    if len(told) > _LONGEST:  # by whole sentences, the first of which is the verdict
        told = told[: told.rfind(". ", 0, _LONGEST) + 1] or told[:_LONGEST]
    return told.rstrip("\\ ")
