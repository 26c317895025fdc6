"""What stands beside a verdict: corrections, findings, limits, the legend, and which runs there were before."""

import csv as reading
import io
from typing import Any

import pytest
from msgspec.structs import replace

from hugewise.model.results import Comparison, EarlierComparison, Results, Spread, Tier
from hugewise.report.cell_answers import ranked
from hugewise.report.data_files import comparisons_csv
from hugewise.report.document import Heading, Line, Points, Verdicts
from hugewise.report.remarks import earlier
from hugewise.report.sections.effects import effects_table, reach_table, sensitivity_table
from hugewise.report.sections.run import run_table
from hugewise.report.sentences import EXACT_LEGEND, LEGEND_TITLE, TIER_LEGEND, findings, legend, sentence
from hugewise.report.summary import summary
from hugewise.report.write import report
from tests.build import known
from tests.build.results import LATENCY, plain
from tests.report.told import blocks

FOUND = {one.arm: one for one in plain().cells[0].comparisons}
WIDER = Spread(shown="wider", ratio=9.8, pairs=40, alpha=0.01)


def said(arm: str = "thp", **changes: object) -> str:
    return sentence(replace(FOUND[arm], **changes), LATENCY, 0.005).replace("−", "-")


def run(*comparisons: Comparison, **changes: Any) -> Results:
    whole = plain()
    return replace(whole, cells=(replace(whole.cells[0], comparisons=comparisons),), **changes)


def test_an_early_verdict_has_its_corrected_ratio_beside_it() -> None:
    assert said(ratio=1.021, low=1.004, high=1.038, corrected=1.0164, verdict="worse").endswith(
        "from 20 blocks. Corrected for stopping early: about +1.6% (a `width` in the study's budget makes it sharper)."
    )
    assert "orrected" not in said()
    assert "orrected" not in said(corrected=0.75, verdict="undecided")
    cell = run(replace(FOUND["thp"], corrected=0.7612), FOUND["mthp-64k"]).cells[0]
    table = effects_table(cell)
    assert table.head[3] == "corrected for stopping early"
    assert [row[3] for row in table.rows] == ["about −23.88%", "–"]
    assert "corrected for stopping early" not in effects_table(plain().cells[0]).head


def test_a_difference_in_spread_is_a_finding_of_its_own() -> None:
    (finding,) = findings(replace(FOUND["thp"], spread=WIDER))
    assert finding == (
        "Spread: the values of thp spread 9.8 times as widely as the baseline's (too consistently for chance from pair"
        " 40 on).",
        False,
    )
    (finding,) = findings(replace(FOUND["thp"], verdict="undecided", spread=WIDER))
    assert finding == (
        "thp differs from base in spread, not shown in place: for a latency budget this is the answer. "
        "Its values spread 9.8 times as widely as the baseline's (too consistently for chance from pair 40 on).",
        True,
    )
    (finding,) = findings(replace(FOUND["thp"], verdict="equivalent", spread=WIDER))
    assert finding.leads
    assert "in spread, not in place, where they are equivalent: for a latency budget" in finding.text
    not_shown = Spread(shown=None, ratio=1.3, pairs=None, alpha=0.01)
    assert not list(findings(replace(FOUND["thp"], spread=not_shown)))
    assert not list(findings(FOUND["thp"]))


@pytest.mark.parametrize(
    ("spread", "words"),
    [
        (replace(WIDER, shown="narrower", ratio=0.1), "spread 0.10 times as widely as the baseline's"),
        (replace(WIDER, ratio=None), "spread more widely than the baseline's"),
        (replace(WIDER, shown="narrower", ratio=1.2), "spread less widely than the baseline's"),
        (replace(WIDER, shown="narrower", ratio=0.0), "spread less widely than the baseline's"),
        (replace(WIDER, pairs=None), "(too consistently for chance)."),
    ],
)
def test_the_words_of_a_spread(spread: Spread, words: str) -> None:
    (finding,) = findings(replace(FOUND["thp"], spread=spread))
    assert words in finding.text


