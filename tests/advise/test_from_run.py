"""What a run that exists says is to be set, and what it cannot answer."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from hugewise.advise.from_run import advice_of_run, details, sentences, unanswered
from hugewise.errors import RunError
from hugewise.store.folder import RunFolder
from hugewise.study.load import command_study
from tests.advise.test_phases import MOST, Machine, machine
from tests.cli.conftest import Call, call
from tests.golden import GOLDEN

__all__ = ["call", "machine"]

RUNS = GOLDEN / "runs"


def compared(machine: Machine, folder: Path, levels: dict[str, float], most: int = MOST, **more: str | float) -> Path:
    """The folder of a run of `as-is` against these arms, with these log-times."""
    uses = ["as-is", *levels]
    asked = command_study(uses, ["/bin/true"], margin=0.01, confidence=0.99, time="10m", **more)  # type: ignore[arg-type]
    machine.levels = levels
    machine.stops = {"command": most}
    made: RunFolder = machine.run(asked, folder, listener=lambda _: None, lock=None)
    return made.path


def test_a_run_with_a_better_arm_says_what_to_set(machine: Machine, tmp_path: Path) -> None:
    found, _ = advice_of_run(compared(machine, tmp_path, {"thp": -0.2, "base": 0.1}))
    (one,) = sentences(found)
    assert one.startswith("Set `thp`: wall_s is 18")
    assert found.unanswered == ()
    assert "2 comparisons share the error rate of 1%, so that all their verdicts and intervals hold" in found.selection
    told = list(details(found))
    assert "1 answer rests on 2 comparisons: the chance that any of their verdicts is wrong is at most 1%." in told


def test_what_it_cannot_answer_is_said() -> None:
    found, _ = advice_of_run(RUNS / "deployed")
    told = " ".join(details(found))
    assert "`as-is` was no arm, and changes are against `base`" in told
    assert "were each compared with `base`, not with one another" in told


def test_an_undecided_one_says_how_many_more_pairs_it_needs(machine: Machine, tmp_path: Path) -> None:
    folder = compared(machine, tmp_path, {"thp": 0.004}, most=14)
    found, _ = advice_of_run(folder)
    (one,) = sentences(found)
    assert one.startswith("Undecided: whether `thp` is better than `as-is` cannot be told yet; `thp`: wall_s")
    (told,) = [each for each in found.unanswered if each.startswith("whether")]
    assert " pairs show a change of 1% nine times in ten, and it has 14" in told
    assert found.decide.startswith(f"hugewise resume {folder} continues the run")
    assert f"To decide what is open: {found.decide}." in details(found)


def test_a_run_that_has_ended_undecided_names_the_budget_of_a_new_one(machine: Machine, tmp_path: Path) -> None:
    asked = compared(machine, tmp_path, {"thp": 0.004}, blocks=12)
    found, _ = advice_of_run(asked)
    assert (found.state, [one.state for one in found.answers]) == ("finished", ["undecided"])
    assert re.search(
        r"a new run of the study \(hugewise run STUDY --blocks \d+ --time \d+s\), judged with this one", found.decide
    )


def test_how_to_decide_is_said_once_for_all_that_is_open() -> None:
    found, _ = advice_of_run(RUNS / "demo")
    assert sum(len(one.open) for one in found.answers) == 16
    assert sum(each.startswith("To decide") for each in unanswered(found)) == 1
    assert len(set(unanswered(found))) == len(found.unanswered) + 1


def test_a_run_of_several_cells_has_a_sentence_for_each() -> None:
    found, results = advice_of_run(RUNS / "ended")
    assert len(list(sentences(found))) == len(results.cells) == 2
    assert [line.partition(":")[0] for line in sentences(found)] == ["fault", "true"]


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a run's folder"):
        advice_of_run(tmp_path)


def test_from_the_command_line_with_its_files(call: Call, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(RUNS / "deployed", run)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    status, out, _ = call("advise", "--from", run, "--output", tmp_path / "out")
    assert status == 0
    assert out.startswith("Set `thp`: ns_per_page")
    assert (tmp_path / "out" / "README.md").exists()
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before, "nothing is written there"
    status, out, err = call("advise", "--from", run, "--json", "--output", tmp_path / "more")
    told = json.loads(out)
    assert (told["answers"][0]["setting"], told["state"]) == ("thp", "finished")
    assert "more" in err


def test_a_run_without_a_setting_has_no_files(call: Call, tmp_path: Path) -> None:
    status, out, _ = call("advise", "--from", RUNS / "interrupted", "--output", tmp_path / "out")
    assert status == 0
    assert "no files: no policy was better than its baseline" in " ".join(out.split())
