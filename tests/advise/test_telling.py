"""What is told of an advice at once, and what is kept beside its record."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hugewise.advise import advise as phases
from hugewise.advise import of_study
from hugewise.advise.advice import RECORD, Advice
from hugewise.advise.candidates import LeftOutCandidate, SettingCandidate
from hugewise.advise.of_study import CellAdvice, StudyAdvice
from hugewise.advise.question import command
from hugewise.advise.text import DETAILS, answer, details, ending, objective, whole
from tests.advise.test_advice import LAST
from tests.advise.test_advice import whole as made_whole
from tests.advise.test_phases import ASKED, Machine, machine

__all__ = ["machine"]

SIX = tuple(
    SettingCandidate(name=name, use={"name": name, "from": "thp", "mechanism": "process"}, reach="process", reason="r")
    for name in ("off", "advised", "heap-thp", "pool-2m", "always", "always-64k")
)
FOLDER = Path("results/advice/20261128T055520Z-da82")
LEFT = [LeftOutCandidate(name=name, reason="no") for name in ("heap-2m", "heap-1g", "always-shared")]


def rows(lines: Sequence[str]) -> int:
    """Lines of a terminal of 80 columns."""
    return sum(max(1, -(-len(line) // 80)) for line in lines)


def measured(**changes: Any) -> Advice:
    """An advice with figures of each setting and remarks."""
    return msgspec.structs.replace(made_whole(), **changes)


def test_what_is_told_at_once_is_short_and_the_rest_is_kept(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(phases, "candidates", lambda *_: (SIX, LEFT))
    machine.levels = {one.name: -0.02 * number for number, one in enumerate(SIX, 1)}
    found, _ = phases.advise(ASKED, tmp_path)
    short, long = ending(found, FOLDER), list(details(found))
    assert rows(short) <= 15
    assert len(long) + 2 + 4 > 22
    assert [line.split()[0] for line in short[2:9]] == ["setting", "as-is", *(one.name for one in SIX[:5])], "the table"
    assert not any(line.startswith(("Tried: ", "Not tried: ", "As it is: ", "Price: ")) for line in short)
    assert short[-1] == f"Advice: {FOLDER} (all in {DETAILS})"
    assert any("page walks" in line for line in long)
    kept = whole(found).splitlines()
    assert kept[:2] == [objective(found), answer(found)]
    assert [line.strip() for line in kept[2 : 2 + len(long)]] == [line.strip() for line in long]
    assert [line.strip().partition(" ")[0] for line in kept[2 + len(long) :]] == [*["Run:"] * 3, "Page"]


def test_the_command_line_is_kept_with_the_advice_and_its_runs(machine: Machine, tmp_path: Path) -> None:
    asked = ("hugewise", "advise", "--", "x", "a b")
    found, folder = phases.advise(ASKED, tmp_path, command=asked)
    assert msgspec.json.decode((folder / RECORD).read_bytes(), type=Advice).command == found.command == asked
    assert len(machine.commands) > 1 and set(machine.commands) == {asked}
    assert "\n  Asked by: hugewise advise -- x 'a b'\n" in (folder / DETAILS).read_text()
    # Where a program asked, nothing is said of it.
    other, _ = phases.advise(ASKED, tmp_path)
    assert "Asked by" not in whole(other) and machine.commands[-1] == ()


def test_what_stands_in_the_way_is_told_at_once(machine: Machine, tmp_path: Path) -> None:
    machine.stops["advise-confirmation"] = 2
    found, _ = phases.advise(ASKED, tmp_path)
    remarks = ("a change of 2% or more would be found", "its output differs between runs")
    parts = {"time_remark": remarks[0], "remarks": remarks[1:]}
    found = msgspec.structs.replace(found, **parts)
    assert [line for line in ending(found, FOLDER) if line.startswith("Note: ")] == [f"Note: {one}." for one in remarks]
    decided, _ = phases.advise(ASKED, tmp_path)
    decided = msgspec.structs.replace(decided, **parts)
    assert [line for line in ending(decided, FOLDER) if line.startswith("Note: ")] == [f"Note: {remarks[1]}."]
    assert f"Note: {remarks[0]}." in list(details(decided))


def test_the_end_names_the_commands_that_try_and_deploy_a_setting_that_is_better() -> None:
    made = measured()
    tried = msgspec.structs.replace(LAST, variables={"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"})
    lines = ending(msgspec.structs.replace(made, confirmed=tried), FOLDER)
    assert "Try it: GLIBC_TUNABLES=glibc.malloc.hugetlb=1 x" in lines
    given = command(("x",), stdin="/data/my file")
    asked = msgspec.structs.replace(made.question, workload=given)
    lines_of_input = ending(msgspec.structs.replace(made, confirmed=tried, question=asked), FOLDER)
    assert "Try it: GLIBC_TUNABLES=glibc.malloc.hugetlb=1 x < '/data/my file'" in lines_of_input
    deploy = f"Deploy: hugewise advise --resume {FOLDER} --output FILES"
    assert deploy in lines and deploy in ending(made, FOLDER)
    assert deploy not in ending(made, FOLDER, files=True)
    worse = msgspec.structs.replace(tried, verdict="worse")
    assert not any(
        line.startswith(("Try", "Deploy")) for line in ending(msgspec.structs.replace(made, confirmed=worse), FOLDER)
    )


def test_an_effect_of_one_or_two_pairs_is_not_shown() -> None:
    made = measured()
    assert made.confirmed is not None
    for count, shown in ((2, False), (3, True)):
        seen = tuple(msgspec.structs.replace(one, n=count) for one in made.confirmed.measured)
        told = ending(
            msgspec.structs.replace(made, confirmed=msgspec.structs.replace(made.confirmed, measured=seen)), FOLDER
        )
        (row,) = (line for line in told if line.startswith("pool-2m"))
        assert f"n {count}" in row
        assert ("-19" in row) == shown


LONG = "it ended with status 1: " + "there was no room for its pages " * 30


@pytest.mark.parametrize("files", [False, True])
@pytest.mark.parametrize("confirmed", [False, True])
def test_the_end_has_at_most_15_lines_however_much_there_is_to_tell(files: bool, confirmed: bool) -> None:
    made = measured(remarks=(LONG,) * 9)
    if not confirmed:
        made = msgspec.structs.replace(made, confirmed=None, arrived="confirmation")
    lines = ending(made, FOLDER, files=files)
    assert rows(lines) <= (12 if files else 15)
    assert lines[0].startswith("Set `advised`" if confirmed else "No answer yet: interrupted in the confirmation")
    assert any(line.startswith("Only the confirmed" if confirmed else "The effects are estimates") for line in lines)
    told = [line for line in lines if not line.startswith("Deploy: ")]
    assert rows(told) == len(told), "no line but a command is longer than 80 columns"
    failed = msgspec.structs.replace(LAST, verdict="none", reason=LONG)
    lines = ending(msgspec.structs.replace(made, confirmed=failed), FOLDER, files=files)
    assert rows(lines) <= (12 if files else 15)


def test_of_many_cells_there_is_a_row_for_each_that_has_room() -> None:
    cells = [
        CellAdvice(cell=f"redis clients={number}", folder=f"f/{number}", advice=measured()) for number in range(20)
    ]
    cells += [CellAdvice(cell="other", why=LONG), CellAdvice(cell="last")]
    found = StudyAdvice(study="many", time=60.0, cells=cells)
    lines = of_study.ending(found, FOLDER)
    assert rows(lines) <= 15
    assert lines[0] == "many: 20 of 22 cells answered"
    assert lines[1].split() == ["cell", "answer", "change", "(interval)"]
    assert lines[2].split()[:4] == ["redis", "clients=0", "set", "advised"]
    assert re.fullmatch(r"\(\d+ more rows of this table left out\)", lines[-2])
    late = LeftOutCandidate(name="always", reason="no room", late=True)
    cells[0].advice = told = measured(left_out=(late,), time_for_all="8m")
    assert told.confirmed is not None
    told.confirmed = msgspec.structs.replace(told.confirmed, verdict="undecided")
    few = of_study.ending(msgspec.structs.replace(found, cells=[*cells[:3], *cells[20:]]), FOLDER)
    named = [line for line in few if "`always`" in line]
    assert len(named) == 1 and named[0].startswith("redis clients=0: Not tried for lack of time: `always`."), few
    assert rows(few) <= 15 and "other: no advice: it ended with status 1" in "\n".join(few) and "last: not begun" in few
