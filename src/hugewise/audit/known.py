"""Which words of environments and command lines an audit keeps: those about pages. All others may be secrets. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath

from hugewise.audit.facts import Placed, ServerKind

__all__ = ["environment", "server_kind", "shown_value", "wrapped"]

_LONGEST = 256
_PLAIN = re.compile(r"[\w./:,=+@%*$-]{0,256}", re.ASCII)
_WHOLE = {
    *("LD_PRELOAD", "MALLOC_CONF", "NUMPY_MADVISE_HUGEPAGE", "PYTHON_PYMALLOC_HUGEPAGES", "PYTHONMALLOC"),
    *("MIMALLOC_ALLOW_THP", "MIMALLOC_ALLOW_LARGE_OS_PAGES", "MIMALLOC_LARGE_OS_PAGES"),
    *("MIMALLOC_RESERVE_HUGE_OS_PAGES", "TCMALLOC_MEMFS_MALLOC_PATH"),
    *("HUGETLB_MORECORE", "HUGETLB_SHM", "HUGETLB_ELFMAP", "HUGETLB_DEFAULT_PAGE_SIZE"),
}
# Of these only the words about pages are kept: the rest is the program's own affair.
_PARTS = {
    "GLIBC_TUNABLES": (":", re.compile(r"glibc\.malloc\.[a-z_]{1,40}=.*|glibc\.[a-z_.]*huge.*")),
    "GODEBUG": (",", re.compile(r"disablethp=.*")),
    "JAVA_TOOL_OPTIONS": (" ", re.compile(r"-XX:[+-]?(?:Use\w{0,20}(?:LargePages|HugePages)|LargePageSizeInBytes).*")),
    "NODE_OPTIONS": (" ", re.compile(r"--use-largepages(?:=.*)?")),
}
_PARTS |= dict.fromkeys(("JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"), _PARTS["JAVA_TOOL_OPTIONS"])

_KINDS: Mapping[str, ServerKind] = {
    **dict.fromkeys(("postgres", "postmaster"), "postgresql"),
    **dict.fromkeys(("mysqld", "mariadbd"), "mysql"),
    **dict.fromkeys(("redis-server", "valkey-server"), "redis"),
    "memcached": "memcached",
    "java": "jvm",
    "mongod": "mongodb",
}
# What starts another program, and its options that take a word of their own.
_WRAPPERS = {
    "env": "uCS", "nice": "n", "ionice": "cnp", "numactl": "iNmCplw", "taskset": "", "chrt": "TPD", "prlimit": "",
    "hugectl": "", "setarch": "", "stdbuf": "ioe", "hugewise-exec": "",
}  # fmt: skip
_LONG = {"--pages", "--membind", "--cpunodebind", "--physcpubind", "--interleave", "--preferred", "--unset", "--chdir"}


def shown_value(value: str) -> str:
    """A setting as it may be printed: short and of plain characters, else only that it is there."""
    return value if _PLAIN.fullmatch(value) else "(set; not shown)"


def environment(pairs: Iterable[tuple[str, str, str]]) -> tuple[Placed, ...]:
    """What is known of name, value and place: of each name the last."""
    found: dict[str, Placed] = {}
    for name, value, where in pairs:
        kept = _kept(name, value)
        if kept is not None:
            found[name] = Placed(name, kept, where)
    return tuple(found.values())


def _kept(name: str, value: str) -> str | None:
    if name == "LD_PRELOAD":  # its files stand between blanks or colons
        value = ":".join(value[: 1 << 16].split())
    if name in _WHOLE:
        return shown_value(value)
    if name not in _PARTS:
        return None
    between, pattern = _PARTS[name]
    # Matched by its begin alone: what is longer is not shown, and a pattern may take the square of a length.
    parts = [
        shown_value(part) for part in value[: 1 << 16].split(between) if pattern.fullmatch(part.strip()[:_LONGEST])
    ]
    return between.join(parts)[: 4 * _LONGEST] or None


def server_kind(*names: str) -> ServerKind | None:
    """Which server a program is, by the last part of one of its names."""
    found = (_KINDS.get(PurePosixPath(name).name) for name in names)
    return next((kind for kind in found if kind is not None), None)


def wrapped(argv: list[str]) -> tuple[list[str], tuple[str, ...], list[tuple[str, str]]]:
    """The command that wrappers such as `env` and `numactl` start at last, their names, and what `env` sets."""
    wrappers: list[str] = []
    assigned: list[tuple[str, str]] = []
    while argv and (name := PurePosixPath(argv[0]).name) in _WRAPPERS:
        rest = list(_without_options(argv[1:], _WRAPPERS[name]))
        while name == "env" and rest and "=" in rest[0]:
            key, _, value = rest.pop(0).partition("=")
            assigned.append((key, value))
        rest = rest[1:] if name in ("taskset", "chrt", "setarch") and len(rest) > 1 else rest
        if not rest:
            break
        wrappers.append(name)
        argv = rest
    return argv, tuple(wrappers), assigned


def _without_options(argv: list[str], taking: str) -> Iterator[str]:
    """The words from the first one that is no option; `taking` are the letters whose options take a word."""
    at = 0
    while at < len(argv) and argv[at].startswith("-"):
        word = argv[at]
        at += 1
        if word == "--":
            break
        alone = len(word) == 2 and word[1] in taking
        at += 1 if alone or word in _LONG else 0
    yield from argv[at:]
