"""Facts that all attempts of a cell must have in common: the first accepted one says them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hugewise.attempt import runner
from hugewise.attempt.context import AttemptState, Group, RunContext
from hugewise.attempt.runner import held, telling
from hugewise.model.trial import Attempt
from tests.build.studies import FakeWorkload, an_arm, cell_of
from tests.build.trials import attempt, begun
from tests.opened_files import opened_files

NAMES = ("files", "digest")


CELL = cell_of(
    FakeWorkload("build", ()),
    *(an_arm("base"), an_arm("thp"), an_arm("other", parameters={"config": "-O3"})),
    values={"config": ""},
)


def built(name: str, number: int, digest: str = "aa", files: int = 3, **changes: Any) -> Attempt:
    facts = {"digest": digest, "files": files, "moment": number}
    return attempt(name, 1.0, block=number, cell=changes.pop("cell", "build"), facts=facts, **changes)


def test_the_first_attempt_says_what_the_others_must_have() -> None:
    first = built("base", 1)
    assert held(first, NAMES, CELL, ()) is first
    for same in (built("thp", 1), built("base", 2)):
        assert held(same, NAMES, CELL, [first]) is same


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"digest": "bb"}, "digest is bb, and in block 1 (base) it was aa: it must be the same in all attempts"),
        ({"files": 4}, "files is 4, and in block 1 (base) it was 3: it must be the same in all attempts"),
    ],
)
def test_one_that_made_something_else_has_failed_with_both_named(changed: dict[str, Any], why: str) -> None:
    made = built("thp", 2, **changed)
    found = held(made, NAMES, CELL, [built("base", 1), built("thp", 1, digest="bb", files=4)])
    assert (found.state, found.reason, found.metrics, found.wall_s) == ("failed", why, {}, None)
    assert found.facts == made.facts


def test_what_does_not_count_says_nothing() -> None:
    made = built("thp", 2, digest="bb")
    apart = [
        built("base", 1, state="failed"),
        built("base", 1, cell="another"),
        built("other", 1),  # this arm gives the workload another parameter
        attempt("base", 1.0, block=1, cell="build", facts={"files": 3}),  # it has no digest to say
    ]
    assert held(made, NAMES, CELL, apart) is made


def test_what_has_failed_otherwise_keeps_its_reason() -> None:
    made = built("thp", 2, digest="bb", state="failed", reason="exit status 2")
    assert held(made, NAMES, CELL, [built("base", 1)]) is made
    other = built("thp", 2, digest="bb")
    assert held(other, (), CELL, [built("base", 1)]) is other


def test_a_difference_between_arms_that_comes_again_leaves_nothing_to_be_held_against() -> None:
    """Else the coin of the first block would decide which arm fails throughout."""
    earlier = [built("base", 1)]
    for number in (1, 2):
        failed = held(built("thp", number, digest="bb"), NAMES, CELL, earlier)
        assert failed.state == "failed"
        earlier.append(failed)
    base = held(built("base", 3), NAMES, CELL, earlier)
    assert (base.state, base.reason) == ("failed", "digest is bb under thp and aa under base: either may be right")


def test_one_difference_alone_is_that_attempts_own() -> None:
    earlier = [built("base", 1), held(built("thp", 1, digest="bb"), NAMES, CELL, [built("base", 1)])]
    assert held(built("base", 2), NAMES, CELL, earlier).state == "accepted"


def test_an_arm_that_has_made_the_right_thing_disputes_nothing() -> None:
    earlier = [built("base", 1), built("thp", 1)]
    for number in (2, 3):
        earlier.append(held(built("thp", number, digest="bb"), NAMES, CELL, earlier))
    assert held(built("base", 4), NAMES, CELL, earlier).state == "accepted"


def test_what_was_stored_is_held_against_without_being_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = begun(tmp_path)
    before = built("base", 0)  # of the session before
    bench = RunContext(None, None, None, None, folder, 2, "b", {})  # type: ignore[arg-type]
    bench.earlier["build"].append(before)
    digests = iter(("aa", "bb", "bb"))
    monkeypatch.setattr(runner, "stored", lambda group, work: built("thp", work.number, next(digests)))
    read = opened_files(monkeypatch)
    for number in (1, 2, 3):
        work = AttemptState(CELL.arms[1], None, number, folder.draft(f"b{number}"))  # type: ignore[arg-type]
        work.driver = SimpleNamespace(reading=SimpleNamespace(same=NAMES))  # type: ignore[assignment]
        runner.store(Group(bench, CELL, [work]))
    assert not [path for path in read if path.name in {"attempt.json", "run.jsonl"} and "r" in read[path][0]]
    monkeypatch.undo()
    stored = folder.read().attempts
    assert [one.state for one in stored] == ["accepted", "failed", "failed"]
    assert bench.earlier["build"] == [before, *stored]
    other = AttemptState(CELL.arms[1], None, 4, folder.draft("b4"))  # type: ignore[arg-type]
    monkeypatch.setattr(runner, "stored", lambda group, work: built("thp", work.number, "bb"))
    runner.store(Group(bench, CELL, [other]))  # it said nothing of what it made
    assert bench.earlier["build"] == [before, *stored]


def test_a_few_of_many_attempts_say_all_that_the_next_one_is_held_against() -> None:
    random = np.random.default_rng(1)
    earlier: list[Attempt] = []
    few: list[Attempt] = []
    for number in range(400):
        arm, digest = ("base", "thp")[random.integers(2)], ("bb", "cc", *["aa"] * 9)[random.integers(11)]
        made = built(arm, number, digest)
        if random.random() < 0.1:
            state = ("failed", "rejected")[random.integers(2)]
            made = attempt(arm, None, block=number, cell="build", state=state)
        few = telling(few, NAMES)
        assert len(few) <= 16
        found = held(made, NAMES, CELL, earlier)
        assert held(made, NAMES, CELL, few) == found
        earlier.append(found)
        few.append(found)
    assert {one.state for one in earlier} == {"accepted", "failed", "rejected"}
