"""Which rejected attempts the tests of whole runs in guests leave out: one, that the emulator brought down."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from hugewise.model.results import Results
from tests.build.results import plain
from tests.build.trials import attempt
from tests.guests.runs import counted

HALF_PATCHED = "Oops: int3: 0000 [#1] PREEMPT SMP NOPTI\nKernel panic - not syncing: Fatal exception in interrupt\n"
NO_ROOM = "Kernel panic - not syncing: System is deadlocked on memory\n"


def of_consoles(folder: Path, *consoles: str) -> Results:
    """Of a run with one attempt that was accepted, and one that was rejected for each of these last words."""
    rejected = [attempt("thp", None, block=n, state="rejected", reason="it ended") for n in range(len(consoles))]
    for each, console in zip(rejected, consoles, strict=True):
        made = folder / "attempts" / f"b{each.block:05d}-{each.order}-{each.arm}-{each.number}"
        made.mkdir(parents=True)
        (made / "console.txt").write_text(console)
    return replace(plain(), folder=str(folder), attempts=(attempt("base", 1.0), *rejected))


def test_one_that_the_emulator_brought_down_is_left_out(tmp_path: Path) -> None:
    assert [each.arm for each in counted(of_consoles(tmp_path, HALF_PATCHED))] == ["base"]


@pytest.mark.parametrize("consoles", [(NO_ROOM,), ("",), (HALF_PATCHED, HALF_PATCHED)])
def test_any_other_and_a_second_one_is_a_failure(tmp_path: Path, consoles: tuple[str, ...]) -> None:
    with pytest.raises(AssertionError):
        counted(of_consoles(tmp_path, *consoles))
