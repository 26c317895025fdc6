"""Sizes, durations, shares and lists of CPUs as people write them: `64k`, `2m`, `1g`, `90s`, `0.5%`, `0-3,8`.

Sizes are powers of 1,024, as everywhere in memory management.
"""

from __future__ import annotations

import re
from fractions import Fraction

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_SIZE_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_CPUS = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)")
_DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def parse_size(text: str | int) -> int:
    """Return bytes in `text`, such as `4k`, `1.5g` or a plain number. Raises ValueError."""
    match = _SIZE.fullmatch(str(text).strip())
    if match is None:
        raise ValueError("not a size; write for example 64k, 2m, 1g or a number of bytes")
    value = Fraction(match[1]) * (1 << _SIZE_UNITS[match[2].lower()])
    if value.denominator != 1 or value > 1 << 62:
        raise ValueError("not a whole number of bytes below 4 EiB")
    return int(value)


def format_size(size: int) -> str:
    """Return the shortest exact form of `size` bytes: 65536 -> `64k`."""
    for unit in ("t", "g", "m", "k"):
        shift = _SIZE_UNITS[unit]
        if size >= 1 << shift and size % (1 << shift) == 0:
            return f"{size >> shift}{unit}"
    return str(size)


def readable_size(size: int) -> str:
    """`size` bytes for people, to four digits: `384 KiB`, `23.54 GiB`."""
    value, units = float(size), iter(("B", "KiB", "MiB", "GiB", "TiB"))
    unit = next(units)
    while value >= 1024 and unit != "TiB":
        value, unit = value / 1024, next(units)
    return f"{value:.4g} {unit}"


def parse_duration(text: str | float) -> float:
    """Return seconds in `text`, such as `50ms`, `90s`, `5m`, `2h`, or a plain number. Raises ValueError."""
    if isinstance(text, int | float) and not isinstance(text, bool):
        seconds = _finite(text)
    else:
        match = _DURATION.fullmatch(str(text).strip())
        if match is None:
            raise ValueError("not a duration; write for example 50ms, 90s, 5m or 2h")
        seconds = float(match[1]) * _DURATION_UNITS[match[2]]
    if not 0 <= seconds < 1e9:
        raise ValueError("a duration lies between 0 and 30 years")
    return seconds


def format_duration(seconds: float) -> str:
    """`seconds` for people: `85 ms`, `4.2 s`, `3 min 20 s`, `2 h 05 min`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def parse_share(text: str | float) -> float:
    """Return a share of one: `0.5%` or 0.005. Raises ValueError unless it lies within 0 and 1."""
    if isinstance(text, str):
        body = text.strip()
        scale = 0.01 if body.endswith("%") else 1.0
        try:
            share = float(body.removesuffix("%")) * scale
        except ValueError:
            raise ValueError("not a share; write for example 0.5% or 0.005") from None
    else:
        share = _finite(text)
    if not 0 <= share <= 1:
        raise ValueError("a share lies between 0 and 1 (0% and 100%)")
    return share


def _finite(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        raise ValueError("too large a number") from None


def parse_cpus(text: str) -> tuple[int, ...]:
    """Return the CPUs of a list as the kernel writes it (`0-3,8`), in the order of the list. Raises ValueError."""
    cpus: list[int] = []
    for part in text.strip().split(","):
        match = _CPUS.fullmatch(part.strip())
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ValueError("not a list of CPUs; write for example 0-3,8")
        cpus.extend(range(int(match[1]), int(match[2] or match[1]) + 1))
    if len(set(cpus)) < len(cpus):
        raise ValueError("a CPU stands twice in it")
    return tuple(cpus)
