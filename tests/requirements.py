"""What a test needs of the machine, said aloud when it is missing.

With HUGEWISE_REQUIRE_ALL=1 (as in CI, which installs everything) a missing requirement is a failure.
"""

from __future__ import annotations

import os
import shutil

import pytest

__all__ = ["need", "need_program", "need_root"]


def need(condition: bool, requirement: str) -> None:
    """Skip the calling test unless `condition` holds, naming the `requirement`; fail it where all is required."""
    if condition:
        return
    if os.environ.get("HUGEWISE_REQUIRE_ALL") == "1":
        pytest.fail(f"requires: {requirement} (HUGEWISE_REQUIRE_ALL is set)")
    pytest.skip(f"requires: {requirement}")


def need_root() -> None:
    """The test turns real knobs or reads physical page flags."""
    need(os.geteuid() == 0, "root")


def need_program(name: str, package: str) -> str:
    """The path of a program, or the Debian package that brings it."""
    found = shutil.which(name)
    need(found is not None, f"{name} (apt install {package})")
    assert found is not None
    return found
