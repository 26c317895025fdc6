"""Settings of the whole host as files: now, and from the next boot on.

Sources: tmpfiles.d(5); sysctl.d(5); Documentation/admin-guide/kernel-parameters.txt, mm/transhuge.rst and
mm/hugetlbpage.rst of the Linux kernel; Debian's grub-mkconfig (/etc/default/grub.d); tuned.conf(5).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping

from hugewise.deployment.quoting import plain
from hugewise.model.deployment import UNREAD, DeployedFile

__all__ = ["boot", "now", "sysctl", "tmpfiles", "tuned"]

_SIZE, _ANY_SIZE = re.compile(r"hugepages-[0-9]+kB"), "hugepages-*kB"
_NOW = "/usr/local/sbin/page-sizes-now"
_TMPFILES = "/etc/tmpfiles.d/page-sizes.conf"
_SYSCTL = "/etc/sysctl.d/60-page-sizes.conf"
_BOOT = "/etc/default/grub.d/page-sizes.cfg"
_TUNED = "/etc/tuned/page-sizes/tuned.conf"
_BACK = "write back what stood there before, or boot anew"


def now(settings: Mapping[str, str], check: str | None = None) -> DeployedFile:
    """A script that sets kernel settings (path -> value) until the next boot. Raises ValueError for what is none."""
    lines = list(_commands(settings))
    return DeployedFile(
        kind="script",
        path=_NOW,
        content="\n".join(["#!/bin/sh", "# Page sizes until the next boot; as root.", "set -eu", *lines, ""]),
        scope="host-now",
        apply=(f"sh {_NOW}",),
        undo=(f"rm {_NOW}", f"# {_BACK}"),
        check=check or _shown(settings),
        label="read by sh",
        needs=("root",),
        sets=dict(settings),
    )


def _commands(settings: Mapping[str, str]) -> Iterator[str]:
    """A line for each setting, those of all sizes that are off in one."""
    off = [path for path, value in settings.items() if value == "never" and _SIZE.search(path)]
    patterns = Counter(_SIZE.sub(_ANY_SIZE, plain(path)) for path in off)
    several = [pattern for pattern, count in patterns.items() if count > 1]
    for pattern in several:
        yield f"for size in {pattern}; do echo never > $size; done"
    for path, value in settings.items():
        if path not in off or _SIZE.sub(_ANY_SIZE, path) not in several:
            yield f"echo {plain(value)} > {plain(path)}"


def tmpfiles(settings: Mapping[str, str], *, instead: bool = False) -> DeployedFile:
    """Lines of tmpfiles.d that write the settings at each boot. Raises ValueError for a setting that is none.

    Each path by its name: lines with a pattern are carried out after those without, and would undo them.
    """
    lines = [f"w {plain(path)} - - - - {plain(value)}" for path, value in settings.items()]
    return DeployedFile(
        kind="tmpfiles",
        path=_TMPFILES,
        content="\n".join(["# Type Path Mode User Group Age Argument", *lines, ""]),
        scope="host-boot",
        apply=(f"systemd-tmpfiles --create {_TMPFILES}",),
        undo=(f"rm {_TMPFILES}", f"# {_BACK}"),
        check=_shown(settings),
        label="read by systemd-tmpfiles",
        needs=("root", "systemd; a tuned profile that sets the same is later and wins"),
        instead=instead,
    )


def sysctl(pages: int, *, instead: bool = False) -> DeployedFile:
    """A pool of so many pages of the default size, for sysctl.d."""
    return DeployedFile(
        kind="sysctl",
        path=_SYSCTL,
        content=(
            "# Pages of the default size (Hugepagesize in /proc/meminfo): reserved, used or not.\n"
            f"vm.nr_hugepages = {pages}\n"
            "# Or none reserved, and as many made when they are asked for, where memory is whole enough then:\n"
            f"# vm.nr_overcommit_hugepages = {pages}\n"
        ),
        scope="host-boot",
        apply=(f"sysctl --load={_SYSCTL}",),
        undo=(f"rm {_SYSCTL}", f"# {_BACK}"),
        check="sysctl vm.nr_hugepages; grep Huge /proc/meminfo",
        label="read by sysctl",
        needs=("root",),
        instead=instead,
    )


def boot(words: tuple[str, ...], *, needs: tuple[str, ...] = (), instead: bool = False) -> DeployedFile:
    """Words for the kernel's command line, as Debian's grub takes them. Raises ValueError for one that is none."""
    line = " ".join("=".join(map(plain, word.split("=", 1))) for word in words)
    return DeployedFile(
        kind="boot",
        path=_BOOT,
        content=f'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX {line}"\n',
        scope="host-boot",
        apply=("update-grub", "reboot"),
        undo=(f"rm {_BOOT}", "update-grub", "reboot"),
        check="cat /proc/cmdline",
        label="read by sh, as update-grub does",
        needs=(
            "root",
            "a reboot",
            f"GRUB as Debian has it; elsewhere: grubby --update-kernel=ALL --args='{line}'",
            *needs,
        ),
        instead=instead,
    )


def tuned(settings: Mapping[str, str], *, instead: bool = True) -> DeployedFile:
    """A profile of tuned that sets the same. Raises ValueError for a setting that is none."""
    lines = [f"{plain(path)}={plain(value)}" for path, value in settings.items()]
    return DeployedFile(
        kind="tuned",
        path=_TUNED,
        content="\n".join(["[main]", "summary=Page sizes", "", "[sysfs]", *lines, ""]),
        scope="host-boot",
        apply=("tuned-adm profile ACTIVE page-sizes  # ACTIVE: what `tuned-adm active` says",),
        undo=("tuned-adm profile ACTIVE", f"rm -r {_TUNED.rpartition('/')[0]}", f"# {_BACK}"),
        check=f"tuned-adm active; {_shown(settings)}",
        label=UNREAD,
        needs=("root", "tuned; no tmpfiles.d beside it that sets the same (the later one wins)"),
        instead=instead,
    )


def _shown(settings: Mapping[str, str]) -> str:
    """Shows all of them, each size by a pattern."""
    patterns = dict.fromkeys(_SIZE.sub(_ANY_SIZE, plain(path)) for path in settings)
    return f"grep . {' '.join(patterns)}"
