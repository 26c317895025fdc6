"""redis through whole runs: delivered, not delivered, saved in the background, killed, and asked at a rate."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hugewise.model.trial import Attempt
from hugewise.workloads.redis import WORKLOAD
from tests.build import known
from tests.requirements import need_program
from tests.servers.trying import accepted, quick

pytestmark = pytest.mark.whole

# Enough keys that a heap which grows by 64 MiB at once is filled for the most part.
PARAMETERS = {"keys": 300_000, "payload": "256:1", "duration": "500ms", "lead": "100ms", "instances": 1}


@pytest.fixture(autouse=True)
def programs() -> None:
    need_program("redis-server", "redis-server")


def run(folder: Path, *policies: Any, parameters: Mapping[str, Any] = {}, **workload: Any) -> dict[str, Attempt]:
    return quick(folder, "redis", policies, {**PARAMETERS, **parameters}, **workload)


def test_the_heap_is_backed_as_promised_and_the_same_is_stored_in_every_arm(tmp_path: Path) -> None:
    found = run(tmp_path, "base", "thp", parameters={"keys": 600_000})
    accepted(found, "base", "thp")
    base, huge = found["base"], found["thp"]
    assert base.delivery.share == 1
    assert huge.delivery.delivered is True
    assert huge.delivery.coverage["anon:2097152"] > 200 << 20
    assert base.facts["stored_hash"] == huge.facts["stored_hash"]
    assert base.facts["sequence_hash"] == huge.facts["sequence_hash"]
    for attempt in found.values():
        # The last two are of 10,000 and 100,000 operations or more.
        absent = {"cow_bytes", "fork_us", "save_s", "p999_us", "p9999_us"}
        assert {metric.name for metric in WORKLOAD.metrics} <= set(attempt.metrics) | absent
        assert all(attempt.metrics[name] for name in ("ops_per_s", "p50_us", "p99_us", "server_cpu_us"))
        # Six standard deviations of a binomial share: where the machine stood still there were few.
        spread = (0.95 * 0.05 / int(attempt.facts["operations"])) ** 0.5
        assert attempt.metrics["hit_ratio"] == pytest.approx(0.95, abs=max(0.02, 6 * spread))


@pytest.mark.soak
def test_redis_by_itself_takes_no_huge_pages(tmp_path: Path) -> None:
    found = run(tmp_path, "base", {"name": "thp", "judged": "setting"}, parameters={"disable_thp": True})["thp"]
    assert found.state == "accepted"
    assert known(found.delivery.share) < 0.1


@pytest.mark.soak
def test_a_pool_reaches_the_malloc_of_glibc(tmp_path: Path) -> None:
    found = run(tmp_path, "base", "hugetlb-2m", parameters={"allocator": "libc"})["hugetlb-2m"]
    assert (found.state, found.delivery.delivered) == ("accepted", True)
    assert found.delivery.coverage["hugetlb:2097152"] > 100 << 20
    assert found.facts["mem_allocator"] == "libc (LD_PRELOAD)"


@pytest.mark.soak
def test_a_background_save_is_measured_with_what_it_copied(tmp_path: Path) -> None:
    parameters = {"bgsave": True, "mode": "rate", "rate": 2_000, "keys": 30_000, "duration": "3s"}
    setting = {"name": "thp", "judged": "setting"}
    for attempt in run(tmp_path, "base", setting, parameters=parameters, metric="p999_us").values():
        assert (attempt.state, attempt.reason) == ("accepted", None)
        metrics = attempt.metrics
        assert 0 < int(attempt.facts["operations"]) <= 3 * 2_000  # what falls due while the machine is busy is not sent
        assert 0 < known(metrics["ops_per_s"]) <= 1.01 * 2_000
        assert known(metrics["cow_bytes"]) > 0
        assert known(metrics["fork_us"]) > 0