def test_findings_stand_with_their_verdict() -> None:
    results = run(replace(FOUND["thp"], verdict="undecided", spread=WIDER), replace(FOUND["mthp-64k"], spread=WIDER))
    (verdicts,) = blocks(report(results), Verdicts)
    assert [one.findings for one in verdicts.verdicts] == [tuple(findings(one)) for one in ranked(results.cells[0])]
    assert [one.findings[0].leads for one in verdicts.verdicts] == [False, True], "the better one first"
    leading = verdicts.verdicts[1].findings[0].text
    assert [one.text[:80] for one in blocks(summary(results), Line)].count(leading[:80]) == 1
    (row, _) = reading.DictReader(io.StringIO(comparisons_csv(results)))
    assert (row["spread.shown"], row["spread.ratio"], row["spread.pairs"]) == ("wider", "9.8", "40")


def test_warnings_are_told_with_the_verdict() -> None:
    (verdicts,) = blocks(report(run(replace(FOUND["thp"], warnings=("it was <b>loud</b>\x1b[31m",)))), Verdicts)
    (loud,) = verdicts.verdicts
    assert "It was <b>loud" in loud.text
    assert "\x1b" not in loud.text


def test_blocks_in_which_a_side_could_not_be_started() -> None:
    told = said(unstarted_arm=3, unstarted_baseline=1)
    assert "thp could not be started in 3 blocks (counted as failures)." in told
    assert "base could not be started in 1 block (counted as failures)." in told
    assert "started" not in said()
    cell = run(replace(FOUND["thp"], unstarted_arm=3), FOUND["mthp-64k"]).cells[0]
    table = sensitivity_table(cell)
    assert table.head[-2:] == ("could not be started", "baseline could not")
    assert [row[-2:] for row in table.rows] == [("3", "0"), ("0", "0")]
    assert len(sensitivity_table(plain().cells[0]).head) == 6


@pytest.mark.parametrize("verdict", ["better", "worse", "equivalent"])
def test_estimates_of_usable_pairs_are_called_so(verdict: str) -> None:
    assert said(verdict=verdict, n=17, n_all=20).endswith(
        "Estimate and interval are of the 17 usable pairs of 20; the verdict also holds with the others kept in."
    )


def test_without_a_verdict_nothing_is_said_to_hold() -> None:
    assert said(verdict="undecided", n=17, n_all=20).endswith("of the 17 usable pairs of 20.")
    assert "usable" not in said(verdict="none", n=17, n_all=20)
    assert "usable" not in said()
    rows = {row[0]: row for row in effects_table(plain().cells[0]).rows}
    assert rows["hugetlb-1g"][-2] == "17 usable of 20"
    assert rows["thp"][-2] == "20"
    short = [replace(FOUND["thp"], final=False, n=17, n_all=n_all, planned=40) for n_all in (17, 20)]
    assert [row[-2] for row in effects_table(run(*short).cells[0]).rows] == [
        "17 of 40, provisional",
        "17 usable of 20, 40 planned, provisional",
    ]


def test_the_legend_stands_once_with_the_tiers_of_reports_that_have_some() -> None:
    results = run(*(replace(one, method="sequential") for one in FOUND.values()))
    assert legend(results) == EXACT_LEGEND
    assert [one.text for one in blocks(report(results), Heading)].count(LEGEND_TITLE) == 1
    assert blocks(report(results), Points).count(Points(EXACT_LEGEND)) == 1
    here = Tier(name="this campaign", supported=True, ratio=0.75, low=0.74, high=0.76, reason="exact")
    average = Tier(name="campaign average", supported=False, ratio=None, low=None, high=None, reason="too few")
    one = replace(FOUND["thp"], method="sequential")
    assert legend(run(replace(one, tiers=(here, average)))) == EXACT_LEGEND
    reached = run(replace(one, tiers=(here, replace(average, supported=True, ratio=0.75, low=0.7, high=0.8))))
    assert legend(reached) == EXACT_LEGEND + TIER_LEGEND
    assert blocks(report(reached), Points).count(Points(EXACT_LEGEND + TIER_LEGEND)) == 1


def test_the_legend_is_of_the_methods_that_were_used() -> None:
    fixed = legend(plain())
    assert len(fixed) == 1
    assert "fixed n" in fixed[0]
    assert not set(fixed) & set(EXACT_LEGEND)
    assert legend(replace(plain(), cells=())) == ()
    assert LEGEND_TITLE not in [one.text for one in blocks(report(replace(plain(), cells=())), Heading)]


