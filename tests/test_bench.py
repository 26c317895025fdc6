"""The benchmarks: their arithmetic, what they count as met, and short real runs."""

import math
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from bench import demo, fleet, interleaved, predict, report, statistics
from bench.report import Cost
from hugewise.analysis.analysis import analyze
from hugewise.fleet import pooled as summaries
from hugewise.fleet.pooled import pooled_results
from hugewise.report.data_files import report_json
from hugewise.study.study import Study
from tests.build.results import plain
from tests.requirements import need_program


def test_decided_comparisons_and_answered_cells_are_counted() -> None:
    results = plain()
    every = [one for cell in results.cells for one in cell.judged]
    found = demo.found(report_json(results), 12.5)
    assert found.comparisons == len(every)
    assert found.decided == sum(one.verdict in ("better", "worse", "equivalent") for one in every) > 0
    assert (found.cells, found.seconds) == (len(results.cells), 12.5)


@pytest.mark.parametrize(
    ("change", "good"),
    [
        ({}, True),
        ({"decided": 6}, False),
        ({"answered": 2}, False),
        ({"seconds": demo.LONGEST + 1}, False),
    ],
)
def test_the_target_takes_decisions_answers_and_time(change: dict[str, int], good: bool) -> None:
    found = demo.Found(7, 8, 3, 3, demo.LONGEST)._replace(**change)
    assert found.good is good
    assert ("below the target" in demo.told("quiet", found)) is not good


def test_a_made_fleet_is_one_that_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "PLACE", tmp_path)
    monkeypatch.setattr(fleet, "timed", lambda what, path: fleet.Cost(1.0, 1 << 20))
    path = fleet.fleet(40, 6)
    assert fleet.summarise(path) == fleet.Cost(1.0, 1 << 20)
    monkeypatch.setattr(summaries, "summarised", None)  # all are there
    found = pooled_results(path)
    assert len(found.hosts) == 6 and not found.left_out
    assert {host.attempts for host in found.hosts} == {40}
    assert len({host.run for host in found.hosts}) == 6
    assert len(list((path / "summaries").iterdir())) == 6
    assert fleet.fleet(40, 6) == path  # it is made once


def test_costs_beyond_what_was_measured() -> None:
    sizes, costs = (1.0, 10.0, 100.0), (1.0, 2.0, 20.0)
    assert fleet.exponent(sizes, costs) == pytest.approx(1)
    assert fleet.beyond(sizes, costs, 10) == pytest.approx(200)
    assert fleet.straight(sizes, costs, 10) == pytest.approx(200)
    assert fleet.straight(sizes, (1.0, 2.0, 2.0), 10) == 2.0


def test_it_says_whether_the_target_is_met() -> None:
    fine = [fleet.Cost(1.0, 1 << 20), fleet.Cost(2.0, 1 << 21), fleet.Cost(3.0, 1 << 22)]
    text = fleet.show(200, fleet.SIZES, fine, fine)
    assert "target at 10,000,000: 30 s and 2 GiB -> met" in text
    assert all(len(line) <= 120 for line in text.splitlines())
    slow = [*fine[:2], fleet.Cost(31.0, 1 << 22)]
    assert "MISSED" in fleet.show(200, fleet.SIZES, slow, fine)
    assert fleet.peak() > 1 << 20


