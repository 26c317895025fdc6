"""The hugewise that runs here, so that two hosts can be told to have the same one."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path

import hugewise
from hugewise import reading
from hugewise.errors import HugewiseError
from hugewise.fleet.protocol import Installed
from hugewise.machine import probe

THIS = (sys.executable, "-P", "-c", "from hugewise.cli.main import main; main()")
"""The hugewise that this is, as a command."""


def installed() -> Installed:
    """What stands here. Raises nothing for a probe that is missing: it is told as None."""
    return Installed(
        version=version("hugewise"),
        package=package_digest(Path(hugewise.__file__).parent),
        probe=_probe_digest(),
        probe_version=_probe_version(),
        python=platform.python_version(),
        machine=os.uname().machine,
    )


def package_digest(folder: Path) -> str:
    """SHA-256 over the names and contents of the Python files in a package's folder, in the order of their names.

    A wheel has more files in it than a checkout, and the same Python.
    """
    running = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        running.update(f"{path.relative_to(folder)}\0".encode())
        running.update(bytes.fromhex(reading.sha256(path)))
    return running.hexdigest()


def _probe_digest() -> str | None:
    try:
        return reading.sha256(Path(probe.find()))
    except (HugewiseError, reading.UnreadableError):
        return None


def _probe_version() -> str | None:
    try:
        return probe.version()
    except HugewiseError:
        return None


def different(here: Installed, there: Installed) -> str | None:
    """Why a host's hugewise is not that of the coordinator, in words; None where it is the same.

    The probe is not compared with the coordinator's, which may be of another architecture, but among hosts: see
    `gathering.problems`.
    """
    if there.version != here.version:
        return f"hugewise {there.version} is there, and {here.version} here"
    if there.package != here.package:
        return (
            f"hugewise {there.version} is there with other files than here ({there.package[:12]}, {here.package[:12]})"
        )
    if there.probe is None:
        return "its hugewise has no probe"
    return None
