"""Advices of the cells of a study, on runs that are written here: shares of the time, answers, and going on."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hugewise.advise import advise as phases
from hugewise.advise import of_study
from hugewise.advise import question as questions
from hugewise.advise.of_study import StudyAdvice
from hugewise.errors import HugewiseError, StudyError, UserError
from hugewise.session import progress
from hugewise.study import load as studies
from tests.advise.test_phases import TRIED, Machine, machine
from tests.advise.test_pilot import SEEN
from tests.build.hosts import Unheld
from tests.requirements import need_program

__all__ = ["machine"]

ONE = {"name": "command", "label": "one", "parameters": {"argv": ["true", "-x"]}}
TWO = {
    "format": 1,
    "name": "two",
    "policies": ["base", "thp"],
    "budget": {"blocks": 4},
    "workload": [
        ONE,
        {"name": "command", "label": "other", "metric": "cpu_s", "parameters": {"argv": [["true"], ["false"]]}},
    ],
}


def study(**changes: Any) -> Any:
    return studies.read({**TWO, **changes}, "two.toml")


def begun(seconds: float | None = 120.0, **changes: Any) -> StudyAdvice:
    return of_study.cell_questions(study(**changes), seconds=seconds, margin=0.02, confidence=0.9, most=2)


def kept(folder: Path) -> StudyAdvice:
    return msgspec.json.decode((folder / "study.json").read_bytes(), type=StudyAdvice)


def test_each_cell_is_asked_about_with_its_own_values() -> None:
    found = begun()
    assert [one.cell for one in found.cells] == ["one", "other-argv=true", "other-argv=false"]
    tables = [one.question.workload for one in found.cells if one.question is not None]
    assert [table["parameters"]["argv"] for table in tables] == [["true", "-x"], ["true"], ["false"]]
    assert [table["metric"] for table in tables] == ["wall_s", "cpu_s", "cpu_s"]
    assert begun(None).time == 1800.0, "10 minutes for each"


def test_the_tables_about_attempts_are_those_of_the_study(machine: Machine, tmp_path: Path) -> None:
    between, validity = {"settle": "70ms"}, {"load_per_cpu": 9.0}
    asked = begun(between=between, validity=validity, design={"slots": ["0", "1"]}, workload=[ONE])
    found, folder = of_study.advise(asked, tmp_path)
    assert len(machine.begun) == 3, "pilot, screening and confirmation"
    for made in machine.begun:
        assert made.between.settle == 0.07
        assert (made.validity.load_per_cpu, made.validity.steal) == (9.0, 0.05)
        assert (made.design.kind, made.design.slots) == ("sequential", ("0", "1"))
    assert kept(folder) == found, "whoever goes on with it has the same"


@pytest.mark.parametrize(
    ("kind", "taken"),
    [("auto", "auto"), ("interleaved", "auto"), ("sequential", "sequential")],
)
def test_a_design_is_taken_over_where_it_can_hold(kind: str, taken: str) -> None:
    slots = {"slots": [0, 1]} if kind == "sequential" else {}
    (cell,) = begun(design={"kind": kind, "slice": "90ms", **slots}, workload=[ONE]).cells
    assert cell.question is not None
    made = questions.pilot_study(cell.question).design
    assert (made.kind, made.slice, made.slots) == (taken, 0.09, tuple(slots.get("slots", ())))


def test_a_service_of_a_study_that_says_nothing_takes_turns_where_it_can() -> None:
    served = {"name": "service", "parameters": {"server": ["sh", "{port}"], "load": ["true"]}}
    for design, kind in ({}, "auto"), ({"kind": "sequential", "slots": ["0"]}, "sequential"):
        (cell,) = begun(design=design, workload=[served]).cells
        assert cell.question is not None
        assert questions.pilot_study(cell.question).design.kind == kind


def test_the_time_is_shared_and_the_answers_are_said_once(machine: Machine, tmp_path: Path) -> None:
    said: list[str] = []

    def listener(event: progress.Event) -> None:
        if isinstance(event, progress.Message):
            said.append(event.text)

    asked = begun()
    asked.command = ("hugewise", "advise", "s.toml")
    found, folder = of_study.advise(asked, tmp_path, listener=listener)
    assert found.arrived == "finished"
    assert {one.advice.command for one in found.cells if one.advice is not None} == set(machine.commands)
    assert set(machine.commands) == {asked.command}
    assert kept(folder) == found
    shares = [one.question.seconds for one in found.cells if one.question is not None]
    assert shares == pytest.approx([40.0, 60.0, 120.0], abs=18.0), "what one does not need goes to the others"
    lines = list(of_study.study_summary(found))
    assert lines[0] == "Set `advised` (3 cells)"
    assert [line.split(":")[0] for line in lines[1:4]] == ["  one", "  other-argv=true", "  other-argv=false"]
    assert lines[4:] == [
        "3 answers: the chance that any of them is wrong is at most 30%, as each verdict alone is wrong with at most"
        " 10% (--confidence 96.67%: 10% over all)."
    ]
    assert [text for text in said if text.startswith("cell ")][1] == "cell 2 of 3: other-argv=true"
    assert [Path(one.folder).parent for one in found.cells] == [folder] * 3
    assert {path.name for path in tmp_path.iterdir()} == {
        "advice", "advise-pilot", "advise-screening", "advise-confirmation",
    }  # fmt: skip


@pytest.mark.parametrize("after", [0, 1])
def test_an_interrupted_one_goes_on_with_the_cell_that_it_was_in(
    machine: Machine, tmp_path: Path, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the confirmation of the first cell, or of the second."""
    run, confirmed = machine.run, []

    def stopping(asked: Any, *given: Any, **more: Any) -> Any:
        if asked.name == "advise-confirmation":
            confirmed.append(asked)
            if len(confirmed) == after + 1:
                machine.stops[asked.name] = 2
        return run(asked, *given, **more)

    monkeypatch.setattr("hugewise.session.session.run", stopping)
    found, folder = of_study.advise(begun(), tmp_path)
    assert found.arrived == "interrupted"
    assert [one.over for one in found.cells] == [number < after for number in range(3)]
    assert list(of_study.study_summary(found))[-1].endswith("not begun")
    went_on, _ = of_study.resume(folder)
    assert went_on.arrived == "finished"
    assert len(machine.resumed) == 1
    assert kept(folder) == went_on
    assert of_study.resume(folder)[0] == went_on, "there is nothing left to be done"


