"""Series and facts of attempts: which are looked at, what is shared, and what should not differ."""

from pathlib import Path

import msgspec

from hugewise.analysis.analysis import (
    analyze,
    differing_facts,
    series_by_arm,
    shared_facts,
    steady_arms,
)
from hugewise.model.results import FactDifference
from hugewise.model.trial import Attempt
from tests.analysis.test_forecast import the_study, write_run
from tests.build.logs import rewritten
from tests.build.trials import attempt

ARMS = ["base", "thp"]
SAME = {"data_sha256": "ab" * 32, "storage": "/dev/shm (tmpfs)", "scale": 12}


def told(arm: str, number: int, **facts: str | float) -> Attempt:
    return attempt(arm, 1.0, block=number, facts=SAME | {"transactions": 1000 + 7 * number, **facts})


def test_series_of_accepted_attempts_by_arm() -> None:
    attempts = [
        attempt("thp", 1.0, series=(4.0, 5.0)),
        attempt("base", 1.0, series=(1.0, 2.0)),
        attempt("base", 1.0, block=1, series=(3.0,)),
        attempt("base", 1.0, block=2),
        attempt("base", 1.0, block=3, series=(9.0,), state="abandoned"),
        attempt("base", 1.0, block=4, series=(9.0,), cell="other"),
    ]
    assert series_by_arm("chase", ["base", "thp", "asis"], attempts) == {
        "base": [(1.0, 2.0), (3.0,)],
        "thp": [(4.0, 5.0)],
    }


def test_each_arm_with_series_is_told_to_be_steady_or_not() -> None:
    attempts = [
        attempt("base", 1.0, series=(100.0,) * 6),
        attempt("thp", 1.0, series=(100.0, 100.0, 90.0, 90.0, 80.0, 80.0)),
        attempt("asis", 1.0),
    ]
    found = steady_arms("chase", [*ARMS, "asis"], attempts)
    assert [(one.arm, one.settled) for one in found] == [("base", True), ("thp", False)]


def test_shared_facts_are_those_of_every_accepted_attempt() -> None:
    attempts = [told("base", 1), told("thp", 1), told("base", 2), told("thp", 2)]
    # The same count in every attempt of a block, another in the next: what was done, not what was given.
    assert shared_facts("chase", attempts) == SAME
    assert differing_facts("chase", ARMS, attempts) == ()
    rejected = attempt("thp", None, state="rejected", facts={"storage": "/var/tmp (ext4)"})
    assert shared_facts("chase", [*attempts, rejected, attempt("base", 1.0)]) == SAME
    assert shared_facts("chase", []) == {}
    assert shared_facts("other", attempts) == {}


def test_another_data_hash_in_one_arm_is_named() -> None:
    attempts = [told("base", 1), told("thp", 1, data_sha256="cd" * 32)]
    assert "data_sha256" not in shared_facts("chase", attempts)
    assert differing_facts("chase", ARMS, attempts) == (
        FactDifference(name="data_sha256", values={"base": ("ab" * 32,), "thp": ("cd" * 32,)}),
    )


def test_a_text_that_differs_within_an_arm_is_named_too() -> None:
    attempts = [told("base", 1), told("base", 2, storage="/var/tmp (ext4)"), told("thp", 1)]
    (one,) = differing_facts("chase", ARMS, attempts)
    assert one.values == {"base": ("/dev/shm (tmpfs)", "/var/tmp (ext4)"), "thp": ("/dev/shm (tmpfs)",)}


def test_a_number_is_named_where_the_arm_fixes_it() -> None:
    larger = [told(arm, block, database_bytes=5 if arm == "base" else 9) for block in (1, 2) for arm in ARMS]
    assert [one.name for one in differing_facts("chase", ARMS, larger)] == ["database_bytes"]
    grows = [told(arm, block, database_bytes=block + (arm == "thp")) for block in (1, 2) for arm in ARMS]
    assert differing_facts("chase", ARMS, grows) == ()
    # One attempt of each arm cannot tell what the arm fixes from what was counted.
    assert differing_facts("chase", ARMS, larger[:2]) == ()


def test_a_fact_that_one_arm_lacks_is_named() -> None:
    attempts = [told("base", 1), told("thp", 1, mem_allocator="libc (LD_PRELOAD)")]
    (one,) = differing_facts("chase", ARMS, attempts)
    assert one.values == {"base": (None,), "thp": ("libc (LD_PRELOAD)",)}
    assert "mem_allocator" not in shared_facts("chase", attempts)
    assert "mem_allocator" not in shared_facts("chase", attempts[::-1])


def test_a_run_tells_both_and_its_verdicts_are_as_without(tmp_path: Path) -> None:
    run = write_run(tmp_path, the_study(), [-0.2, -0.21, -0.19, -0.2, -0.22, -0.18, -0.2, -0.2])
    before = analyze(run)
    for place in sorted((run / "attempts").glob("*/attempt.json")):
        stored = msgspec.json.decode(place.read_bytes(), type=Attempt)
        thp = stored.arm == "thp"
        series = (50.0, 50.0, 70.0, 80.0, 100.0, 100.0) if thp else (100.0,) * 6
        facts = SAME | ({"data_sha256": "cd" * 32} if thp else {})
        place.write_bytes(msgspec.json.encode(msgspec.structs.replace(stored, series=series, facts=facts)))
    rewritten(run)
    after = analyze(run)
    (cell,) = after.cells
    assert [(one.arm, one.change, one.settled) for one in cell.steadiness] == [
        ("base", 0, True),
        ("thp", 1, False),
    ]
    assert [one.name for one in cell.differing] == ["data_sha256"]
    assert cell.facts == {"storage": "/dev/shm (tmpfs)", "scale": 12}
    assert cell.comparisons == before.cells[0].comparisons
    assert cell.comparisons[0].n == 8
    assert (before.cells[0].steadiness, before.cells[0].differing, before.cells[0].facts) == ((), (), {})
