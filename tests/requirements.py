"""What a test needs of the machine, said aloud when it is missing.

With HUGEWISE_REQUIRE_ALL=1 (as in CI, which installs everything) a missing requirement is a failure.
"""

import os
import shutil
from pathlib import Path

import pytest

from hugewise.machine.proc import mounts

__all__ = ["need", "need_now", "need_own_namespaces", "need_program", "need_root"]


def need(condition: bool, requirement: str) -> None:
    """Skip the calling test unless `condition` holds, naming the `requirement`; fail it where all is required."""
    if condition:
        return
    if os.environ.get("HUGEWISE_REQUIRE_ALL") == "1":
        pytest.fail(f"requires: {requirement} (HUGEWISE_REQUIRE_ALL is set)")
    pytest.skip(f"requires: {requirement}")


def need_now(condition: bool, requirement: str) -> None:
    """The same of what no installation brings: it is skipped by name wherever it is missing."""
    if not condition:
        pytest.skip(f"requires, at this moment: {requirement}")


def need_root() -> None:
    """The test turns real knobs or reads physical page flags."""
    need(os.geteuid() == 0, "root")


def need_own_namespaces() -> None:
    """The test enters a mount or a user namespace, which nobody may from within a chroot."""
    points = [mount.point for mount in mounts(Path("/proc/self/mountinfo").read_text())]
    need("/" in points, "a root folder that is a mount point (no chroot)")


def need_program(name: str, package: str) -> str:
    """The path of a program, or the Debian package that brings it."""
    found = shutil.which(name)
    need(found is not None, f"{name} (apt install {package})")
    assert found is not None
    return found
