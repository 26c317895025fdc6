"""Memory that the host of a virtual machine takes back: how much is touched, when, and what is said of its cost."""

import time
from collections.abc import Mapping

import pytest

from hugewise.errors import ProbeError
from hugewise.host.backing import Backing, backing_of, prefault
from hugewise.machine import probe
from hugewise.model.pages import REPORTING, THP, reported_order
from tests.build.hosts import Files

MIB, HUGE = 1 << 20, 2 << 20
FILES = {"/proc/meminfo": "MemAvailable: 8388608 kB\n", f"{THP}/hpage_pmd_size": f"{HUGE}\n", REPORTING: "9\n"}


class Touching:
    """The probe: what it was asked to touch, in bytes, and the time of each of its blocks."""

    def __init__(self, blocks_ns: list[int]) -> None:
        self.blocks_ns, self.asked = blocks_ns, list[int]()

    def __call__(self, *words: str) -> probe.Touched:
        assert (words[0], words[1], words[3]) == ("touch", "--bytes", "--huge")
        self.asked.append(int(words[2]))
        return probe.Touched(bytes=int(words[2]), wall_ns=1, blocks_ns=self.blocks_ns)


def made(
    monkeypatch: pytest.MonkeyPatch, blocks_ns: list[int], files: Mapping[str, str] = FILES
) -> tuple[Backing, Touching]:
    touching = Touching(blocks_ns)
    monkeypatch.setattr(probe, "ask", touching)
    found = backing_of(Files(files))
    assert found is not None
    return found, touching


@pytest.mark.parametrize(("said", "order"), [("9\n", 9), ("0", 0), ("4294967295\n", None), ("-1", None), ("", None)])
def test_who_takes_back_free_memory_is_read_from_the_module(said: str, order: int | None) -> None:
    assert reported_order(said) == order
    assert reported_order(None) is None


def test_a_session_touches_its_memory_and_its_pools_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, slept, told = list[tuple[str, ...]](), list[float](), list[str]()

    def ask(*words: str) -> probe.Touched:
        asked.append(words)
        return probe.Touched(bytes=1, wall_ns=1, blocks_ns=[])

    monkeypatch.setattr(probe, "ask", ask)
    monkeypatch.setattr(time, "sleep", slept.append)
    prefault(512 * MIB, {HUGE: 10, 1 << 30: 0}, told.append)
    assert asked == [
        ("touch", "--bytes", str(512 * MIB), "--map", "anon"),
        ("touch", "--bytes", str(20 * MIB), "--map", f"hugetlb:{HUGE}"),
    ]
    assert (slept, told) == ([0.5], ["touching 532 MiB of memory once"])
    prefault(0, {}, told.append)
    assert (len(asked), len(told)) == (2, 1)


def test_where_nobody_takes_memory_back_nothing_is_touched() -> None:
    assert backing_of(Files({**FILES, REPORTING: "4294967295\n"})) is None
    assert backing_of(Files({REPORTING: "9"})) is None  # no huge pages


def test_as_much_is_touched_as_earlier_blocks_used_and_what_is_held_already_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, touching = made(monkeypatch, [])
    found.prefault("a")  # nobody knows yet
    found.learn("a", 100 * MIB)
    found.learn("a", 60 * MIB)
    found.prefault("a")
    found.prefault("a", held=100 * MIB)
    found.prefault("a", held=900 * MIB)
    found.prefault("b")
    assert [each // MIB for each in touching.asked] == [256, 121, 21, 16, 256]


@pytest.mark.parametrize(
    ("group", "limit", "used"),
    [
        ("0::/job\n", "/sys/fs/cgroup/job/memory.max", "/sys/fs/cgroup/job/memory.current"),
        (
            "4:memory:/job\n",
            "/sys/fs/cgroup/memory/job/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/job/memory.usage_in_bytes",
        ),
    ],
    ids=["cgroup v2", "cgroup v1"],
)
def test_a_limit_of_its_own_cgroup_leaves_less_to_touch(
    monkeypatch: pytest.MonkeyPatch, group: str, limit: str, used: str
) -> None:
    files = {**FILES, "/proc/self/cgroup": group, limit: str(512 * MIB), used: str(112 * MIB)}
    found, touching = made(monkeypatch, [], files)
    found.prefault("a")
    assert touching.asked == [100 * MIB]
    found, touching = made(monkeypatch, [], {**files, limit: "max"})
    found.prefault("a")
    assert touching.asked == [256 * MIB]


def test_most_of_the_memory_is_left_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    found, touching = made(monkeypatch, [])
    found.learn("a", 100 << 30)
    found.prefault("a")
    assert touching.asked == [2 << 30]
    found, touching = made(monkeypatch, [], {**FILES, "/proc/meminfo": ""})
    found.prefault("a")
    assert touching.asked == []


def test_between_turns_little_is_touched_and_often(monkeypatch: pytest.MonkeyPatch) -> None:
    found, touching = made(monkeypatch, [])
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    found.prefault("a")
    for now[0] in (100.1, 100.2, 100.25, 100.4, 100.6):
        found.prefault_again("a", lambda: 0)
    assert len(touching.asked) == 3
    found.learn("a", 8 << 30)
    now[0] = 110.0
    found.prefault_again("a", lambda: 4 << 30)
    assert touching.asked[-1] == 1 << 30  # no more than arms take in that time


def test_a_probe_that_finds_too_little_memory_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = made(monkeypatch, [])

    def short(*_: str) -> probe.Touched:
        raise ProbeError("is more than the bytes of memory that are available now")

    monkeypatch.setattr(probe, "ask", short)
    found.prefault("a")
    assert found.said() is None


def test_it_is_said_what_a_block_cost_that_the_host_had_to_give(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = made(monkeypatch, [270_000] * 90 + [5_400_000] * 10)
    found.prefault("a")
    assert found.said() == (
        "the host of this virtual machine takes back free memory, so hugewise touched memory shortly before the arms"
        " took it, 200 MiB in sum. 10% of the blocks of 2m took 5.4 ms, as the host had to supply them first; the"
        " others took 0.27 ms. A program that takes huge pages after a pause waits as long for each of these blocks"
    )
    found, _ = made(monkeypatch, [270_000] * 10 + [5_400_000] * 90)  # the host took back nearly all
    found.prefault("a")
    assert "90% of the blocks of 2m took 5.4 ms" in str(found.said())
    found, _ = made(monkeypatch, [270_000] * 90)
    found.prefault("a")
    assert str(found.said()).endswith("took it, 180 MiB in sum")
    found, _ = made(monkeypatch, [270_000] * 3)
    found.prefault("a")
    assert found.said() is None
