"""What a QEMU's command line asks for as its guest's memory: whoever wrote it, libvirt with JSON or a user with words.

    blocks(words, mountinfo)

Sources: qemu(1), -m, -object memory-backend-*, -numa, -device; QEMU, qapi/qom.json. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from hugewise.machine.proc import mounts

__all__ = ["RamBlock", "blocks"]

_UNIT = {"": 20, "b": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_ON = (True, "on", "yes", "true", "y")
_DEFAULT = 128 << 20  # of a guest that says nothing of its memory


class RamBlock(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of the guest's memory, as QEMU was asked for it: bytes; `page`: of the pool (0: ordinary memory).

    shared  it is a shared mapping
    file    it has a file descriptor, and is of no pool: QEMU maps it at a boundary of base pages, and no huge page fits
    nodes   the host's NUMA nodes that it is bound to; node: the guest's
    """

    id: str
    size: int
    page: int = 0
    shared: bool = False
    file: bool = False
    preallocated: bool = False
    nodes: tuple[int, ...] = ()
    node: int | None = None


def blocks(words: Sequence[str], mountinfo: str) -> tuple[RamBlock, ...]:
    """The guest's memory: the backends that the machine, its nodes and its memory devices name; without any, what -m
    says. `mountinfo` is that of the process.
    """
    given = list(_given(words))
    objects = {str(each.get("id", "")): each for option, each in given if option == "object"}
    found = [_block(name, objects[name], node, mountinfo) for name, node in _used(given) if name in objects]
    if found:
        return tuple(found)
    whole, page, file = _DEFAULT, 0, False
    for option, each in given:
        if option == "m":
            whole = _bytes(each.get("size", each.get("qom-type", "")), 20) or whole
        elif option == "mem-path":
            page, file = _pages_of(str(each.get("qom-type", "")), mountinfo)
    preallocated = any(option == "mem-prealloc" for option, _ in given)
    return (RamBlock(id="ram", size=whole, page=page, file=file, preallocated=preallocated),)


def _given(words: Sequence[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The options that memory is made by, with their values."""
    for option, value in zip(words, [*words[1:], ""], strict=True):
        name = option.lstrip("-") if option.startswith("-") else ""
        if name in ("machine", "M", "numa", "device", "m", "mem-prealloc", "mem-path"):
            yield name, _options(value)
        elif name == "object" and str((found := _options(value)).get("qom-type", "")).startswith("memory-backend-"):
            yield name, found


def _used(given: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[tuple[str, int | None]]:
    """The backends that are memory of the guest, with its NUMA node."""
    nodes = 0
    for option, each in given:
        name = each.get("memory-backend" if option in ("machine", "M") else "memdev")
        if name is None or option not in ("machine", "M", "numa", "device"):
            continue
        number = _whole(each.get("nodeid" if option == "numa" else "node"))
        yield str(name), nodes if option == "numa" and number is None else number
        nodes += option == "numa"


def _block(name: str, given: Mapping[str, Any], node: int | None, mountinfo: str) -> RamBlock:
    kind = str(given.get("qom-type")).removeprefix("memory-backend-")
    page, file = 0, kind in ("memfd", "shm")
    if kind == "memfd" and given.get("hugetlb") in _ON:
        page, file = _bytes(given.get("hugetlbsize", ""), 0) or 2 << 20, False
    elif kind == "file":
        page, file = _pages_of(str(given.get("mem-path", "")), mountinfo)
    nodes = given.get("host-nodes", [])
    bound = [number for each in (nodes if isinstance(nodes, list) else [nodes]) for number in _range(each)]
    return RamBlock(
        id=name,
        size=_bytes(given.get("size", ""), 0),
        page=page,
        shared=given.get("share") in _ON or (kind in ("memfd", "shm") and "share" not in given),
        file=file,
        preallocated=given.get("prealloc") in _ON,
        nodes=tuple(bound) if given.get("policy") == "bind" else (),
        node=node,
    )


def _options(text: str) -> dict[str, Any]:
    """The value of an option: JSON, or words with commas between, of which the first may have no name."""
    if text.startswith("{"):
        try:
            said = json.loads(text)
        except (ValueError, RecursionError):
            return {}
        return said if isinstance(said, dict) else {}
    pairs = re.split(r"(?<!,),(?!,)", text)
    found: dict[str, Any] = {}
    for number, pair in enumerate(pairs):
        key, equals, value = pair.partition("=")
        if equals and key == "host-nodes":  # one word for each, or a range
            found.setdefault(key, []).append(value)
        elif equals:
            found[key] = value.replace(",,", ",")
        elif number == 0:
            found["qom-type"] = key
    return found


def _range(value: object) -> range:
    """The numbers that `2` or `0-1` means."""
    match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", str(value), re.ASCII)
    return range(0) if match is None else range(int(match[1]), int(match[2] or match[1]) + 1)


def _whole(value: object) -> int | None:
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _bytes(value: object, shift: int) -> int:
    """A size as QEMU takes it: a number, or one with a unit; `shift` where it has none."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if value < 1 << 60 else 0
    match = re.fullmatch(r"(\d{1,18})(?:\.(\d{1,9}))?([bkmgt]?)", str(value).lower(), re.ASCII)
    if match is None:
        return 0
    unit = 1 << (_UNIT[match[3]] if match[3] else shift)
    return int(match[1]) * unit + int(match[2] or 0) * unit // int(f"1{'0' * len(match[2] or '')}")


def _pages_of(path: str, mountinfo: str) -> tuple[int, bool]:
    """Of a file of memory: bytes of its pages where it lies on a hugetlbfs, and whether it lies elsewhere."""
    best: tuple[int, str, str] = (-1, "", "")
    try:
        for mount in mounts(mountinfo):
            inside = path == mount.point or path.startswith(mount.point.rstrip("/") + "/")
            if inside and len(mount.point) > best[0]:
                best = (len(mount.point), mount.kind, mount.options)
    except ValueError:
        return 0, True
    if best[1] == "hugetlbfs":
        size = re.search(r"pagesize=(\d{1,9}[KMG]?)", best[2])
        return (_bytes(size[1], 0) if size else 2 << 20), False
    return 0, True
