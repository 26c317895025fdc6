"""The whole page state of this machine: every setting below the two folders of sysfs that hugewise may turn; and the
folders of runs.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

__all__ = ["changed", "page_state", "run_folders"]

# Counters and what follows from others; everything else must be as it was.
_MOVING = ("stats", "full_scans", "pages_collapsed", "free_hugepages", "resv_hugepages", "surplus_hugepages", "demote")
# A folder of a run has its process's number in its name, and so has a group that a test of the probe makes.
_OF = re.compile(r"hugewise-(?:[a-z-]+-)?(\d+)")


def page_state() -> dict[str, str]:
    """Path -> text, of every readable setting."""
    state = {}
    tops = [
        "/sys/kernel/mm/transparent_hugepage",
        "/sys/kernel/mm/hugepages",
        *map(str, Path("/sys/devices/system/node").glob("node*/hugepages")),
    ]
    for top in tops:
        for path in sorted(Path(top).rglob("*")):
            if path.is_file() and not any(part in _MOVING for part in path.parts):
                try:
                    state[str(path)] = path.read_text().strip()
                except OSError:
                    continue
    return state


def changed(before: Mapping[str, str]) -> dict[str, tuple[str | None, str | None]]:
    """What is not as `before`: path -> (was, is), None where there was or is no such setting."""
    now = page_state()
    paths = [*before, *(path for path in now if path not in before)]
    return {path: (before.get(path), now.get(path)) for path in paths if before.get(path) != now.get(path)}


def run_folders(*tops: Path) -> set[Path]:
    """What runs have made in `tops`, without that of another process that lives: who measures beside these tests."""
    return {path for top in tops for path in top.glob("hugewise-*") if not _is_another_s(path)}


def _is_another_s(path: Path) -> bool:
    of = _OF.match(path.name)
    lives = of is not None and int(of[1]) != os.getpid() and Path("/proc", of[1]).exists()
    return lives or not path.exists()  # it has ended since, and has cleared up
