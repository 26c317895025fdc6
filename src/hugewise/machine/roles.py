"""Which CPUs the system under test has, and which its clients. Pure."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["roles"]


def roles(
    clients: bool, sut: Sequence[int] | None, client: Sequence[int] | None, online: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The CPUs of the system under test and of the clients: as the study names them, else half each.

    Without clients the system under test has all. On a machine with one CPU both have it.
    """
    given = tuple(sut or ())
    if not clients:
        every = given or tuple(online)
        return every, every
    named = tuple(client or ())
    if not given and not named:
        half = max(1, len(online) // 2)
        given, named = tuple(online[: len(online) - half]) or tuple(online), tuple(online[-half:])
    elif not given:
        given = tuple(cpu for cpu in online if cpu not in named) or named
    elif not named:
        named = tuple(cpu for cpu in online if cpu not in given) or given
    return given, named
