"""The QEMU that is installed."""

from __future__ import annotations

import functools
import os
import re
import shutil

from hugewise import unprivileged
from hugewise.errors import HugewiseError, MachineError, UserError
from hugewise.guests.qemu import PROGRAMS
from hugewise.model.guest import HARDWARE, Architecture
from hugewise.model.workload import Missing

__all__ = ["find", "missing", "version"]

# Debian's, of 12 and 13.
_PACKAGES: dict[Architecture, str] = {"x86-64": "qemu-system-x86", "arm64": "qemu-system-arm"}
# RHEL's and its like.
_ELSEWHERE = ("/usr/libexec/qemu-kvm", "/usr/bin/qemu-kvm")
_VERSION = re.compile(r"QEMU emulator version (.+)")


def missing(arch: Architecture, named: str | None = None) -> Missing | None:
    """What guests of this architecture lack here, or None. `named`: the QEMU that a study names."""
    if named is not None:
        return None if os.access(named, os.X_OK) else Missing(f"{named}: no such program for guests of {arch}")
    if _found(arch) is not None:
        return None
    return Missing(f"no {PROGRAMS[arch]} for guests of {arch}", _PACKAGES[arch])


def find(arch: Architecture, named: str | None = None) -> str:
    """The path of the QEMU for this architecture: the one that is `named`, else the one that is installed.

    Raises UserError with the cure.
    """
    if named is not None:
        if not os.access(named, os.X_OK):
            raise UserError(f"{named}: no such program", hint="name QEMU's program, or remove qemu from [guest]")
        return named
    found = _found(arch)
    if found is None:
        raise UserError(f"no {PROGRAMS[arch]} for guests of {arch}", hint=f"apt install {_PACKAGES[arch]}")
    return found


def _found(arch: Architecture) -> str | None:
    """By its own name, else as distributions call the one for guests of the host's architecture."""
    found = shutil.which(PROGRAMS[arch])
    if found is None and HARDWARE[arch] == os.uname().machine:
        found = next((path for path in _ELSEWHERE if os.access(path, os.X_OK)), None)
    return found


@functools.cache
def version(program: str) -> str:
    """What a QEMU says that it is, such as `7.2.22 (Debian 1:7.2+dfsg-7)`. Raises MachineError."""
    try:
        done = unprivileged.run([program, "--version"], timeout=60)
    except HugewiseError as error:
        raise MachineError(error.message, hint=error.hint) from None
    found = _VERSION.search(done.stdout)
    if done.status != 0 or found is None:
        said = (done.stderr or done.stdout).strip()[:500]
        raise MachineError(f"{program} --version failed: {said or done.why}")
    return found[1]
