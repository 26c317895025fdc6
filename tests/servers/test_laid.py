"""Runs in which the layout library says what it did: real commands on the real kernel."""

import shutil
import sys
from pathlib import Path

import pytest

from hugewise.machine import loader
from tests.machine.layouts.programs import library, python
from tests.requirements import need_program
from tests.servers.trying import tried
from tests.state import run_folders

pytestmark = pytest.mark.usefixtures("unchanged")

BASE = {"name": "library", "from": "layout-base", "layout": "none", "mechanism": "process"}
POOL = {"name": "heap-2m", "from": "layout-hugetlb-2m", "mechanism": "process"}
QUARTER = {
    "name": "quarter", "from": "layout-base", "layout": "mosaic:0-25%=hugetlb-2m,heap=64m", "mechanism": "process",
}  # fmt: skip


def of(*argv: str, **more: object) -> dict[str, object]:
    return {"name": "command", "parameters": {"argv": list(argv), **more}}


def sorting(folder: Path) -> dict[str, object]:
    need_program("sort", "coreutils")
    (folder / "lines").write_text("".join(f"{each * 7919 % 100_003}\n" for each in range(200_000)))
    (folder / "lines").chmod(0o644)
    folder.chmod(0o755)
    return of("sort", "--parallel=1", "-S", "48M", str(folder / "lines"), "-o", "/dev/null", pool_bytes="64m")


def test_what_the_library_did_is_part_of_the_attempt(reached: Path) -> None:
    library()
    found = tried(reached, sorting(reached), [BASE, POOL, QUARTER], budget={"blocks": 2})
    assert {arm: (one.state, one.reason) for arm, one in found.items()} == dict.fromkeys(found, ("accepted", None))
    assert set(found) == {"library", "heap-2m", "quarter"}
    for one in found.values():
        assert (one.laid["processes"], one.laid["heap_bytes"], one.laid["short_bytes"]) == (1, 64 << 20, 0), one.laid
        assert "why" not in one.laid
        assert one.begun["forked"] == 0
    assert (found["library"].pool_bytes, found["quarter"].pool_bytes, found["heap-2m"].pool_bytes) == (
        0, 16 << 20, 64 << 20,
    )  # fmt: skip
    assert found["library"].delivery.coverage.get(f"hugetlb:{2 << 20}", 0) == 0
    part = found["quarter"].delivery.coverage.get(f"hugetlb:{2 << 20}", 0)
    assert 0 < part <= 16 << 20
    assert found["heap-2m"].delivery.coverage.get(f"hugetlb:{2 << 20}", 0) > part
    left = [path for folder in run_folders(Path("/dev/shm")) for path in folder.glob("layout-*")]
    assert left == [], "it goes with the session"


def test_a_layout_that_was_not_laid_is_not_delivered_whatever_is_demanded(reached: Path) -> None:
    library()
    limited = of("sh", "-c", 'ulimit -d 65536; exec "$@"', "sh", shutil.which("sort") or "sort", "/dev/null")
    laid = {"name": "laid", "from": "layout-base", "layout": "base,heap=1g", "mechanism": "process"}
    workload = {**limited, "delivery": {"share": 0.0}}
    found = tried(reached, workload, ["as-is", laid], budget={"blocks": 2}, attempt={"retries": 0})
    assert found["as-is"].laid == {}
    one = found["laid"]
    assert (one.laid["processes"], one.laid["heap_bytes"]) == (2, 1 << 30), "the shell had it, and what it became not"
    assert str(one.laid["why"]).startswith("the heap cannot be made so large")
    assert one.delivery.delivered is False
    assert "the heap cannot be made so large" in (one.delivery.reason or "")


def test_a_program_that_does_not_load_the_library_has_no_layout(reached: Path) -> None:
    library()
    laid = {"name": "laid", "from": "layout-base", "layout": "base,heap=64m", "mechanism": "process"}
    hidden = of("env", "-i", sys.executable, "-IS", "-c", "pass")
    found = tried(reached, {**hidden, "delivery": {"share": 0.0}}, ["as-is", laid], budget={"blocks": 2})
    # The wrapper loaded it, and what it became had no such variable.
    assert found["laid"].laid["processes"] == 1
    assert found["laid"].delivery.delivered is True


def test_forks_and_threads_are_recorded_with_each_attempt(reached: Path) -> None:
    script = """
import os, threading
thread = threading.Thread(target=int); thread.start(); thread.join()
if os.fork() == 0: os._exit(0)
os.wait()
"""
    again = {"name": "again", "from": "as-is", "environment": {"A": "1"}}
    found = tried(reached, of(python(), "-IS", "-c", script), ["as-is", again], budget={"blocks": 2})
    assert dict(found["as-is"].begun) == {"forked": 1, "executed": 0, "threads": 1}
    assert loader.REPORT not in str(found["as-is"].facts)
