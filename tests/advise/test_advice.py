from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hugewise.advise.advice import Advice, Confirmed, Screen, answer, confirmed, details
from hugewise.advise.candidates import LeftOutCandidate, SettingCandidate
from hugewise.advise.question import Question, command
from hugewise.model.metric import Metric
from tests.advise.test_pilot import SEEN
from tests.build import known
from tests.build.results import cell_result, comparison, summary

TRIED = tuple(
    SettingCandidate(name=name, use={"name": name, "from": "thp"}, reach=reach, reason="good for something")  # type: ignore[arg-type]
    for name, reach in (("advised", "process"), ("pool-2m", "pool"), ("always", "host"))
)
LAST = Confirmed(
    folder="r/advise-confirmation/1", candidate="advised", verdict="better", reason="", metric="wall_s", better="lower",
    n=14, ratio=0.8, low=0.78, high=0.82, confidence=0.99, memory_before=100 << 20, memory_after=104 << 20,
    huge_before=0.0, huge_after=0.97,
)  # fmt: skip
SCREENED = Screen(
    folder="r/advise-screening/1", chosen="advised", unsure=False, reason="no other is better", better="lower",
    estimates={"advised": 0.8, "pool-2m": 0.81, "always": 0.95}, dropped={"always": "advised is better, 12 pairs"},
)  # fmt: skip


def found(**changes: Any) -> Advice:
    made = Advice(
        question=Question(workload=command(("x",))), arrived="finished", pilot=SEEN, tried=TRIED, screen=SCREENED,
        chosen="advised", confirmed=LAST,
        left_out=(LeftOutCandidate(name="off", reason="the program has base pages already"),),
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


def last(**changes: Any) -> Advice:
    return found(confirmed=msgspec.structs.replace(LAST, **changes))


def test_the_answer_says_what_to_set_the_gain_and_whom_it_reaches() -> None:
    assert answer(found()) == (
        "Set `advised`: wall_s −20.0% (−22.0% to −18.0%), 14 pairs at 99%. It reaches this program alone."
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"memory_after": 150 << 20}, "but the program has 50% more memory: that is yours to weigh"),
        ({"verdict": "equivalent", "ratio": 1.0, "low": 0.99, "high": 1.01}, "makes no difference above 2%"),
        ({"verdict": "worse", "ratio": 1.2, "low": 1.1, "high": 1.3}, "Leave it as it is: the best that was found"),
        ({"verdict": "undecided"}, "Undecided: `advised`"),
        ({"verdict": "none", "reason": "pages of advised not delivered"}, "No verdict on `advised`: pages of advised"),
        ({"candidate": "always"}, "It reaches every program of this machine."),
        ({"candidate": "pool-2m"}, "from a pool that stays reserved"),
    ],
)
def test_each_verdict_has_its_sentence(changes: dict[str, Any], words: str) -> None:
    assert words in answer(last(**changes))


def test_without_a_confirmation_it_says_how_far_it_came() -> None:
    nothing = found(tried=(), screen=None, chosen="", confirmed=None)
    assert answer(nothing).startswith("Leave it as it is: no setting can reach this program")
    assert answer(found(confirmed=None, arrived="screening")) == "No answer yet: it ended in the screening."


def test_a_setting_that_needs_root_is_not_told_not_to_be_there() -> None:
    left = (LeftOutCandidate(name="always", reason="turning a setting of the whole machine needs root"),)
    said = answer(found(tried=(), screen=None, chosen="", confirmed=None, left_out=left))
    assert said == "Leave it as it is, or ask as root: what could still reach this program needs root to be tried."


def test_the_price_of_a_pool_counts_the_pool() -> None:
    """Resident memory has no page of it: the program seemed to take a hundredth of what it had."""
    arms = [
        summary("as-is", [], "wall_s", peak_bytes=100 << 20),
        summary("pool-2m", [], "wall_s", peak_bytes=5 << 20, pool_bytes=110 << 20),
    ]
    one = comparison("pool-2m", "wall_s", "better", baseline="as-is", ratio=0.8, low=0.7, high=0.9)
    cell = cell_result("command", "command", Metric("wall_s", "s", "lower", "time"), {}, arms, [one])
    made = confirmed("r/1", cell, one)
    assert (made.memory_before, made.memory_after, made.reserved) == (100 << 20, (5 + 110) << 20, 110 << 20)
    assert known(made.growth) == pytest.approx(0.15)
    said = list(details(found(confirmed=msgspec.structs.replace(made, huge_after=0.9))))
    assert said[-1] == "Price: at most 115 MiB of memory, 110 MiB of it a pool that stays reserved, +15.0%."


def test_what_stands_behind_it_is_told() -> None:
    said = list(details(found()))
    assert said[0].startswith("As it is: 1.0 s a run (6 runs, pairs of the same differ by 2% (sd))")
    assert any(one.startswith("Tried: always (host)") and "dropped by the screening" in one for one in said)
    assert any("pool-2m" in one and "at the screening's rate of 10%" in one for one in said)
    assert any("advised" in one and "confirmed by blocks of its own: better" in one for one in said)
    assert "Not tried: off: the program has base pages already." in said
    assert "Delivered: 97% of its memory in huge pages (0% before)." in said
    assert said[-1] == "Price: at most 104 MiB of memory, +4.0%."


def test_an_advice_of_a_program_whose_pages_nobody_saw() -> None:
    seen = msgspec.structs.replace(SEEN, coverage={}, memory=0)
    assert "at most unknown of memory, its pages were not seen." in next(details(found(pilot=seen)))


def test_an_advice_is_stored_and_read_again() -> None:
    assert msgspec.json.decode(msgspec.json.encode(found()), type=Advice) == found()
