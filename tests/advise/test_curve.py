"""The curve of gain against memory: its arms, what its blocks say, in words, in a figure, and from phase to phase."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from hugewise.advise import advise as phases
from hugewise.advise import layouts as curves
from hugewise.advise.advice import Advice
from hugewise.advise.layouts import SHARES, CurveOfGain, arms, curve_blocks, curve_sentence, measured, pages_of
from hugewise.advise.question import Question, command, comparison_study
from hugewise.advise.text import answer, details
from hugewise.errors import UserError
from hugewise.model.metric import Metric
from hugewise.model.trial import Block
from tests.advise.test_candidates import GIANT, HERE, LAID
from tests.advise.test_phases import ASKED, Machine, kept, machine  # noqa: F401  (a fixture)
from tests.build import known
from tests.build.results import cell_result, comparison, summary
from tests.build.trials import attempt, block, delivery

WALL = Metric("wall_s", "s", "lower", "time")
RATE = Metric("rate", "1/s", "higher", "rate")
KNEE = (1.0, 0.95, 0.9, 0.8, 0.8, 0.8)
"""Times by share: all of the gain is had with a quarter."""


def of(levels: Sequence[float], *, noise: float = 0.01, n: int = 10, metric: str = "wall_s") -> list[Block]:
    made, random = [], np.random.default_rng(11)
    for number in range(1, n + 1):
        shaken = [level * math.exp(each) for level, each in zip(levels, random.normal(0, noise, 6), strict=True)]
        attempts = [
            msgspec.structs.replace(
                attempt(f"backed-{share}", value, block=number, cell="command"),
                wall_s=value,
                metrics={metric: value},
            )
            for share, value in zip(SHARES, shaken, strict=True)
        ]
        made.append(block(number, *attempts, cell="command"))
    return made


def curve(run: Sequence[Block], metric: Metric = WALL, **changes: Any) -> CurveOfGain:
    every = [summary(f"backed-{share}", [], metric.name) for share in SHARES]
    compared = [
        comparison(f"backed-{share}", metric.name, "better", baseline="backed-0", ratio=0.9, low=0.88, high=0.92)
        for share in SHARES[1:]
    ]
    cell = cell_result("command", "command", metric, {}, every, compared)
    given = {"pages": "hugetlb-2m", "heap": 1 << 30, "margin": 0.02, "confidence": 0.95, **changes}
    return measured("r/1", cell, run, **given)


def test_every_arm_loads_the_library_with_a_heap_of_the_same_size() -> None:
    asked = Question(workload=command(("true",)))
    for pages in ("hugetlb-2m", "thp"):
        study = comparison_study("advise-curve", asked, arms(pages, 1 << 30), 1 << 30, 8, baseline=curves.BASELINE)
        assert [use.name for use in study.policies] == [f"backed-{share}" for share in SHARES]
        assert {use.mechanism for use in study.policies} == {"process"}
        assert all(use.registered.startswith("layout-") for use in study.policies)
        assert [use.layout for use in study.policies[1:-1]] == [
            f"mosaic:0-{share}%={pages},heap=1g" for share in (5, 10, 25, 50)
        ]
        assert study.policies[-1].registered == f"layout-{pages}"
        assert (study.policies[0].layout, study.compared_with) == ("base", "backed-0")
        assert (study.workload[0].parameters["pool_bytes"], study.budget.blocks) == (1 << 30, 8)


def test_the_pages_are_those_of_a_pool_where_one_can_be_filled() -> None:
    here = msgspec.structs.replace(HERE, **LAID)
    assert pages_of(here) == "hugetlb-2m"
    assert pages_of(msgspec.structs.replace(here, root=False)) == "thp"
    assert pages_of(msgspec.structs.replace(here, forked=2)) == "thp"
    assert pages_of(msgspec.structs.replace(HERE, **GIANT)) == "hugetlb-2m"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"unlaid": "a layout does not reach x: it is static"}, "there is no curve of it: a layout does not reach x"),
        ({"root": False, "mode": "never"}, "filling a pool needs root; and transparent huge pages are set to never"),
        ({"forked": 1, "mode": "never"}, "a child is killed; and transparent huge pages"),
    ],
)
def test_where_there_can_be_no_curve_both_reasons_are_told(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        pages_of(msgspec.structs.replace(HERE, **(LAID | changes)))
    assert caught.value.hint


def test_as_many_blocks_as_fit_and_what_is_needed_for_the_fewest() -> None:
    assert (curve_blocks(1000.0, 2.0), curve_blocks(60.0, 2.0)) == (24, 10)
    with pytest.raises(UserError, match="enough for 5 blocks of 6 runs, and 6 are needed") as caught:
        curve_blocks(30.0, 2.0)
    assert "--time 1min02s" in (caught.value.hint or "")


def test_the_smallest_pool_that_keeps_the_gain() -> None:
    found = curve(of(KNEE))
    # 90% of log(1/0.8) is 0.2008, between 10% (0.1054) and 25% (0.2231).
    true = 0.1 + 0.15 * (0.9 * math.log(1 / 0.8) - math.log(1 / 0.9)) / (math.log(1 / 0.8) - math.log(1 / 0.9))
    assert known(found.knee.low) < true < known(found.knee.high)
    assert found.knee.share == pytest.approx(true, abs=0.02)
    assert found.has_gain
    smallest = known(found.smallest)
    assert smallest % (2 << 20) == 0
    assert known(found.knee.high) * found.heap <= smallest < known(found.knee.high) * found.heap + (2 << 20)
    said = curve_sentence(found)
    assert said.startswith(f"A pool of {smallest >> 20} MiB, ")
    assert "keeps at least 90% of the gain (wall_s −" in said
    assert "10 blocks at 95%" in said
    told = list(curves.lines(found, "./x -y"))
    assert told[0].startswith("Backed 5%, 52 MiB: wall_s −10.0% (−12.0% to −8.0%)")
    assert f"--pages mosaic:0-{smallest >> 20}m=hugetlb-2m,heap=1g -- ./x -y" in told[-2]
    assert f"{smallest >> 21} pages of 2m" in told[-1]


def test_a_higher_metric_has_the_same_curve() -> None:
    rates = [1 / value for value in KNEE]
    found = curve(of(rates, metric="rate"), RATE)
    assert found.knee.share == pytest.approx(known(curve(of(KNEE)).knee.share), abs=0.02)
    assert "(rate +2" in curve_sentence(found)


def test_without_a_gain_there_is_nothing_to_share_out() -> None:
    found = curve(of((1.0,) * 6))
    assert (found.has_gain, found.smallest, found.layout) == (False, None, None)
    said = curve_sentence(found)
    assert said.startswith("There is no gain above 2% to share out: all of its heap from a pool changes wall_s by")
    assert not any("Use it" in one for one in curves.lines(found, "x"))
    slower = curve(of((1.0, 1.0, 1.0, 1.05, 1.1, 1.2)))
    assert "no gain above 2% to share out" in curve_sentence(slower)
    slight = curve(of((1.0, 0.999, 0.998, 0.996, 0.994, 0.992), noise=0.0001))
    assert slight.knee.share is not None
    assert not slight.has_gain, "it is smaller than what counts as a difference"


def test_that_no_gain_is_shown_is_not_said_to_be_none() -> None:
    found = curve(of((1.0,) * 6, noise=0.15))
    assert not found.has_gain
    assert math.expm1(found.knee.whole_high) > 0.02, "the gain may be more than what counts"
    assert curve_sentence(found).startswith("Undecided: no gain is shown")


def test_where_no_smaller_pool_is_shown_to_do_all_is_recommended() -> None:
    found = curve(of((1.0, 0.99, 0.98, 0.95, 0.9, 0.8), noise=0.03), heap=16 << 20)
    assert found.smallest == found.heap
    assert curve_sentence(found).startswith("No smaller pool than all of its heap, 16 MiB, is shown to keep 90%")
    assert known(found.layout) == "hugetlb-2m,heap=16m"


def test_blocks_in_which_a_layout_was_not_had_are_lost() -> None:
    run = of(KNEE, n=10)
    short = delivery(False, reason="the pool was short: 8m are base pages, in 1 of 1 processes")
    bad = msgspec.structs.replace(run[0].attempts[3], delivery=short)
    one = msgspec.structs.replace(run[0], attempts=(*run[0].attempts[:3], bad, *run[0].attempts[4:]))
    found = curve([one, *run[1:]])
    assert (found.blocks, found.lost) == (9, 1)
    assert any("1 blocks were lost" in line for line in curves.lines(found, "x"))
    with pytest.raises(UserError, match="10 of 10 blocks were lost: backed-25: the pool was short") as caught:
        curve([msgspec.structs.replace(one, number=each.number) for each in run])
    assert "hugewise report r/1" in (caught.value.hint or "")


def test_the_figure_has_its_points_and_its_knee() -> None:
    drawn = phases.figure(curve(of(KNEE)))
    assert drawn.startswith("<svg")
    assert "of the heap on huge pages" in drawn
    assert drawn.count("NaN") == 0
    assert phases.figure(curve(of((1.0,) * 6))).startswith("<svg")


LEVELS: Mapping[str, float] = {f"backed-{share}": math.log(value) for share, value in zip(SHARES, KNEE, strict=True)}
CURVED = msgspec.structs.replace(ASKED, curve=True, pool=1 << 30)


@pytest.fixture
def curved(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Machine:  # noqa: F811
    machine.levels = LEVELS
    here = msgspec.structs.replace(HERE, **LAID)
    monkeypatch.setattr(phases, "_found", lambda *_: here)
    return machine


def test_from_the_pilot_to_the_curve(curved: Machine, tmp_path: Path) -> None:
    found, folder = phases.advise(CURVED, tmp_path)
    assert [study.name for study in curved.begun] == ["advise-pilot", "advise-curve"]
    assert (found.arrived, found.tried, found.chosen) == ("finished", (), "")
    assert found.curve is not None
    assert answer(found) == curve_sentence(found.curve)
    assert "keeps at least 90% of the gain" in answer(found)
    assert any(one.startswith("Backed 25%") for one in details(found))
    assert (folder / "curve.svg").read_text().count("<svg") == 1
    assert kept(folder) == found
    assert msgspec.json.decode(msgspec.json.encode(found), type=Advice) == found


def test_interrupted_it_goes_on_with_its_curve(curved: Machine, tmp_path: Path) -> None:
    curved.stops["advise-curve"] = 3
    found, folder = phases.advise(CURVED, tmp_path)
    assert (found.arrived, found.curve) == ("curve", None)
    assert answer(found) == "No answer yet: interrupted in the curve."
    after, _ = phases.resume(folder)
    assert after.curve is not None
    assert (after.arrived, after.curve_folder, after.curve.blocks) == ("finished", found.curve_folder, 24)


def test_a_curve_that_was_begun_keeps_its_pages(
    curved: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    curved.stops["advise-curve"] = 3
    _, folder = phases.advise(CURVED, tmp_path)
    monkeypatch.setattr(phases, "_found", lambda *_: msgspec.structs.replace(HERE, **LAID, root=False))
    after, _ = phases.resume(folder)
    assert after.curve is not None
    assert (after.arrived, after.curve.pages) == ("finished", "hugetlb-2m")


def test_what_has_no_layout_is_refused_before_anything_is_run(curved: Machine, tmp_path: Path) -> None:
    static = tmp_path / "static"
    static.write_bytes(b"no program")
    static.chmod(0o755)
    with pytest.raises(UserError, match="there is no curve of it: a layout does not reach") as caught:
        phases.advise(msgspec.structs.replace(CURVED, workload=command((str(static),))), tmp_path)
    assert caught.value.hint
    assert curved.begun == []


def test_a_heap_of_a_few_pages_has_no_shares(curved: Machine, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="its heap of 4m has too few huge pages to share out") as caught:
        phases.advise(msgspec.structs.replace(CURVED, pool=3 << 20), tmp_path)
    assert "40m or more" in (caught.value.hint or "")
    assert [study.name for study in curved.begun] == ["advise-pilot"]
