"""pgbench on a real PostgreSQL through whole runs: delivered, not delivered. What can break is in test_failures.py."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hugewise.model.trial import Attempt
from hugewise.workloads import _postgres
from hugewise.workloads.pgbench import WORKLOAD, Pgbench, database_bytes
from tests.build import known
from tests.build.workloads import given
from tests.requirements import need
from tests.servers.trying import accepted, quick, short_pool

pytestmark = pytest.mark.whole

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


def run(folder: Path, *policies: Any) -> dict[str, Attempt]:
    return quick(folder, "pgbench", policies, PARAMETERS)


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
        assert known(metrics["tps"]) > 0
        # The first change of a page after a checkpoint would log the page whole (8 KiB), fewer of them with every
        # second: the rate would rise.
        assert 100 < known(metrics["wal_bytes"]) < 1000
        assert known(metrics["latency_p50_ms"]) > 0
        assert attempt.facts["database_bytes"] == pytest.approx(39_000_000, rel=0.05)


@pytest.mark.soak
def test_a_given_work_is_done_whatever_time_it_takes(folder: Path) -> None:
    found = quick(folder, "pgbench", ["base", "hugetlb-2m"], {**PARAMETERS, "transactions": 401})
    accepted(found)
    facts = found["base"].facts
    assert (facts["transactions_made"], facts["checkpoints"]) == (402, 0)  # each of two clients does as many
    assert 200 < int(facts["transactions"]) <= 402
    assert float(facts["warmed_up_before_s"]) > 0
    assert known(found["base"].metrics["wal_bytes"]) > 100


@pytest.mark.soak
def test_analytic_queries_find_the_same_in_data_that_are_made_anew(folder: Path, tmp_path: Path) -> None:
    """Five queries a client and round, over pages that a backend has; the tables are of the same size."""
    asked = {**PARAMETERS, "mode": "analytic", "transactions": 20}
    found = quick(folder, "pgbench", ["base", "hugetlb-2m"], asked)
    accepted(found)
    for attempt in found.values():
        assert 10 < int(attempt.facts["transactions"]) <= 20
        assert attempt.delivery.share == 1
        assert sum(attempt.delivery.coverage.values()) > 25 << 20, "the backend has touched the whole database"
        assert attempt.facts["database_bytes"] == pytest.approx(database_bytes(given(WORKLOAD, **asked)), rel=0.05)
    anew = quick(tmp_path, "pgbench", ["base", "hugetlb-2m"], asked)
    accepted(anew)
    # Catalogs are in it, which autovacuum may have let grow by some pages.
    anew_bytes, bytes_ = (each["base"].facts["database_bytes"] for each in (anew, found))
    assert anew_bytes == pytest.approx(bytes_, abs=16 * 8192)


@pytest.mark.soak
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
