"""How memory is brought from one state to the next, with a fragmenter that only says so."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from hugewise.attempt import ageing
from hugewise.attempt.ageing import Ageing, floor_of
from hugewise.errors import MachineError, ProbeError
from hugewise.machine import probe
from hugewise.model.host import Host
from tests.build.hosts import Files
from tests.build.memory import memory_files

GIB, PAGE, PMD = 1 << 30, 4096, 2 << 20
WHOLE, PIECES = [0] * 10 + [5120], [0] * 8 + [20480]  # 20 GiB each


class Memory(Files):
    """A host whose free memory is in pieces or not; compaction mends it unless somebody holds a part of it."""

    def __init__(self) -> None:
        super().__init__(memory_files(WHOLE), root=True)
        self.done: list[str] = []
        self.scattered = 0  # compactions that come to nothing

    def have(self, counts: list[int]) -> None:
        self.files |= memory_files(counts)

    def write(self, path: str, text: str) -> None:
        self.done.append(f"{path.rsplit('/', 1)[-1]}={text}")
        if path.endswith("compact_memory"):
            self.scattered -= 1
            if self.scattered < 0:
                self.have(WHOLE)


class Fragmenter:
    """In place of the process."""

    made: ClassVar[list[Fragmenter]] = []
    works = True

    def __init__(self, host: Memory, floor: int, note: Any) -> None:
        self.host, self.floor, self.lives, self.asked = host, floor, True, []
        self.made.append(self)

    asked: list[int]

    def hold(self, most: int) -> probe.Fragmented:
        self.asked.append(most)
        if self.works:
            self.host.have(PIECES)
        return probe.Fragmented(free_bytes=20 * GIB, huge_bytes=0, pinned=10240, rounds=1, wall_ns=1)

    def close(self) -> None:
        self.lives = False


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Memory:
    monkeypatch.setattr(ageing, "Fragmenter", Fragmenter)
    monkeypatch.setattr(Fragmenter, "made", [])
    monkeypatch.setattr(Fragmenter, "works", True)
    return Memory()


def of(host: Host, **more: Any) -> Ageing:
    return Ageing(host, lambda _: None, PAGE, PMD, **more)


def test_it_is_fragmented_once_and_mended_before_each_attempt(host: Memory) -> None:
    memory = of(host, least=GIB)
    assert memory.bring("fresh", GIB)["free_huge"] > 19 * GIB
    assert memory.holds("fresh") and not memory.holds("fragmented")
    for _ in range(2):
        state = memory.bring("fragmented", GIB)
        assert (state["free_huge"], state["pinned"]) == (0, 10240)
    (one,) = Fragmenter.made
    assert one.asked == [GIB // 20] * 2  # half of a tenth of what the cell uses
    assert one.floor == floor_of(host) == 6 * GIB
    assert memory.holds("fragmented")


def test_a_fragmenter_that_the_kernel_has_ended_is_replaced(host: Memory) -> None:
    memory = of(host)
    memory.bring("fragmented", 0)
    Fragmenter.made[0].lives = False
    assert not memory.holds("fragmented")
    memory.bring("fragmented", 0)
    assert len(Fragmenter.made) == 2


def test_an_attempt_out_of_the_state_is_not_begun(host: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fragmenter, "works", False)
    with pytest.raises(MachineError, match="not in pieces: 20 GiB of the 20") as caught:
        of(host).bring("fragmented", GIB)
    assert "give memory back" in (caught.value.hint or "")


def test_fresh_memory_is_what_it_was_before(host: Memory) -> None:
    memory = of(host, least=GIB)
    memory.bring("fragmented", GIB)
    host.done.clear()
    memory.bring("fresh", GIB)
    assert not Fragmenter.made[0].lives
    assert host.done == ["compact_memory=1"]
    memory.bring("fragmented", GIB)
    host.scattered, host.done = 1, []
    memory.bring("fresh", GIB)  # what cannot be moved but dropped goes too
    assert host.done == ["compact_memory=1", "drop_caches=2", "compact_memory=1"]


def test_memory_that_stays_in_pieces_is_not_taken_for_fresh(host: Memory) -> None:
    memory = of(host, least=GIB)
    memory.bring("fragmented", GIB)
    host.scattered = 99
    with pytest.raises(MachineError, match="still in pieces"):
        memory.bring("fresh", GIB)


def test_the_end_leaves_nothing(host: Memory) -> None:
    memory = of(host)
    memory.bring("fragmented", 0)
    memory.close()
    assert not Fragmenter.made[0].lives
    assert host.done[-1] == "compact_memory=1"
    of(host).close()  # nothing was done


def test_what_was_lost_meanwhile_is_seen(host: Memory) -> None:
    memory = of(host)
    memory.bring("fragmented", 0)
    assert memory.lost("fragmented") is None
    Fragmenter.made[0].lives = False  # as the kernel ends it
    assert "was ended meanwhile" in (memory.lost("fragmented") or "")
    assert memory.lost("fresh") is None


def test_swap_goes_though_memory_cannot_be_mended(host: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []

    class Swap:
        in_use = False

        def off(self) -> None:
            pass

        def on(self) -> None:
            pass

        def close(self) -> None:
            closed.append("gone")

    memory = of(host, swap=Swap())
    memory.bring("pressure", 0)
    assert "taken out of use" in (memory.lost("pressure") or "")
    memory.bring("fragmented", 0)
    monkeypatch.setattr(host, "write", lambda path, text: (_ for _ in ()).throw(OSError("no")))
    monkeypatch.setattr(ageing, "compact", lambda host: (_ for _ in ()).throw(ProbeError("no")))
    with pytest.raises(ProbeError):
        memory.close()
    assert closed == ["gone"]


def test_swap_is_there_for_whom_it_is(host: Memory) -> None:
    used: list[str] = []

    class Swap:
        in_use = False

        def on(self) -> None:
            used.append("on")

        def off(self) -> None:
            used.append("off")

        def close(self) -> None:
            used.append("gone")

    memory = of(host, swap=Swap())
    memory.bring("fresh", 0)
    memory.bring("pressure", 0)
    memory.bring("fragmented", 0)
    memory.bring("fragmented+pressure", 0)
    memory.close()
    assert used == ["off", "on", "off", "on", "gone"]


def test_what_the_probe_cannot_do_reaches_the_caller(host: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Fragmenter, most: int) -> probe.Fragmented:
        raise ProbeError("memory cannot be fragmented: 100 MiB of memory are available")

    monkeypatch.setattr(Fragmenter, "hold", fails)
    with pytest.raises(ProbeError, match="are available"):
        of(host).bring("fragmented", 0)
