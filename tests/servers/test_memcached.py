"""memcached through whole runs: delivered by its heap, by its own large pages, and not delivered as packaged."""

from pathlib import Path
from typing import Any

import pytest

from hugewise.model.trial import Attempt
from hugewise.workloads.memcached import WORKLOAD, Memcached
from tests.build import known
from tests.requirements import need_program
from tests.servers.trying import accepted, quick, short_pool

pytestmark = pytest.mark.whole

RARE = {"p999_us", "p9999_us"}

# Values of 1 KiB: some 240 MiB of slab pages in a second.
PARAMETERS = {
    "keys": 200_000,
    "payload": "1024:1",
    "memory": "320m",
    "duration": "500ms",
    "lead": "100ms",
    "instances": 1,
}


@pytest.fixture(autouse=True)
def programs() -> None:
    need_program("memcached", "memcached")


def run(folder: Path, *policies: Any, **parameters: Any) -> dict[str, Attempt]:
    return quick(folder, "memcached", policies, {**PARAMETERS, **parameters})


def test_the_heap_is_backed_as_promised_and_the_same_is_stored_in_every_arm(tmp_path: Path) -> None:
    found = run(tmp_path, "base", "thp", "hugetlb-2m")
    accepted(found, "base", "thp", "hugetlb-2m")
    assert found["base"].delivery.share == 1
    for arm, key in (("thp", "anon:2097152"), ("hugetlb-2m", "hugetlb:2097152")):
        assert found[arm].delivery.delivered is True
        assert found[arm].delivery.coverage[key] > 200 << 20
    assert len({attempt.facts["stored_hash"] for attempt in found.values()}) == 1
    for attempt in found.values():
        # Of fewer than 10,000 operations there is no p99.9, of fewer than 100,000 no p99.99.
        assert {metric.name for metric in WORKLOAD.metrics} - RARE <= set(attempt.metrics)
        assert all((name in attempt.metrics) != (name in attempt.absent) for name in RARE)
        assert attempt.metrics["evictions"] == 0
        assert attempt.facts["curr_items"] == PARAMETERS["keys"]


@pytest.mark.soak
def test_as_packaged_slab_pages_take_no_huge_pages(tmp_path: Path) -> None:
    found = run(tmp_path, "base", {"name": "thp", "judged": "setting"}, heap="packaged")["thp"]
    assert found.state == "accepted"
    assert known(found.delivery.share) < 0.1


@pytest.mark.soak
def test_half_a_pool_is_not_delivered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """glibc takes base pages without a word when the pool is short; so it is with every program of its malloc."""
    short_pool(monkeypatch, Memcached, size=128 << 20)
    found = run(tmp_path, "base", "hugetlb-2m")["hugetlb-2m"]
    assert found.delivery.delivered is False
    assert known(found.delivery.share) < 0.9


@pytest.mark.soak
def test_a_store_that_is_too_small_is_said(tmp_path: Path) -> None:
    """It would evict while it is filled: what is asked for would not be there."""
    found = run(tmp_path, "base", "thp", memory="64m")["base"]
    assert found.state == "failed"
    assert "items after 200000 were stored" in (found.reason or "")
