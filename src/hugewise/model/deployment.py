"""How a policy is deployed: files, each with who reads it, how it is undone, and how it is checked.

A file is never put in its place by hugewise: it is written below a folder, or shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

import msgspec

__all__ = ["UNREAD", "DeployedFile", "Deployment", "FileKind", "FileScope"]

FileScope = Literal["process", "service", "host-now", "host-boot", "server", "guest", "pod"]

FileKind = Literal[
    "script",
    "launcher",
    "unit",
    "tmpfiles",
    "sysctl",
    "boot",
    "tuned",
    "postgresql",
    "mariadb",
    "redis",
    "memcached",
    "libvirt",
    "compose",
    "kubernetes",
]

_COMMENT = re.compile(r"#|set |\s*$")

UNREAD = "not read by a tool here"
"""The label of a kind whose text no program has read in hugewise's own tests."""


class DeployedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A setting as a file.

    path      absolute: where it belongs, on the machine or (`on`) in the guest
    content   the whole of it, in the quoting of its format
    scope     what it reaches: a process that is started by it, a service, the whole host now or from its next boot,
              a server's own configuration, a guest's memory, a pod
    apply     commands that put it in force once it lies there; undo: those that take it back
    check     the command that shows whether it is in force
    label     `read by TOOL`, where hugewise's tests have that tool read such files, or `not read by a tool here`
    needs     what it needs there, such as `systemd 260 or later`
    sets      of a script: the kernel settings that it turns, path -> value
    instead   a file above it in the same deployment has the same effect: one of them is enough
    """

    kind: FileKind
    path: str
    content: str
    scope: FileScope
    apply: tuple[str, ...] = ()
    undo: tuple[str, ...]
    check: str
    label: str
    needs: tuple[str, ...] = ()
    sets: Mapping[str, str] = {}
    instead: bool = False
    on: Literal["machine", "guest"] = "machine"


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """The files that set a policy, the narrowest reach first, and a line of explanation.

    `now` and `boot`: commands, and lines for configurations, of runs that were made before deployments were files.
    """

    files: tuple[DeployedFile, ...] = ()
    note: str
    now: tuple[str, ...] = ()
    boot: tuple[str, ...] = ()

    def commands(self) -> tuple[str, ...]:
        """What to type to have it now: as root for the host's settings, and how the program is started."""
        told = list(self.now)
        guest = any(file.on == "guest" for file in self.files)
        for on, where in (("guest", "# in the guest:"), ("machine", "# on its host, before it starts:")):
            scripts = [file for file in self.files if file.on == on and file.kind in ("script", "launcher")]
            scripts.sort(key=lambda file: file.kind == "launcher")  # a pool is filled before the program starts
            told += [where] if guest and scripts else []
            told += [line for file in scripts for line in file.content.splitlines() if not _COMMENT.match(line)]
        return tuple(told)
