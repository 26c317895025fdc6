"""pgbench on a real PostgreSQL through whole runs: delivered, not delivered, and everything that can break."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from hugewise.errors import HugewiseError
from hugewise.model.trial import Attempt
from hugewise.workloads import _postgres
from hugewise.workloads.pgbench import WORKLOAD, Pgbench
from tests.build import known
from tests.requirements import need, need_root
from tests.servers.trying import accepted, need_pages, quick, short_pool

# Small, but every part of an attempt is there: the database fills most of the buffers.
PARAMETERS = {"shared_buffers": "40m", "scale": 2, "clients": 2, "duration": "1s", "lead": "1s"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of all runs here: the database is made once."""
    need(not _postgres.missing("", ("pgbench",)), "PostgreSQL 15 or later with pgbench (apt install postgresql)")
    return tmp_path_factory.mktemp("pgbench")


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No folder of an attempt, no server, no shared memory of one."""
    yield
    assert not Path(f"/dev/shm/hugewise-{os.getpid()}").exists()
    servers = subprocess.run(["pgrep", "-f", f"/hugewise-{os.getpid()}/"], capture_output=True, text=True, check=False)
    assert servers.stdout == ""


def run(folder: Path, *policies: Any, workload: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Attempt]:
    return quick(folder, "pgbench", policies, {**PARAMETERS, **more}, **(workload or {}))


def test_pages_of_the_buffers_are_proven_in_a_backend(folder: Path) -> None:
    found = run(folder, "base", "hugetlb-2m")
    accepted(found)
    for arm, kind in (("base", "shmem:4096"), ("hugetlb-2m", "hugetlb:2097152")):
        assert found[arm].delivery.share == 1
        ((backing, size),) = found[arm].delivery.coverage.items()
        assert backing == kind
        assert size > 30 << 20  # a backend has touched the whole database
    assert found["hugetlb-2m"].delivery.delivered is True
    digests = {attempt.facts["data_sha256"] for attempt in found.values()}
    assert len(digests) == 1
    for attempt in found.values():
        metrics = attempt.metrics
        assert set(metrics) >= {metric.name for metric in WORKLOAD.metrics}
        assert known(metrics["tps"]) > 10
        assert known(metrics["latency_p50_ms"]) > 0
        assert attempt.facts["database_bytes"] == pytest.approx(39_000_000, rel=0.05)


def test_half_a_pool_is_not_delivered_where_the_server_would_hide_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short_pool(monkeypatch, Pgbench, 0.5)
    paging = _postgres.paging
    monkeypatch.setattr(
        _postgres, "paging", lambda treatment: {k: "try" if v == "on" else v for k, v in paging(treatment).items()}
    )
    found = run(folder, "base", "hugetlb-2m")["hugetlb-2m"]
    assert found.delivery.delivered is False
    assert found.delivery.share == 0


def test_half_a_pool_keeps_a_server_from_starting(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short_pool(monkeypatch, Pgbench, 0.5)
    short = run(folder, "base", "hugetlb-2m")["hugetlb-2m"]
    assert short.state == "abandoned"
    assert "could not map anonymous shared memory" in (short.reason or "")


def test_a_server_that_is_killed_in_the_attempt_is_said(folder: Path) -> None:
    """That of whichever arm came first."""
    need_pages()
    killer = threading.Thread(target=_kill_a_server, daemon=True)
    killer.start()
    found = run(folder, "base", "thp-shmem").values()
    killer.join(1)
    assert not killer.is_alive()
    (killed,) = [attempt for attempt in found if attempt.state == "failed"]
    assert "postgres ended during the attempt (signal 9)" in (killed.reason or "")


def _kill_a_server() -> None:
    """Kill the postmaster of this process's attempt as soon as its clients have logged anything."""
    place = Path(f"/dev/shm/hugewise-{os.getpid()}")
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with suppress(OSError, ValueError):
            if any(path.stat().st_size for path in place.glob("run/transactions.*")):
                lines = (place / "data/cluster/postmaster.pid").read_text().splitlines()
                os.kill(int(lines[0]), signal.SIGKILL)
                _remove_guard(lines[6].split()[1])
                return
        time.sleep(0.02)


def _remove_guard(segment: str) -> None:
    """Remove the server's System V segment, which nobody else does, when its processes have left it."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        listed = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
        attached = [line.split()[6] for line in listed if line.split()[1] == segment]
        if attached in ([], ["0"]):
            break
        time.sleep(0.05)
    subprocess.run(["ipcrm", "-m", segment], check=True)


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Path]:
    need_root()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=80m,mode=711", "none", tmp_path], check=True)
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


def test_a_full_tmpfs_is_said(folder: Path, tmpfs: Path) -> None:
    with pytest.raises(HugewiseError, match=rf"{tmpfs}.* has \d+m free, and an attempt needs \d+m"):
        run(folder, "base", "hugetlb-2m", workload={"storage": str(tmpfs)})


def test_a_missing_program_is_said(folder: Path) -> None:
    with pytest.raises(HugewiseError, match="postgres: no such program in /nowhere"):
        run(folder, "base", "thp", postgres="/nowhere")