def test_its_run_is_one_that_can_be_told(tmp_path: Path) -> None:
    path = report.run(240, tmp_path)
    results = analyze(path)
    assert len(results.attempts) == 240
    assert {len(attempt.metrics) for attempt in results.attempts} == {report.METRICS}
    assert results.integrity is not None
    assert results.integrity.state == "consistent"
    # All blocks are judged: 10 of each cell.
    assert {comparison.n for cell in results.cells for comparison in cell.comparisons} == {10}
    assert report.run(240, tmp_path) == path  # made once


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seconds": 10.1}, "at 24,000 within 10 s: 10.1 s -> MISSED"),
        ({"peak": 513 << 20}, "at 24,000 within 512 MiB: 513 MiB -> MISSED"),
        ({"page": 15_100_000}, "at 24,000 a page of at most 15 MB: 15.10 MB -> MISSED"),
        ({"opens": 2.1}, "at 24,000 it opens within 2 s: 2.10 s -> MISSED"),
        ({"opens": None}, "at 24,000 it opens within 2 s: there is no Chromium (apt install chromium) -> not measured"),
    ],
)
def test_what_is_missed_or_not_measured_is_told_and_is_the_exit_status(
    change: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    costs = [Cost(9.0, 400 << 20, 10**6, 10**5, 0.5), Cost(9.0, 400 << 20, 10**6, 10**5, 0.5)]
    monkeypatch.setattr(report, "measure", lambda sizes: costs)
    assert report.main((6_000, 24_000)) == 0
    costs[1] = costs[1]._replace(**change)
    assert report.main((6_000, 24_000)) == 1
    assert words in capsys.readouterr().out.splitlines()


def test_growth_is_fitted_over_all_sizes_and_held_between_the_last_two() -> None:
    sizes = (1_000, 10_000, 100_000)
    assert report.fitted(sizes, [1.0, 10.0, 100.0]) == pytest.approx(1.0)
    assert report.fitted(sizes, [1.0, 1.0, 100.0]) == pytest.approx(1.0)
    growing = [Cost(seconds, 1, 1, 1, 0.1) for seconds in (1.0, 1.0, 50.0)]
    missed = [one.words for one in report.targets(sizes, growing) if not one.met]
    assert missed == ["seconds: n^1.2 at most over the last two"]
    square = [Cost(seconds, 1, 1, 1, 0.1) for seconds in (1.0, 100.0, 1000.0)]
    missed = [target.words for target in report.targets(sizes, square) if not target.met]
    assert missed == ["seconds grow as n^1.1 at most over all sizes"]


def test_a_page_is_opened_in_a_browser(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("<!DOCTYPE html><p>text", encoding="utf-8")
    need_program("chromium", "chromium")
    took = report.opened(page)
    assert took is not None
    assert took > 0


def test_the_memory_of_what_a_process_starts_counts_too() -> None:
    before = report.proportional()
    program = "import sys; held = bytes(range(256)) * (64 << 12); print(len(held), flush=True); sys.stdin.read()"
    command = [sys.executable, "-S", "-c", program]
    with report.watched(0.01) as seen, subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as one:
        assert one.stdout is not None and one.stdin is not None
        assert int(one.stdout.readline()) == 64 << 20
        while max(seen) - before < 64 << 20:
            time.sleep(0.01)
        one.stdin.close()


def test_what_two_processes_share_counts_once() -> None:
    """A fork has all pages of its parent, and none of its own before it writes."""
    held = bytes(range(256)) * (64 << 12)
    before, resident = report.proportional(), report.resident()
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    try:
        assert report.resident() > resident + len(held)
        assert report.proportional() < before + len(held) / 2
    finally:
        os.close(write)
        os.waitpid(child, 0)
        os.close(read)


def collected(differences: Sequence[float], seconds: float, metric: str = "ops_per_s") -> interleaved.Collected:
    found = interleaved.Collected(seconds=[seconds])
    found.pairs[metric] = [(100.0, 100.0 * math.exp(difference)) for difference in differences]
    return found


def normal(seed: int, sd: float, n: int = 13) -> list[float]:
    return np.random.default_rng(seed).normal(0.1, sd, n).tolist()  # type: ignore[no-any-return]


def test_the_interval_of_normal_deviations_is_the_one_by_f() -> None:
    one, other = [-1.0, 1.0] * 7, [-3.0, 3.0] * 7  # of so little kurtosis that all degrees of freedom are left
    ratio, low, high = interleaved.ratio_of_deviations(one, other)
    assert ratio == pytest.approx(1 / 3)
    assert low == pytest.approx(ratio / math.sqrt(stats.f.ppf(0.975, 13, 13)))
    assert high == pytest.approx(ratio / math.sqrt(stats.f.ppf(0.025, 13, 13)))


def test_the_interval_covers_as_often_as_it_says() -> None:
    intervals = [interleaved.ratio_of_deviations(normal(2 * n, 1.0), normal(2 * n + 1, 2.0)) for n in range(400)]
    covered = sum(low <= 0.5 <= high for _, low, high in intervals)
    assert 0.91 < covered / 400 < 0.985


def test_a_finding_has_both_designs_and_is_judged_by_the_target() -> None:
    found = interleaved.found("ops_per_s", collected(normal(1, 0.1), 8.0), collected(normal(2, 0.02), 9.0))
    sequential, in_turns = found.lines
    assert (sequential.kind, in_turns.kind) == ("sequential", "interleaved")
    assert sequential.sd == pytest.approx(np.std(normal(1, 0.1), ddof=1))
    assert sequential.effect == pytest.approx(math.expm1(np.mean(normal(1, 0.1))))
    interval = stats.t.interval(0.95, 12, np.mean(normal(2, 0.02)), stats.sem(normal(2, 0.02)))
    assert (math.log1p(in_turns.low), math.log1p(in_turns.high)) == pytest.approx(interval)
    assert found.ratio == pytest.approx(in_turns.sd / sequential.sd)
    assert found.sooner == pytest.approx((sequential.sd / in_turns.sd) ** 2 * 8 / 9)
    shown = interleaved.show("redis", {"ops_per_s": found})
    assert "target at most 0.33 -> met" in shown
    assert re.search(r"the effects differ by -\d\.\d% to \+\d\.\d% \(95%\)", shown)
    assert max(len(line) for line in shown.splitlines()) <= 80
    worse = interleaved.found("ops_per_s", collected(normal(1, 0.1), 8.0), collected(normal(2, 0.09), 9.0))
    assert "MISSED" in interleaved.show("redis", {"ops_per_s": worse})


@pytest.mark.parametrize(("differences", "said"), [(normal(1, 0.1, 5), "5 usable pairs"), ([0.1] * 13, "all alike")])
def test_what_says_nothing_of_a_spread_is_refused(differences: Sequence[float], said: str) -> None:
    with pytest.raises(interleaved.TooFewError, match=said):
        interleaved.found("ops_per_s", collected(normal(1, 0.1), 8.0), collected(differences, 9.0))


@pytest.mark.parametrize("blocks", [6, 7, 13, 40])
def test_both_designs_have_all_their_blocks_in_turns(blocks: int) -> None:
    parts = list(interleaved.parts(blocks))
    assert Counter({kind: sum(n for each, n in parts if each == kind) for kind in interleaved.KINDS}) == Counter(
        dict.fromkeys(interleaved.KINDS, blocks)
    )
    assert max(size for _, size in parts) <= interleaved.PART
    firsts = Counter(kind for kind, _ in parts[::2])
    assert abs(firsts["sequential"] - firsts["interleaved"]) <= 1


@pytest.mark.parametrize("name", interleaved.WORKLOADS)
def test_both_designs_have_one_study(name: str) -> None:
    one, other = (interleaved.study(name, kind, 4) for kind in interleaved.KINDS)

    def but_for_the_design(study: Study) -> tuple[object, ...]:
        return study.policies, study.workload, study.budget, study.method, study.between

    assert but_for_the_design(one) == but_for_the_design(other)
    assert (one.design.kind, other.design.kind) == interleaved.KINDS


def test_targets_are_judged_and_ratios_are_to_scipy() -> None:
    shown = statistics.show(
        [
            statistics.Timing("quick", 0.05, 0.1, "wilcoxon", 0.5),
            statistics.Timing("slow", 0.2, 0.1, "wilcoxon", 0.1),
        ]
    )
    quick, slow = shown.splitlines()[1:]
    assert "met" in quick
    assert quick.endswith("0.10")
    assert "MISSED" in slow
    assert slow.endswith("2.00")
    assert max(len(line) for line in shown.splitlines()) <= 110


def test_what_is_measured_is_what_makes_verdicts() -> None:
    values = statistics.pairs(300)
    law = statistics.boundary(values)
    assert law.pairs == 300
    assert 0.9 * statistics.ALPHA < law.spent <= statistics.ALPHA
    line = statistics.one_more(1000, 5)
    assert line.seconds > 0 and line.target == 0.005  # whether it is met on this machine now is what `make bench` says
    assert "one more pair after 1,000" in statistics.show([line])
    said = statistics.summarise(20_000)
    assert set(said) == {"seconds", "gib", "describe"}
    assert said["gib"] > 0


def test_the_whole_runs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "FLIPS", 99)
    monkeypatch.setattr(statistics, "SIZES", ((60, 1.0, 1.0), (120, 1.0, 1.0)))
    assert statistics.main(repeats=1, observations=20_000) == 0
    shown = capsys.readouterr().out
    assert "interval, 120 pairs" in shown
    assert "memory for all figures, 20,000" in shown


@pytest.mark.parametrize(("ours", "met"), [([1.0, 2.0], True), ([4.0, 8.0], False)])
def test_the_target_of_predictions_is_the_geometric_mean_over_programs(ours: list[float], met: bool) -> None:
    took = {
        name: {"alone": [0.1, 0.1], "predict": [seconds, seconds], "cachegrind": [4.0, 4.0]}
        for name, seconds in zip(("one", "two"), ours, strict=True)
    }
    found, line = predict.verdict(took)
    assert found is met
    assert ("MISSED" in line) is not met
    assert f"{math.sqrt(4 / ours[0] * 4 / ours[1]):.2f}x" in line
    assert "10.0 times the program alone" in predict.show("one", took["one"]) or not met


def test_the_programs_of_predictions_run_the_plugin_with_16_configurations(tmp_path: Path) -> None:
    asked = predict.asked()
    assert isinstance(asked["configurations"], list)
    assert len(asked["configurations"]) == 16
    assert "gzip" in predict.programs(tmp_path / "lines")