def test_tiers_say_what_their_ratio_is_of() -> None:
    tier = Tier(name="campaign average", supported=True, ratio=0.75, low=0.74, high=0.76, reason="asymptotic")
    cell = run(replace(FOUND["thp"], tiers=(tier, replace(tier, name="beyond these sessions")))).cells[0]
    table = known(reach_table(cell))
    assert [row[1] for row in table.rows] == [
        "campaign average (ratio of geometric means)",
        "beyond these sessions (ratio of geometric means)",
    ]


@pytest.mark.parametrize(
    ("known", "words"),
    [
        (("demo/b", "demo/a"), "2 earlier runs with the same comparisons on this host: demo/b, demo/a. Publish all"),
        (("demo/a",), "1 earlier run with the same comparisons on this host: demo/a. Publish all of them"),
        ((), "No earlier run with any of these comparisons on this host is in this results folder."),
        (None, "Whether this study had earlier runs on this host was not recorded."),
    ],
)
def test_earlier_runs_are_named(known: tuple[str, ...] | None, words: str) -> None:
    results = replace(plain(), earlier=known, earlier_shared={})
    assert any(isinstance(one, Line) and one.text.startswith(words) for one in report(results).lead)
    short = [one.text for one in blocks(summary(results), Line) if "earlier run" in one.text]
    assert [one.startswith(f"{len(known or ())} earlier run") for one in short] == [True] * bool(known)
    assert any(value.startswith(words) for _, value in run_table(results).rows)
    row = next(reading.DictReader(io.StringIO(comparisons_csv(results))))
    assert row["earlier_runs"] == ("" if known is None else "; ".join(known) or "none")


def test_many_earlier_runs_are_counted_and_named_in_the_table_of_the_run() -> None:
    results = replace(plain(), earlier=tuple(f"demo/{n}" for n in range(40)))
    assert earlier(results).startswith("40 earlier runs of this study on this host: demo/0, demo/1")
    assert "demo/4 and 35 more (all in the report's table of the run). Publish" in earlier(results)
    assert any("demo/39. Publish all of them, not a chosen one." in value for _, value in run_table(results).rows)


def test_what_was_not_looked_for_or_cannot_be_read_of_earlier_runs_is_said() -> None:
    none = replace(plain(), earlier=(), earlier_shared={}, earlier_unread=2)
    assert earlier(none) == (
        "No earlier run with any of these comparisons on this host is in this results folder, and 2 folders in it "
        "cannot be read."
    )
    assert earlier(replace(plain(), earlier=("demo/a",), earlier_unread=1)).endswith("1 folder cannot be read.")
    told = earlier(replace(plain(), earlier=(), earlier_shared=None))
    assert told.endswith("is in this results folder; runs of a part of it were not looked for.")
    assert earlier(replace(plain(), earlier=("a/b",))).startswith(
        "1 earlier run of this study on this host: a/b. Publish"
    )


def test_what_an_earlier_run_had_of_this_one_is_named_with_what_it_said() -> None:
    results = plain()
    every = [(cell.cell, one.arm, one.metric) for cell in results.cells for one in cell.judged]
    assert len(every) > 4

    def told(most: int | None, *shared: EarlierComparison) -> str:
        text = earlier(replace(results, earlier=("demo/a",), earlier_shared={"demo/a": shared}), most)
        return text[text.index("demo/a") : text.index(". Publish")]

    names = ["{1} on {0} by {2}".format(*one) for one in every]
    begun = [EarlierComparison(*one) for one in every]
    ended = [EarlierComparison(*one, 9 + n % 2, "undecided" if n else "better") for n, one in enumerate(every)]
    assert told(5, begun[0]) == f"demo/a ({names[0]}: it has no report)"
    assert told(5, ended[1]) == f"demo/a ({names[1]}: 10 pairs, undecided)"
    assert told(5, *ended) == f"demo/a (all comparisons: 9 to 10 pairs, 1 better, {len(every) - 1} undecided)"
    assert told(5, *ended[:4]) == (f"demo/a ({', '.join(names[:3])} and 1 more: 9 to 10 pairs, 1 better, 3 undecided)")
    assert told(None, *ended[:2]) == f"demo/a ({names[0]}: 9 pairs, better; {names[1]}: 10 pairs, undecided)"
