"""The end of a run on a terminal: what it names, in at most 25 lines of 80 columns, however much there is to tell."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from hugewise import open_results
from hugewise.analysis import analysis
from hugewise.model.results import Integrity, Results, Verdict
from hugewise.report.cell_answers import answers
from hugewise.report.document import Line, Note, Table
from hugewise.report.numbers import times
from hugewise.report.remarks import time_short
from hugewise.report.sentences import records
from hugewise.report.summary import pair_deviation, summary
from hugewise.report.write import report
from hugewise.stats import power
from hugewise.store.folder import RunFolder
from hugewise.store.records import Closed, Noted
from tests.analysis.test_forecast import normal, the_study, write_run
from tests.build import known
from tests.build.results import EARLIER, HOSTILE, LATENCY, attempt, example, plain
from tests.golden import GOLDEN
from tests.report.test_answers import judged
from tests.report.told import blocks, printed

RUNS = sorted(path.name for path in (GOLDEN / "runs").iterdir())
HASH = "ab" * 32
REASON = "it ended with status 1: " + "there was no room for its pages " * 30
RECORDS = (
    None,
    Integrity(state="consistent", hash=HASH),
    Integrity(state="unaltered", hash=HASH),
    Integrity(state="no running hash", hash=None),
)


def large() -> Results:
    """20 cells with 70 comparisons; most attempts of one arm failed, each for a long reason of its own."""
    whole, cells, attempts = plain(), [], []
    for number in range(20):
        cell = whole.cells[number % 2]
        name = f"redis clients=50 number={number} bytes=268435456"
        cells.append(replace(cell, cell=name))
        for one in (each for each in whole.attempts if each.cell == cell.cell):
            failed = one.arm == "mthp-64k" and one.block % 4
            broken = {"state": "failed", "reason": f"{REASON}{number}", "metrics": {}} if failed else {}
            attempts.append(replace(one, cell=name, **broken))
    return replace(
        whole,
        study="a-study-with-a-long-name",
        folder="results/a-study-with-a-long-name/20261120-193000-ab12",
        cells=tuple(cells),
        attempts=tuple(attempts),
        disturbances=tuple(f"disturbance {number}: {'steal ' * 90}" for number in range(40)),
        left_out=whole.left_out * 30,
        earlier=(EARLIER, *(f"demo/2026110{number}-180000-cd34" for number in range(9))),
    )


def told(results: Results) -> str:
    """What is shown, with the line that names the report."""
    return printed(summary(results), report_of(results))


def report_of(results: Results) -> Path:
    return Path(results.folder) / "report.html"


def flat(results: Results) -> str:
    return " ".join(told(results).split())


@pytest.fixture(scope="module", params=[*RUNS, "large"])
def results(request: pytest.FixtureRequest) -> Results:
    name: str = request.param
    return large() if name == "large" else open_results(GOLDEN / "runs" / name)


def test_there_is_a_stored_run_of_each_kind() -> None:
    assert RUNS == ["demo", "deployed", "ended", "guests", "interrupted"]


@pytest.mark.parametrize("integrity", RECORDS, ids=lambda one: getattr(one, "state", "none"))
@pytest.mark.parametrize("state", ["finished", "interrupted", "time is up"])
def test_it_has_at_most_25_lines_of_80_columns(results: Results, integrity: Integrity | None, state: str) -> None:
    shown = told(replace(results, integrity=integrity, state=state)).splitlines()
    assert len(shown) <= 25
    assert max(map(len, [line for line in shown if not line.startswith("Report: ")])) <= 80


def test_it_names_the_count_the_answers_the_report_and_what_comes_next(results: Results) -> None:
    shown, words = told(results), flat(results)
    judged = [one for cell in results.cells for one in cell.judged]
    decided = sum(one.verdict in {"better", "worse", "equivalent"} for one in judged)
    assert words.startswith(f"{results.study}: {decided} of {len(judged)} comparison")
    assert shown.endswith(f"\nReport: {report_of(results)}\n")
    assert "\nNext, for your own program: hugewise advise" in shown or results.study != "demo"
    for one in answers(results):
        if one.state == "set":
            assert f"▲ Set `{one.setting}`" in shown
        elif one.state == "undecided":
            assert "? Undecided" in shown
        elif one.state == "none":
            assert f"– No answer for {one.cell}: " in shown
    (table,) = blocks(summary(results), Table)
    assert 1 <= len(table.rows) <= 9
    whole = sum(len(cell.comparisons) for cell in results.cells)
    assert (f"{len(table.rows)} of {whole} comparisons; the others are in the report" in shown) == (
        len(table.rows) < whole
    )


def test_each_answer_has_a_line_up_to_four_and_others_are_counted() -> None:
    several: tuple[tuple[tuple[Verdict, float], ...], ...] = (
        (("better", 0.6),),
        (("worse", 1.2), ("better", 0.5)),
        (("undecided", 0.9),),
        (("equivalent", 1.0),),
        (("none", 0.5),),
    )
    cells = [replace(judged(*given).cells[0], cell=name) for name, given in zip("abcde", several, strict=True)]
    lines = ["▲ Set `mthp-64k`, for a", "▲ Set `thp`, for b", "? Undecided, for c", "= Leave it at `base`, for d"]
    for many in (4, 5):
        results = replace(plain(), cells=tuple(cells[:many]), attempts=(), earlier=(), left_out=(), disturbances=())
        assert [line for line in told(results).splitlines() if line in lines] == lines
        assert ("and 1 more answer, in the report" in told(results)) == (many == 5)


def test_what_comes_next_hangs_on_the_answer() -> None:
    mine = replace(plain(), study="mine")
    assert f"\nTo set it: hugewise report {mine.folder} --output deploy\n" in told(mine)
    open_ = replace(mine, cells=mine.cells[1:])
    assert [one.state for one in answers(open_)] == ["undecided"]
    assert "\nMore time decides more: --time." in told(open_)
    assert "More time" not in told(replace(open_, state="finished"))
    assert f"\nTo go on: hugewise resume {mine.folder}\n" in told(replace(mine, state="interrupted"))
    assert "Next, for your own program: hugewise advise -- ./your-program\n" in told(plain())


def test_noise_is_the_standard_deviation_of_log_ratios_of_pairs() -> None:
    """By hand: the log-ratios ln 1.1, ln 1.2 and ln 1.6 of one arm deviate by 0.1961, those of the other by 0.0491."""
    whole = plain()
    cell = replace(whole.cells[0], cell="pairs")
    ratios = {"thp": (1.1, 1.2, 1.6), "mthp-64k": (2.0, 2.1, 2.2063)}
    made = [
        attempt(block, order, "pairs", arm, metric=LATENCY.name, value=value)
        for block in range(3)
        for order, (arm, value) in enumerate(
            [("base", 100.0 + block), *((arm, (100.0 + block) * several[block]) for arm, several in ratios.items())]
        )
    ]
    of_thp = [math.log(ratio) for ratio in ratios["thp"]]
    mean = sum(of_thp) / 3
    deviation = math.sqrt(sum((one - mean) ** 2 for one in of_thp) / 2)
    assert deviation == pytest.approx(0.1961, abs=1e-4)
    results = replace(whole, cells=(cell,), attempts=tuple(made))
    assert pair_deviation(results, cell) == pytest.approx((deviation + 0.0491) / 2, abs=1e-4), "the median of the arms"
    assert "Noise (standard deviation of a pair): pairs 12%.\n" in told(results)
    failed = tuple(replace(one, state="failed") if one.arm == "mthp-64k" else one for one in made)
    assert pair_deviation(replace(results, attempts=failed), cell) == pytest.approx(deviation)
    few = tuple(one for one in made if one.block == 0)
    assert pair_deviation(replace(results, attempts=few), cell) is None
    assert "Noise" not in told(replace(results, attempts=few))


@pytest.mark.parametrize("make", [plain, example, large])
def test_earlier_runs_and_a_failed_attempt_are_named(make: Callable[[], Results]) -> None:
    results = make()
    assert f"{len(known(results.earlier))} earlier run" in flat(results)
    assert f"on this host: {EARLIER}" in flat(results)
    assert "Failed: " in flat(results)
    good = tuple(one for one in results.attempts if one.state != "failed")
    assert "Failed: " not in flat(replace(results, attempts=good))
    assert "earlier run" not in flat(replace(results, earlier=(), earlier_shared={}))


def test_of_a_large_run_what_answers_rest_on_comes_first_and_the_rest_is_cut_and_counted() -> None:
    whole = large()
    (table,) = blocks(summary(whole), Table)
    assert len(table.rows) >= 3
    assert [row[:2] for row in table.rows] == [
        (f"redis number={place}", "hugetlb-2m") for place in range(len(table.rows))
    ], "cells are told by what not all of them have"
    shown = flat(whole)
    noise = {cell.cell: pair_deviation(whole, cell) or 0.0 for cell in whole.cells}
    least, most = (pick(noise, key=noise.__getitem__) for pick in (min, max))
    ends = (f"redis {cell.split()[2]} {times(100 * noise[cell])}%" for cell in (least, most))
    assert f"Noise (standard deviation of a pair): {' to '.join(ends)}." in shown
    assert "Failed: 15 attempts of mthp-64k on redis number=0: " in shown
    assert "it ended with status 1:" in shown
    assert REASON not in shown
    assert "... (in the report) (and " in shown
    assert " more notes, in the report)" in shown


def test_what_was_noticed_is_told_with_its_count() -> None:
    many = tuple(f"disturbance {number}" for number in range(40))
    noisy = replace(plain(), disturbances=many, attempts=(), earlier=(), left_out=())
    assert "Noticed: disturbance 0 (and 39 more, in the report)" in flat(noisy)


def test_control_characters_of_names_and_reasons_are_escaped() -> None:
    whole = example()
    (evil,) = (cell for cell in whole.cells if cell.cell == HOSTILE)
    attempts = tuple(one for one in whole.attempts if one.cell == HOSTILE)
    results = replace(whole, study=f"demo\x1b[2J{HOSTILE}", cells=(evil,), attempts=attempts, earlier=(f"a/{HOSTILE}",))
    for found in (results, whole, replace(results, state="interrupted", left_out=(), disturbances=(HOSTILE,))):
        shown = told(found)
        assert [one for one in shown if not one.isprintable() and one != "\n"] == []
        assert len(shown.splitlines()) <= 25
    assert "[31m]]> [bold] | `tick`" in flat(results), "the text is there, and no markup"


def test_its_lines_say_nothing_twice(results: Results) -> None:
    lines = [one.text for one in blocks(summary(results), Line)]
    assert lines and len({*lines}) == len(lines)


LEAST = known(power.least_pairs(0.01, 200))


def ended(results: Path, pairs: int, **changes: object) -> Results:
    """Of a run whose time was up after so many pairs."""
    study = the_study(budget={"blocks": 200, "time": "3m"}, **changes)
    run = RunFolder(write_run(results, study, normal(0.02, pairs)))
    run.append(Closed(t=1e4, state="time is up", seed=bytes(16).hex()))
    return replace(analysis.analyze(run.path), command=("hugewise", "run", "mine"))


def test_an_early_end_is_told_after_all_that_disturbed_the_run(tmp_path: Path) -> None:
    assert "before its time" not in " ".join(ended(tmp_path / "late", 9).disturbances)
    run = RunFolder(write_run(tmp_path, the_study(), normal(0.02, 9)))
    run.append(Noted(t=9e3, text="a cell is given up"))
    run.append(Closed(t=1e4, state="finished", seed=bytes(16).hex(), early="ended 52.0 s before its time"))
    assert analysis.analyze(run.path).disturbances == ("a cell is given up", "ended 52.0 s before its time")


def test_what_a_verdict_takes_is_a_note_of_the_report(tmp_path: Path) -> None:
    results = ended(tmp_path, 9)
    minutes = -(-3 * 1.1 * LEAST // 9)
    said = (
        f"The time was up after 9 pairs of each comparison, and a verdict takes at least {LEAST}: begin it anew with"
        f" --time {minutes:.0f}m or more, or with fewer cells and arms (--only, --arms)."
    )
    assert list(time_short(results)) == [said]
    for told in (report(results), summary(results)):
        assert Note(said) in told.lead
    (by_a_program,) = time_short(replace(results, command=()))
    assert by_a_program.endswith(f"{LEAST}: {minutes:.0f} min 00 s or more.")
    (fixed,) = time_short(ended(tmp_path / "fixed", 9, method="fixed-n"))
    assert "a verdict takes at least 200" in fixed, "all of its blocks"


def test_a_run_that_ended_otherwise_or_had_its_pairs_says_nothing(tmp_path: Path) -> None:
    results = ended(tmp_path, 9)
    assert list(time_short(replace(results, state="interrupted"))) == []
    assert list(time_short(ended(tmp_path / "enough", LEAST))) == []
    (cell,) = results.cells
    better = replace(cell, comparisons=(replace(cell.comparisons[0], verdict="better"),))
    assert list(time_short(replace(results, cells=(better,)))) == []


LOST = (
    "The run was interrupted, or it ended and lost its last records: only the last hash, noted at its end, tells these"
)


@pytest.mark.parametrize(
    ("integrity", "state", "said"),
    [
        (RECORDS[0], "finished", []),
        (RECORDS[1], "finished", [f"The records are consistent; the last hash is {HASH}."]),
        (RECORDS[1], "interrupted", [f"The records are consistent; the last hash is {HASH}.", LOST]),
        (RECORDS[2], "interrupted", [f"The records are unaltered: the last hash is the expected {HASH}."]),
        (
            RECORDS[3],
            "finished",
            ["The records cannot be checked: the hugewise that wrote them stored nothing"],
        ),
    ],
)
def test_every_form_says_whether_the_records_are_what_was_written(
    integrity: Integrity | None, state: str, said: list[str]
) -> None:
    results = replace(plain(), integrity=integrity, state=state)
    found = list(records(results))
    assert [one[: len(begin)] for one, begin in zip(found, said, strict=True)] == said
    assert set(found) <= {one.text for one in blocks(report(results), Line)}
    shown, lines = flat(results), told(results).splitlines()
    assert all(one[:100] in shown or f"Last hash: {HASH}" in lines for one in found)


def test_a_reason_that_several_comparisons_share_is_said_once() -> None:
    whole = plain()
    (first, *others) = whole.cells
    none = tuple(
        replace(one, verdict="none", reason="pages of it not delivered") if one.arm != first.comparisons[0].arm else one
        for one in first.comparisons
    )
    fine = tuple(one for one in whole.attempts if one.state != "failed")
    cells = (replace(first, comparisons=none), *others)
    said = flat(replace(whole, cells=cells, attempts=fine, earlier=()))
    left = [one for one in none if one.verdict == "none"]
    assert len(left) > 1
    assert f"No verdict on {', '.join(f'{one.arm} in {first.cell}' for one in left[:3])}" in said
    assert said.count("pages of it not delivered") == 1
