"""The QEMU that is installed."""

from __future__ import annotations

import functools
import re
import shutil

from hugewise import unprivileged
from hugewise.errors import HugewiseError, MachineError, UserError
from hugewise.guests.qemu import PROGRAMS
from hugewise.model.guest import Architecture
from hugewise.model.workload import Missing

__all__ = ["find", "missing", "version"]

# Debian's, of 12 and 13.
_PACKAGES: dict[Architecture, str] = {"x86-64": "qemu-system-x86", "arm64": "qemu-system-arm"}
_VERSION = re.compile(r"QEMU emulator version (.+)")


def missing(arch: Architecture) -> Missing | None:
    """What guests of this architecture lack here, or None."""
    if shutil.which(PROGRAMS[arch]) is not None:
        return None
    return Missing(f"no {PROGRAMS[arch]} for guests of {arch}", _PACKAGES[arch])


def find(arch: Architecture) -> str:
    """The path of the QEMU for this architecture. Raises UserError with the package."""
    found = shutil.which(PROGRAMS[arch])
    if found is None:
        raise UserError(f"no {PROGRAMS[arch]} for guests of {arch}", hint=f"apt install {_PACKAGES[arch]}")
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
