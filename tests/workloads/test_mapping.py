"""mmap-perf and lat-mmap: what they ask of a pool, and that the same sequence runs on every kind of page."""

from pathlib import Path

import msgspec
import pytest

import hugewise
from hugewise.machine import probe
from hugewise.model.trial import Attempt
from hugewise.model.workload import ParameterValue
from hugewise.workloads import lat_mmap, mmap_perf
from tests.build import known
from tests.build.workloads import BASE, POOL
from tests.servers.trying import accepted, short_pool, tried

pytestmark = pytest.mark.looks

ADVISED = msgspec.structs.replace(BASE, advice="huge")


def values(**given: ParameterValue) -> dict[str, ParameterValue]:
    return {"calls": 20_000, "max_bytes": 256 << 10, "touch_chance": 0.25, "huge_maps": False, "seed": 1, **given}


def test_a_pool_has_room_for_every_slot() -> None:
    perf = mmap_perf.WORKLOAD
    assert perf.pool(BASE, values()) == 0
    assert perf.pool(POOL, values()) == 1024 * (2 << 20)
    # Of 1 to 4 pages, all equally likely: two and a half on average.
    assert perf.pool(POOL, values(max_bytes=8 << 20)) == 2560 * (2 << 20)
    assert perf.memory(BASE, values(max_bytes=8 << 20)) == 2 << 30
    assert perf.memory(BASE, values(touch_chance=1.0)) == 1024 * (128 << 10)
    assert lat_mmap.WORKLOAD.pool(POOL, {"bytes": 63 << 20, "rounds": 1, "random": False}) == 64 << 20


def test_the_treatment_reaches_the_maps() -> None:
    assert mmap_perf.WORKLOAD.launch(POOL, values()).argv[-2:] == ("--map", "hugetlb:2097152")
    assert "--map" not in lat_mmap.WORKLOAD.launch(BASE, {"bytes": 64 << 20, "rounds": 1, "random": False}).argv


@pytest.mark.parametrize("workload", [mmap_perf.WORKLOAD, lat_mmap.WORKLOAD], ids=lambda each: str(each.name))
def test_advice_would_change_what_is_measured(workload: mmap_perf.MmapPerf | lat_mmap.LatMmap) -> None:
    assert "madvise" in (workload.refuses(ADVISED, {}) or "")
    assert workload.refuses(BASE, {}) is None
    assert workload.refuses(POOL, {}) is None


def said(folder: Path, attempt: Attempt) -> probe.Result:
    """What the micro-workload of `attempt` said."""
    (path,) = folder.glob(f"**/b{attempt.block:05d}-{attempt.order}-{attempt.arm}-{attempt.number}/events.jsonl")
    events = probe.decode(path.read_bytes().splitlines(keepends=True))
    return next(event for event in events if isinstance(event, probe.Result))


@pytest.mark.soak
@pytest.mark.whole
@pytest.mark.parametrize("largest", ["256k", "4m"])
def test_the_same_calls_are_made_on_every_kind_of_page(tmp_path: Path, largest: str) -> None:
    workload = {"name": "mmap-perf", "parameters": {"calls": 6000, "max_bytes": largest}}
    found = tried(tmp_path, workload, ["base", "thp", "hugetlb-2m"])
    accepted(found)
    facts = {arm: said(tmp_path, attempt).facts for arm, attempt in found.items()}
    same = ("sequence", "calls", "maps", "unmaps", "resizes", "pages_touched")
    assert len({tuple(fact[name] for name in same) for fact in facts.values()}) == 1
    assert found["hugetlb-2m"].delivery.share == 1
    assert found["base"].delivery.share == 1
    peak = facts["hugetlb-2m"]["peak_bytes"]
    assert isinstance(peak, int)
    assert 0 < peak <= found["hugetlb-2m"].pool_bytes
    for attempt in found.values():
        assert known(attempt.metrics["calls_per_s"]) > 0


@pytest.mark.whole
def test_a_file_of_a_pool_is_touched_at_the_same_places(tmp_path: Path) -> None:
    workload = {"name": "lat-mmap", "parameters": {"bytes": "33m", "rounds": 20}}
    found = tried(tmp_path, workload, ["base", "hugetlb-2m"])
    accepted(found)
    facts = {arm: said(tmp_path, attempt).facts for arm, attempt in found.items()}
    assert facts["base"]["touches"] == facts["hugetlb-2m"]["touches"]
    assert found["hugetlb-2m"].delivery.share == 1
    assert set(found["base"].delivery.coverage) == {"shmem:4096"}


@pytest.mark.whole
def test_half_a_pool_is_found_before_the_clock_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short_pool(monkeypatch, mmap_perf.MmapPerf, size=256 << 21)
    with pytest.raises(hugewise.errors.HugewiseError) as caught:
        tried(tmp_path, {"name": "mmap-perf", "parameters": {"calls": 6000}}, ["base", "hugetlb-2m"])
    assert "256 pages" in str(caught.value)
