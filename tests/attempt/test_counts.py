"""Counters as metrics: what is whole, what is none."""

from __future__ import annotations

import pytest

from hugewise.attempt.outcome import counter_metrics, outcome
from hugewise.machine import probe
from hugewise.machine.probe import Count
from hugewise.model.metric import Metric
from hugewise.model.trial import Block
from hugewise.report.reasons import in_words
from tests.build.trials import attempt, block, fed


def whole(value: int) -> Count:
    return Count(value, None, 10, 10)


def test_a_counter_that_shared_its_place_is_marked_and_has_no_value() -> None:
    metrics, absent = counter_metrics({"cycles": Count(1_234_567, None, 100, 43), "instructions": whole(9)})
    assert metrics["cycles"] is None
    assert absent["cycles"] == (
        "it ran 43% of the time, as it shared a counter: 1,234,567 is an estimate, and not judged"
    )
    assert (metrics["instructions"], absent.get("instructions")) == (9, None)
    assert counter_metrics({"cycles": Count(5, None, 100, 99)})[0]["cycles"] is None, "nearly all is not all"


def test_no_rate_is_made_of_a_counter_that_shared_its_place() -> None:
    shared = probe.Counters("command", {"cycles": Count(10, None, 4, 2), "instructions": whole(20)})
    exited = probe.Exit(t_ns=9, wall_ns=5, code=0, signal=None, timed_out=False, early_exits=0, killed=0)
    found = outcome([shared, exited], micro=False, timeout_s=1).with_rates()
    assert found.metrics["ipc"] is None
    assert "ran 50% of the time" in found.absent["ipc"]


def test_sums_are_of_the_roles_that_a_family_counts() -> None:
    counted = {"load_walk_cycles:u": whole(100), "store_walk_cycles:u": whole(20), "fetch_walk_cycles:u": whole(3)}
    assert counter_metrics(counted)[0]["walk_cycles_user"] == 123
    assert "walk_cycles_kernel" not in counter_metrics(counted)[0]
    arm = {"load_walk_cycles:u": whole(100), "fetch_walk_cycles:u": whole(3)}
    assert counter_metrics(arm)[0]["walk_cycles_user"] == 103
    broken = counted | {"store_walk_cycles:u": Count(None, "ENOENT", 0, 0)}
    metrics, absent = counter_metrics(broken)
    assert (metrics["walk_cycles_user"], absent["walk_cycles_user"]) == (None, "ENOENT"), "a part is no sum"


def test_steps_of_several_events_are_one_metric() -> None:
    counted = {name: whole(value) for value, name in enumerate(("walk_steps", "walk_steps/1", "walk_steps/2"), 1)}
    assert counter_metrics(counted)[0]["dtlb_walk_steps"] == 6


@pytest.mark.parametrize(("misses", "walks", "hits"), [(1000, 400, 600), (1000, 1000, 0), (10, 12, None)])
def test_hits_of_the_second_level_are_what_the_first_missed_and_no_walk_followed(
    misses: int, walks: int, hits: int | None
) -> None:
    metrics, absent = counter_metrics({"l1_misses:u": whole(misses), "load_walks:u": whole(walks)})
    assert metrics["stlb_hits_user"] == hits
    assert ("stlb_hits_user" in absent) is (hits is None)
    assert metrics["walks_user"] == walks


def test_a_turn_in_another_block_is_the_reason() -> None:
    metrics, absent = counter_metrics({}, {"load_walk_cycles:u": "counted in 1 of 3 blocks", "cycles": "elsewhere"})
    assert (metrics["walk_cycles_user"], absent["walk_cycles_user"]) == (None, "counted in 1 of 3 blocks")
    assert absent["cycles"] == "elsewhere"
    assert absent["dtlb_walk_steps"] == "walk_steps was not counted"


def test_nothing_is_judged_by_a_counter_that_shared_its_place() -> None:
    metrics, absent = counter_metrics({"cycles": Count(1_000, None, 100, 50)})
    cycles = Metric("cycles", "cycles", "lower", "cycles")

    def blocks(ran: dict[str, float | None], why: dict[str, str]) -> list[Block]:
        return [
            block(
                number,
                attempt("base", 1.0, block=number, metrics={"cycles": 2_000.0}, absent={}),
                attempt("thp", 1.0, block=number, metrics=ran, absent=why),
            )
            for number in range(12)
        ]

    judged = fed(blocks({"cycles": 1_000.0}, {}), cycles).comparison(0.01, 0.05)
    assert judged.verdict == "better"
    found = fed(blocks(metrics, absent), cycles).comparison(0.01, 0.05)
    assert (found.verdict, found.ratio, found.n) == ("none", None, 0)
    assert "it ran 50% of the time" in in_words(found.reason)