def test_an_advice_of_a_study_holds_the_host_through_all_its_cells(machine: Machine, tmp_path: Path) -> None:
    held = Unheld(None)
    assert of_study.advise(begun(), tmp_path, lock=held)[0].arrived == "finished"  # type: ignore[arg-type]
    assert (held.taken, held.depth) == (1, 0)


def test_an_interrupt_between_two_cells_leaves_what_is_known(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, pilots = machine.run, []

    def interrupted(asked: Any, *given: Any, **more: Any) -> Any:
        pilots.extend([asked] if asked.name == "advise-pilot" else [])
        if len(pilots) == 2:
            pilots.append(asked)
            raise KeyboardInterrupt
        return run(asked, *given, **more)

    monkeypatch.setattr("hugewise.session.session.run", interrupted)
    found, folder = of_study.advise(begun(), tmp_path)
    assert [one.over for one in found.cells] == [True, False, False]
    assert of_study.resume(folder)[0].arrived == "finished"


def test_an_interrupt_before_there_is_anything_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hugewise.session.session.run", run)
    with pytest.raises(KeyboardInterrupt):
        of_study.advise(begun(), tmp_path)
    assert not (tmp_path / "advice").exists()


def test_whoever_is_killed_goes_on_with_the_run_that_was_begun(machine: Machine, tmp_path: Path) -> None:
    machine.stops["advise-screening"] = HugewiseError("the power went")
    with pytest.raises(HugewiseError, match="the power went"):
        of_study.advise(begun(), tmp_path)
    (folder,) = (tmp_path / "advice").iterdir()
    assert of_study.is_study(folder)
    found, _ = of_study.resume(folder)
    assert found.arrived == "finished"
    assert len(machine.resumed) == 1


def test_a_cell_that_no_time_is_left_for_is_told_so(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was said to have been given a negative time."""
    made = begun()
    run = machine.run

    def slow(asked: Any, *given: Any, **more: Any) -> Any:
        made.seconds = made.time - 1.0 if asked.name == "advise-confirmation" else made.seconds
        return run(asked, *given, **more)

    monkeypatch.setattr("hugewise.session.session.run", slow)
    found, folder = of_study.advise(made, tmp_path)
    assert [one.over for one in found.cells] == [True] * 3
    late = [line for line in of_study.study_summary(found) if "no advice" in line]
    assert late == [
        f"other-argv={name}: no advice: no time was left for it (give more for all of them: --time)"
        for name in ("true", "false")
    ]
    assert kept(folder) == found


def test_a_cell_that_cannot_be_measured_is_told_and_the_others_go_on(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = machine.run

    def refusing(asked: Any, *given: Any, **more: Any) -> Any:
        if asked.workload[0].parameters["argv"] == ("true",):
            raise UserError("the command fails: exit 3", hint="let it end")
        return run(asked, *given, **more)

    monkeypatch.setattr("hugewise.session.session.run", refusing)
    found, folder = of_study.advise(begun(), tmp_path)
    assert found.arrived == "finished"
    assert "other-argv=true: no advice: the command fails: exit 3 (let it end)" in list(of_study.study_summary(found))
    assert kept(folder).cells[1].why


def test_cells_that_cannot_be_advised_on_are_named_with_the_reason() -> None:
    own = {"name": "chase", "parameters": {"bytes": ["1m", "2m"]}}
    found = begun(workload=[*TWO["workload"], own])  # type: ignore[misc]
    assert [bool(one.why) for one in found.cells] == [False] * 3 + [True] * 2
    assert "a program of hugewise's own" in found.cells[-1].why
    with pytest.raises(UserError, match="no cell of two can be advised on: chase-bytes=1m, chase-bytes=2m: chase is"):
        begun(workload=[own])
    neutral = {**TWO["workload"][0], "metric": "page_faults"}  # type: ignore[index]
    (cell,) = begun(workload=[TWO["workload"][0], {**neutral, "label": "n"}]).cells[1:]  # type: ignore[index]
    assert "neither better high nor low" in cell.why or cell.why == ""


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"seconds": 20.0}, "less than 10 s"), ({"margin": 0.9}, "margin"), ({"confidence": 1.0}, "confidence")],
)
def test_what_is_wrong_is_said_before_anything_is_run(changes: dict[str, Any], words: str) -> None:
    how = {"seconds": 120.0, "margin": 0.02, "confidence": 0.9, "most": 2, **changes}
    with pytest.raises((UserError, StudyError), match=words):
        of_study.cell_questions(study(), **how)


def test_it_is_refused_elsewhere_and_where_there_is_none(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.stops["advise-pilot"] = 1
    _, folder = of_study.advise(begun(), tmp_path)
    told = json.loads((folder / "study.json").read_text())
    (folder / "study.json").write_text(json.dumps({**told, "format": 9}))
    with pytest.raises(UserError, match="of the format 9"):
        of_study.resume(folder)
    (folder / "study.json").write_text("{")
    with pytest.raises(UserError, match="no advice"):
        of_study.resume(folder)
    (folder / "study.json").write_text(json.dumps(told))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="its commands are run in"):
        of_study.resume(folder)


def test_a_record_of_an_earlier_format_names_what_is_still_read(machine: Machine, tmp_path: Path) -> None:
    found, folder = of_study.advise(begun(), tmp_path)
    told = json.loads((folder / "study.json").read_text())
    for one in told["cells"]:
        one["advice"] |= {"format": 2, "pilot": "what it was then"}
    (folder / "study.json").write_text(json.dumps({**told, "format": 1}))
    with pytest.raises(UserError, match="of the format 1") as caught:
        of_study.resume(folder)
    for cell in found.cells:
        assert cell.advice is not None
        assert f"hugewise report {cell.advice.confirmation_folder} --output FILES" in (caught.value.hint or "")


def test_servers_are_asked_about_with_what_they_take() -> None:
    redis = {"name": "redis", "parameters": {"keys": 1000}, "storage": "/var/tmp", "cpus": [0]}
    (one,) = begun(workload=[redis]).cells
    assert one.question is not None
    table = one.question.workload
    assert (table["name"], table["storage"], table["cpus"]) == ("redis", "/var/tmp", [0])
    (used,) = questions.screening(one.question, TRIED, 1 << 30, 60.0, 24).workload
    assert "pool_bytes" not in used.parameters, "a server knows what it reserves"
    assert used.parameters["keys"] == 1000


@pytest.mark.parametrize(
    "before",
    [
        ["sh", "-c"],
        ["env", "A=1"],
        ["taskset", "-c", "0"],
        ["setpriv", "--no-new-privs", "nice", "-n", "1"],
        ["sh", "-c", "ulimit -n 99 && A=1 exec"],
    ],
)
def test_a_server_behind_a_wrapper_is_judged_itself(before: list[str]) -> None:
    """A shell or a tool has glibc's malloc; the server is CPython, which cuts arenas of its own."""
    need_program("setpriv", "util-linux")
    server = [sys.executable, "-m", "http.server", "{port}"]
    if "-c" in before and before[0] == "sh":
        text = " ".join([*before[2:], shlex.join(server)])
        words = ["sh", "-c", text if "exec" in text else f"exec {text}"]
    else:
        words = [*before, *server]
    served = {"name": "service", "parameters": {"server": words, "load": ["true"]}}
    (cell,) = begun(workload=[served]).cells
    assert cell.question is not None
    here = phases._found(SEEN, cell.question)
    assert (here.allocator, here.tuned, here.unlaid) == ("CPython", True, None)
