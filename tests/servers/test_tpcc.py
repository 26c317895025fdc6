"""TPC-C through whole runs: the same data for every attempt, pages delivered, and touched before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hugewise.model.trial import Attempt
from hugewise.workloads import _postgres
from hugewise.workloads.tpcc import WORKLOAD, go_tpc_path
from tests.build import known
from tests.requirements import need
from tests.servers.trying import accepted, quick

pytestmark = [pytest.mark.whole, pytest.mark.soak]

# Its workers come by the server's own clock, and have a thousand faults each: in a part of 2 s, one is 2% of all pages.
PARAMETERS = {
    "warehouses": 1, "buffers": "256m", "duration": "2s", "connections": 2, "settings": "autovacuum=off",
}  # fmt: skip


@pytest.fixture(autouse=True)
def programs() -> None:
    need(go_tpc_path() is not None, "go-tpc (make go-tpc)")
    need(not _postgres.missing("", (), ("pg_prewarm",)), "PostgreSQL (apt install postgresql)")


def run(folder: Path, **more: Any) -> dict[str, Attempt]:
    found = quick(folder, "tpcc", ("base", "hugetlb-2m"), {**PARAMETERS, **more})
    accepted(found)
    return found


def told(attempt: Attempt) -> list[str]:
    """What it says of page faults in its measured part: of more than 1% of the resident pages."""
    return [mark for mark in attempt.disturbances if "page faults in the measured part" in mark]


def test_it_is_backed_as_promised(tmp_path: Path) -> None:
    found = run(tmp_path)
    for attempt in found.values():
        assert attempt.delivery.delivered is True
        assert all(attempt.metrics[metric.name] for metric in WORKLOAD.metrics)
    assert found["hugetlb-2m"].delivery.coverage["hugetlb:2097152"] > 100 << 20


def test_backends_that_have_not_touched_their_buffers_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touched = run(tmp_path / "touched", lead="1s")
    monkeypatch.setattr(_postgres, "at_the_first_update", lambda *_: ())
    found = run(tmp_path / "untouched", lead="1s")
    assert len(told(found["base"])) == 1
    metrics = [one["base"].metrics for one in (touched, found)]
    faults = [known(metric["page_faults"]) / known(metric["tpm_total"]) for metric in metrics]
    assert faults[0] < faults[1] / 2, faults
