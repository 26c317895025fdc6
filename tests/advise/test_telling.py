"""What is told of an advice at once, and what is kept beside its record."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from hugewise.advise import advise as phases
from hugewise.advise.advice import RECORD, Advice
from hugewise.advise.candidates import LeftOutCandidate, SettingCandidate
from hugewise.advise.layouts import GainPart, GainParts
from hugewise.advise.text import DETAILS, answer, details, objective, summary, whole
from tests.advise.test_phases import ASKED, Machine, machine

__all__ = ["machine"]

SIX = tuple(
    SettingCandidate(name=name, use={"name": name, "from": "thp", "mechanism": "process"}, reach="process", reason="r")
    for name in ("off", "advised", "heap-thp", "pool-2m", "always", "always-64k")
)
LEFT = [LeftOutCandidate(name=name, reason="no") for name in ("heap-2m", "heap-1g", "always-shared")]


def test_what_is_told_at_once_is_short_and_the_rest_is_kept(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(phases, "candidates", lambda *_: (SIX, LEFT))
    machine.levels = {one.name: -0.02 * number for number, one in enumerate(SIX, 1)}
    found, _ = phases.advise(ASKED, tmp_path)
    part = GainPart(ratio=0.9, low=0.8, high=0.95)
    parts = GainParts(folder="/r", metric="wall_s", better="lower", n=9, confidence=0.9, library=part, pages=part)
    found = msgspec.structs.replace(found, apart=parts)
    short, long = list(summary(found)), list(details(found))
    assert len(short) + 2 <= 15, "with the objective and the answer"
    assert len(long) + 2 + 4 > 22
    assert set(short) <= set(long)
    assert short[:8] == long[:8], "the table"
    assert not any(line.startswith(("Tried: ", "Not tried: ", "As it is: ", "Price: ")) for line in short)
    assert any(line.startswith("Of that, wall_s: the library alone") for line in short)
    assert any(line.startswith("Cause: ") for line in short)
    kept = whole(found).splitlines()
    assert kept[:2] == [objective(found), answer(found)]
    assert [line.strip() for line in kept[2 : 2 + len(long)]] == [line.strip() for line in long]
    assert [line.strip().partition(" ")[0] for line in kept[2 + len(long) :]] == ["Run:"] * 3


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
    found = msgspec.structs.replace(found, remarks=remarks)
    assert [line for line in summary(found) if line.startswith("Note: ")] == [f"Note: {one}." for one in remarks]
    decided, _ = phases.advise(ASKED, tmp_path)
    decided = msgspec.structs.replace(decided, remarks=remarks)
    assert [line for line in summary(decided) if line.startswith("Note: ")] == [f"Note: {remarks[1]}."]
    assert f"Note: {remarks[0]}." in list(details(decided))
