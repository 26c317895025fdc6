"""What is asked of a domain's study, and what the host has to offer to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from hugewise.model.guest import Backing

__all__ = ["HostOffer", "StudyWish"]


class StudyWish(msgspec.Struct, frozen=True, kw_only=True):
    """What is to run in the guests, and by what they boot.

    load      a command; `workload`: the name of a packaged one, in its place
    metric    the end point of either; `values`: metrics in the command's output, as a study has them
    packages  Debian packages that the command comes from; without them it comes from the domain's own disk
    files     path in the guest -> file of this host
    within    policies, the baseline first, to be compared in one guest that stays, on the domain's backing
    blocks    None: as many as the number of comparisons asks for
    """

    name: str | None = None
    load: tuple[str, ...] = ()
    workload: str | None = None
    metric: str | None = None
    values: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    files: Mapping[str, str] = {}
    kernel: str | None = None
    modules: str | None = None
    within: tuple[str, ...] = ()
    blocks: int | None = None


class HostOffer(msgspec.Struct, frozen=True, kw_only=True):
    """What of this host a study depends on.

    backs    why it cannot make a guest's memory so, or None
    absent   why there is no disk at the path, or None
    held     who writes a disk now, or None
    cpus     its CPUs; nodes: its NUMA nodes
    """

    backs: Callable[[Backing], str | None]
    absent: Callable[[str], str | None]
    held: Callable[[str], str | None]
    cpus: tuple[int, ...]
    nodes: tuple[int, ...]
    qemu: str | None = None
