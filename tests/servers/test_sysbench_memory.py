"""sysbench's memory test: its procedure, its summary, and real attempts with proven pages."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from hugewise.model.procedure import Places
from hugewise.workloads.sysbench_memory import WORKLOAD
from tests.build import known
from tests.build.workloads import BASE, GIB, GIGANTIC, POOL, Said, given
from tests.memory import held_pages
from tests.requirements import need_program, need_root
from tests.servers.trying import accepted, short_pool, tried

VALUES = given(WORKLOAD, total="20g")
PLACES = Places(data="/d", run="/r", ports=(), sut=(0, 1, 2), client=())
# Said by sysbench 1.0.20 on Debian 12.
SUMMARY = (Path(__file__).parent / "data" / "sysbench-memory.txt").read_text()


def test_the_command_is_the_published_one_with_the_treatment_s_own_option() -> None:
    argv = WORKLOAD.procedure(BASE, VALUES, PLACES).timed.argv
    assert argv[:2] == ("sysbench", "memory")
    assert argv[-1] == "run"
    assert {"--memory-block-size=67108864", "--threads=3", "--time=500", "--memory-hugetlb=off"} <= set(argv)
    pooled = WORKLOAD.procedure(POOL, VALUES, PLACES).timed
    assert "--memory-hugetlb=on" in pooled.argv
    assert pooled.environment == {}


def test_pages_of_another_size_are_had_by_malloc_s_heap() -> None:
    timed = WORKLOAD.procedure(GIGANTIC, VALUES, PLACES).timed
    assert "--memory-hugetlb=off" in timed.argv
    assert timed.environment == {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1073741824:glibc.malloc.mmap_max=0"}
    assert WORKLOAD.pool(GIGANTIC, VALUES) == GIB
    # malloc's first page is taken by the rest, and a block that does not fit in is mapped with its header behind it.
    assert WORKLOAD.pool(GIGANTIC, {**VALUES, "block": GIB}) == 3 * GIB
    more = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1073741824:glibc.malloc.arena_max=2"}
    assert "--memory-hugetlb=off" in WORKLOAD.procedure(replace(GIGANTIC, environment=more), VALUES, PLACES).timed.argv


def test_the_pool_is_as_large_as_the_blocks() -> None:
    assert WORKLOAD.pool(BASE, VALUES) == 0
    assert WORKLOAD.pool(POOL, VALUES) == 64 << 20


def test_the_summary_is_read() -> None:
    reading = WORKLOAD.read(Said({"timed": SUMMARY}), VALUES)
    assert reading.metrics == {"total_time_s": 3.0320, "mib_per_s": 6751.81, "latency_p95_ms": 34.33}
    assert reading.facts == {"sysbench": "1.0.20", "threads": 2, "moved_mib": 20480.0}
    assert reading.problem is None


def test_less_work_than_asked_for_is_a_failure_and_other_text_an_error() -> None:
    reading = WORKLOAD.read(Said({"timed": SUMMARY}), {**VALUES, "total": 40 << 30})
    assert reading.problem == "the time limit ended it after 20480 of 40960 MiB: raise limit"
    with pytest.raises(ValueError, match="FATAL: no"):
        WORKLOAD.read(Said({"timed": "FATAL: no"}), VALUES)


@pytest.mark.whole
def test_its_block_is_backed_as_the_policy_says(tmp_path: Path) -> None:
    need_program("sysbench", "sysbench")
    workload = {"name": "sysbench-memory", "parameters": {"total": "2g"}}
    never = {"name": "never", "from": "thp", "set": {"enabled": "never"}}
    found = tried(tmp_path, workload, ["base", "thp", "hugetlb-2m", never])
    accepted(found)
    assert {arm: attempt.delivery.delivered for arm, attempt in found.items()} == {
        "base": True,
        "thp": True,
        "hugetlb-2m": True,
        "never": False,
    }
    assert found["hugetlb-2m"].delivery.coverage["hugetlb:2097152"] == 64 << 20
    for attempt in found.values():
        assert known(attempt.metrics["mib_per_s"]) > 0


@pytest.mark.whole
@pytest.mark.soak
def test_a_page_of_1g_holds_its_block(tmp_path: Path) -> None:
    need_program("sysbench", "sysbench")
    need_root()
    with held_pages(GIB, 1):
        found = tried(tmp_path, {"name": "sysbench-memory", "parameters": {"total": "2g"}}, ["base", "hugetlb-1g"])
    accepted(found)
    pooled = found["hugetlb-1g"].delivery
    assert pooled.delivered is True
    assert pooled.coverage["hugetlb:1073741824"] == GIB
    assert sum(size for kind, size in pooled.coverage.items() if not kind.startswith("hugetlb")) < 64 << 20


@pytest.mark.whole
def test_half_a_pool_ends_in_sysbench_s_own_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_program("sysbench", "sysbench")
    short_pool(monkeypatch, type(WORKLOAD), 0.5)
    found = tried(tmp_path, {"name": "sysbench-memory", "parameters": {"total": "1g"}}, ["base", "hugetlb-2m"])
    assert found["base"].state == "accepted"
    assert found["hugetlb-2m"].state == "failed"
    assert found["hugetlb-2m"].delivery.delivered is not True
