"""What a setting of the host would do to other programs, from smaps that are written here and of this process."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hugewise.inspection import neighbours as beside
from hugewise.inspection.neighbours import eligible, neighbours
from hugewise.inspection.smaps import BackedMapping, backed_mappings

MIB, PMD = 1 << 20, 2 << 20


def mapping(mib: int = 64, *, at: int = 0, **changes: object) -> BackedMapping:
    made = {"permissions": "rw-p", "name": "", "anonymous": mib * MIB, "resident": mib * MIB, "page": 4096, **changes}
    return BackedMapping(start=at, end=at + mib * MIB, **made)  # type: ignore[arg-type]


def test_small_pages_with_room_for_a_large_one_are_eligible() -> None:
    assert eligible(mapping(), PMD, 4096) == (64 * MIB, 0)
    assert eligible(mapping(anonymous=10 * MIB), PMD, 4096) == (10 * MIB, 54 * MIB)
    assert eligible(mapping(huge=40 * MIB), PMD, 4096) == (24 * MIB, 0)
    assert eligible(mapping(anonymous=4096), PMD, 4096) == (4096, PMD - 4096), "one page makes one block"
    assert eligible(mapping(at=MIB), PMD, 4096) == (62 * MIB, 0), "its ends lie in no whole block"


@pytest.mark.parametrize(
    "changes",
    [
        {"permissions": "rw-s"},
        {"name": "/usr/lib/libc.so.6"},
        {"flags": frozenset({"rd", "nh"})},
        {"anonymous": 0},
        {"huge": 64 * MIB},
        {"page": 2 << 20},
        {"mib": 1},
    ],
)
def test_what_would_stay_as_it_is_is_not_counted(changes: dict[str, object]) -> None:
    assert eligible(mapping(**changes), PMD, 4096) == (0, 0)  # type: ignore[arg-type]


@given(st.integers(0, 40), st.integers(1, 20_000), st.data())
def test_a_bound_is_never_below_what_could_come(at: int, pages: int, data: st.DataObject) -> None:
    """Of pages drawn at random: those in whole blocks that have one become huge, with all of their block."""
    end = at + pages
    touched = data.draw(st.sets(st.integers(at, end - 1), min_size=1, max_size=50))
    whole = range(-(-at // 512), end // 512)
    inside = [page for page in touched if page // 512 in whole]
    grown = (len({page // 512 for page in inside}) * 512 - len(inside)) * 4096
    seen = BackedMapping(
        start=at * 4096, end=end * 4096, permissions="rw-p", name="", anonymous=len(touched) * 4096, page=4096
    )
    here, more = eligible(seen, PMD, 4096)
    assert len(inside) * 4096 <= here
    assert grown <= more


HEAP = """\
7f0000000000-7f0004000000 rw-p 00000000 00:00 0 
Rss:               32768 kB
Anonymous:         32768 kB
AnonHugePages:         0 kB
KernelPageSize:        4 kB
VmFlags: rd wr mr mw me ac sd
"""  # noqa: W291


def process(proc: Path, pid: int, name: str, smaps: str = HEAP, status: str = "\nTHP_enabled:\t1") -> None:
    folder = proc / str(pid)
    folder.mkdir()
    (folder / "status").write_text(f"Name:\t{name}\nVmRSS:\t  40000 kB{status}\n")
    (folder / "smaps").write_text(smaps)


def test_programs_are_told_by_name_with_most_first(tmp_path: Path) -> None:
    process(tmp_path, 10, "postgres")
    process(tmp_path, 11, "postgres")
    process(tmp_path, 12, "redis-server", HEAP * 3)
    process(tmp_path, 13, "off", status="\nTHP_enabled:\t0")
    process(tmp_path, 14, "small", "")
    (tmp_path / "15").mkdir()  # it has ended
    (tmp_path / "16").mkdir()
    (tmp_path / "16" / "status").write_text("Name:\tkthreadd\n")
    (tmp_path / "self").mkdir()
    process(tmp_path, 17, "mine")
    found = neighbours(PMD, tmp_path, without=[17])
    assert [(program.name, program.processes, program.eligible >> 20) for program in found.programs] == [
        ("redis-server", 1, 96), ("postgres", 2, 64),
    ]  # fmt: skip
    assert (found.eligible >> 20, found.growth >> 20, found.processes, found.unread) == (160, 160, 4, 0)


def test_only_the_five_with_most_are_named_and_all_are_counted(tmp_path: Path) -> None:
    for number in range(1, 8):
        process(tmp_path, number, f"program-{number}", HEAP * number)
    found = neighbours(PMD, tmp_path)
    assert [program.name for program in found.programs] == [f"program-{number}" for number in (7, 6, 5, 4, 3)]
    assert found.eligible >> 20 == 32 * 28


def test_who_may_not_be_looked_into_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process(tmp_path, 10, "mine")
    process(tmp_path, 11, "theirs")
    opened = Path.open

    def refusing(self: Path, *args: object, **more: object) -> object:
        if self == tmp_path / "11" / "smaps":
            raise PermissionError(13, "denied", str(self))
        return opened(self, *args, **more)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", refusing)
    found = neighbours(PMD, tmp_path)
    assert ([program.name for program in found.programs], found.unread) == (["mine"], 1)


def test_nobody_keeps_root_busy_with_mappings_of_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "_MOST_MAPPINGS", 10)
    for pid in (10, 11, 12):
        process(tmp_path, pid, "many", HEAP * 6, "\nUid:\t7\t7\t7\t7")
    process(tmp_path, 20, "roots", HEAP * 60, "\nUid:\t0\t0\t0\t0")
    process(tmp_path, 30, "other", HEAP * 6, "\nUid:\t8\t8\t8\t8")
    read: list[int] = []

    def counted(lines: Iterable[bytes]) -> Iterator[BackedMapping]:
        for one in backed_mappings(lines):
            read.append(1)
            yield one

    monkeypatch.setattr(beside, "backed_mappings", counted)
    found = neighbours(PMD, tmp_path)
    assert {program.name: program.processes for program in found.programs} == {"many": 1, "roots": 1, "other": 1}
    assert found.unread == 2
    assert len(read) == 6 + 4 + 60 + 6


def test_the_processes_of_this_machine_can_be_looked_at() -> None:
    found = neighbours(PMD, without=[os.getppid()])
    assert found.eligible >= sum(program.eligible for program in found.programs) >= 0
    assert found.processes + found.unread > 0
