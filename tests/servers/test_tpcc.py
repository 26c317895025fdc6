"""TPC-C through whole runs on both servers: the same data for every attempt, pages delivered and not delivered."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hugewise.model.policy import Treatment
from hugewise.model.trial import Attempt
from hugewise.model.workload import ParameterValue
from hugewise.workloads import _mariadb, _postgres
from hugewise.workloads.tpcc import WORKLOAD, Tpcc, go_tpc
from tests.requirements import need
from tests.servers.trying import need_pages, tried

PARAMETERS = {"warehouses": 1, "buffers": "256m", "duration": "2s", "lead": "1s", "connections": 2}
QUICK = {"budget": {"blocks": 2, "time": "1s"}, "attempt": {"retries": 0}}


@pytest.fixture(autouse=True)
def programs() -> None:
    need_pages()
    need(go_tpc() is not None, "go-tpc (make go-tpc)")


def run(folder: Path, server: str, *policies: Any) -> dict[str, Attempt]:
    return tried(folder, {"name": "tpcc", "parameters": {**PARAMETERS, "server": server}}, list(policies), **QUICK)


def check(found: Mapping[str, Attempt]) -> None:
    assert {arm: (attempt.state, attempt.reason) for arm, attempt in found.items()} == dict.fromkeys(
        found, ("accepted", None)
    )
    for attempt in found.values():
        assert attempt.delivery.delivered is True
        assert all(attempt.metrics[metric.name] for metric in WORKLOAD.metrics)
    assert found["hugetlb-2m"].delivery.coverage["hugetlb:2097152"] > 100 << 20


def test_postgres_is_backed_as_promised(tmp_path: Path) -> None:
    need(not _postgres.missing("", (), ("pg_prewarm",)), "PostgreSQL (apt install postgresql)")
    check(run(tmp_path, "postgres", "base", "hugetlb-2m"))


def test_mariadb_is_backed_as_promised(tmp_path: Path) -> None:
    need(not _mariadb.missing(), "mariadbd (apt install mariadb-server)")
    check(run(tmp_path, "mariadb", "base", "hugetlb-2m"))


def test_half_a_pool_is_not_delivered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need(not _mariadb.missing(), "mariadbd (apt install mariadb-server)")

    def half(self: Tpcc, treatment: Treatment, values: Mapping[str, ParameterValue]) -> int:
        return 128 << 20 if treatment.target.kind == "hugetlb" else 0

    monkeypatch.setattr(Tpcc, "pool", half)
    found = run(tmp_path, "mariadb", "base", "hugetlb-2m")["hugetlb-2m"]
    assert found.delivery.delivered is False
