"""TPC-C through whole runs on both servers: the same data for every attempt, pages delivered, and touched before."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hugewise.model.trial import Attempt
from hugewise.workloads import _mariadb, _postgres
from hugewise.workloads._tpcc import go_tpc_path
from hugewise.workloads.tpcc import WORKLOAD
from tests.build import known
from tests.requirements import need
from tests.servers.trying import accepted, quick

pytestmark = [pytest.mark.whole, pytest.mark.soak]

PARAMETERS = {"warehouses": 1, "buffers": "256m", "duration": "2s", "connections": 2}
# Its workers come by the server's own clock, and have a thousand faults each: in a part of 2 s, one is 2% of all pages.
NO_VACUUM = {"settings": "autovacuum=off"}
QUANTILES = {f"latency_p{share}_ms" for share in (50, 90, 95, 99)}


@pytest.fixture(autouse=True)
def programs() -> None:
    need(go_tpc_path() is not None, "go-tpc (make go-tpc)")


def run(folder: Path, server: str, *policies: Any, **more: Any) -> dict[str, Attempt]:
    calm = NO_VACUUM if server == "postgres" else {}
    return quick(folder, "tpcc", policies, {**PARAMETERS, **calm, "server": server, **more})


def told(attempt: Attempt) -> list[str]:
    """What it says of page faults in its measured part: of more than 1% of the resident pages."""
    return [mark for mark in attempt.disturbances if "page faults in the measured part" in mark]


def check(found: Mapping[str, Attempt]) -> None:
    accepted(found)
    for attempt in found.values():
        assert attempt.delivery.delivered is True
        own = {metric.name for metric in WORKLOAD.metrics}
        # go-tpc's quantiles are of its whole run, its warm-up included: not told, and why.
        assert {name for name in own if attempt.metrics[name] is None} == QUANTILES
        assert all(attempt.metrics[name] for name in own - QUANTILES)
        assert all("warm-up" in attempt.absent[name] for name in QUANTILES)
    assert found["hugetlb-2m"].delivery.coverage["hugetlb:2097152"] > 100 << 20


def test_postgres_is_backed_as_promised(tmp_path: Path) -> None:
    need(not _postgres.missing("", (), ("pg_prewarm",)), "PostgreSQL (apt install postgresql)")
    check(run(tmp_path, "postgres", "base", "hugetlb-2m"))


def test_backends_that_have_not_touched_their_buffers_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need(not _postgres.missing("", (), ("pg_prewarm",)), "PostgreSQL (apt install postgresql)")
    touched = run(tmp_path / "touched", "postgres", "base", "hugetlb-2m", lead="1s")
    accepted(touched)
    monkeypatch.setattr(_postgres, "at_the_first_update", lambda *_: ())
    found = run(tmp_path / "untouched", "postgres", "base", "hugetlb-2m", lead="1s")
    accepted(found)
    assert len(told(found["base"])) == 1
    metrics = [one["base"].metrics for one in (touched, found)]
    faults = [known(metric["page_faults"]) / known(metric["tpm_total"]) for metric in metrics]
    assert faults[0] < faults[1] / 2, faults


def test_mariadb_is_backed_as_promised(tmp_path: Path) -> None:
    need(not _mariadb.missing(), "mariadbd (apt install mariadb-server)")
    check(run(tmp_path, "mariadb", "base", "hugetlb-2m"))
