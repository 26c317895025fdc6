from mmap import PAGESIZE
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hugewise.advise.advice import Advice, AdviceFolder, Confirmed, Screen, confirmed, with_earlier_runs
from hugewise.advise.candidates import LeftOutCandidate, SettingCandidate
from hugewise.advise.decision import FootprintChange, MeasuredSetting, SettingFootprint
from hugewise.advise.question import Question, command, service
from hugewise.advise.text import (
    answer,
    details,
    growth_text,
    in_short,
    mib,
    notes,
    price_text,
    recommended,
    settings,
)
from hugewise.advise.text import whole as whole_text
from hugewise.errors import UserError
from hugewise.model.cause import Cause
from hugewise.model.metric import Metric
from hugewise.model.results import EarlierComparison
from hugewise.quantity import format_size
from tests.advise.test_pilot import SEEN
from tests.build import known
from tests.build.results import cell_result, comparison, plain, summary

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
        "Set `advised`: wall_s −20.0% (−22.0% to −18.0%), 14 pairs at 99%; it takes 4.0% more memory."
        " The setting reaches this program alone."
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"memory_after": 150 << 20}, "but the program has 50% more memory: that is yours to weigh"),
        ({"verdict": "equivalent", "ratio": 1.0, "low": 0.99, "high": 1.01}, "makes no difference above 2%"),
        ({"verdict": "worse", "ratio": 1.2, "low": 1.1, "high": 1.3}, "Leave it as it is: the best that was found"),
        ({"verdict": "undecided"}, "Undecided: `advised`"),
        ({"verdict": "undecided", "low": None, "high": None}, "Undecided: `advised`"),
        (
            {"verdict": "undecided", "ratio": 1.004, "low": 0.9754, "high": 1.034},
            "Leave it as it is: the best that was found, `advised`, gains at most 2.5%, if anything (wall_s +0.4%",
        ),
        ({"verdict": "none", "reason": "pages of advised not delivered"}, "No verdict on `advised`: pages of advised"),
        ({"candidate": "always"}, "The setting reaches every program of this machine."),
        ({"candidate": "pool-2m"}, "its pool keeps the memory from others"),
    ],
)
def test_each_verdict_has_its_sentence(changes: dict[str, Any], words: str) -> None:
    assert words in answer(last(**changes))


@pytest.mark.parametrize(
    ("better", "low", "high", "margin", "said"),
    [
        ("lower", 0.951, 1.2, 0.02, "leave as it is"),
        ("lower", 0.949, 1.2, 0.02, "undecided: advised"),
        ("lower", 0.92, 1.2, 0.1, "leave as it is"),
        ("higher", 0.8, 1.049, 0.02, "leave as it is"),
        ("higher", 0.8, 1.051, 0.02, "undecided: advised"),
    ],
)
def test_a_gain_that_is_ruled_out_is_an_answer(better: str, low: float, high: float, margin: float, said: str) -> None:
    """From 5%, or from the margin where that is larger."""
    made = last(verdict="undecided", ratio=1.0, low=low, high=high, better=better)
    made.question = msgspec.structs.replace(made.question, margin=margin)
    assert in_short(made) == said
    assert not recommended(made)


@pytest.mark.parametrize(
    ("ratio", "low", "high"), [(0.973, 0.991, 1.017), (0.965, 0.955, 0.99), (1.02, 1.01, 1.03), (None, 0.96, 1.1)]
)
def test_nothing_is_claimed_of_an_interval_without_its_estimate_or_beside_no_change(
    ratio: float | None, low: float, high: float
) -> None:
    assert answer(last(verdict="undecided", ratio=ratio, low=low, high=high)).startswith("Undecided")


@pytest.mark.parametrize(("other", "said"), [(0.94, "undecided: advised"), (0.96, "leave as it is")])
def test_all_is_not_left_as_it_is_while_another_setting_may_gain(other: float, said: str) -> None:
    made = last(verdict="undecided", ratio=1.0, low=0.96, high=1.06)
    seen = MeasuredSetting(
        name="pool-2m", known="screening", n=9, ratio=other, low=None, high=None, confidence=0.9,
        footprint=SettingFootprint(resident=1, pool=0), growth=None,
    )  # fmt: skip
    assert made.screen is not None
    made.screen = msgspec.structs.replace(made.screen, measured=(seen,))
    assert in_short(made) == said
    made.screen = msgspec.structs.replace(made.screen, dropped={"pool-2m": "advised is better"})
    assert in_short(made) == "leave as it is"


@pytest.mark.parametrize(("low", "most"), [(0.9797, "2.1%"), (0.9996, "0.1%"), (0.97451, "2.6%"), (0.975, "2.5%")])
def test_the_largest_gain_is_never_rounded_down(low: float, most: str) -> None:
    said = answer(last(verdict="undecided", ratio=1.0, low=low, high=1.05))
    assert f"gains at most {most}, if anything" in said


@pytest.mark.parametrize(("low", "asked"), [(0.985, False), (0.975, True)])
def test_more_time_is_proposed_where_the_margin_is_still_open(low: float, *, asked: bool) -> None:
    made = last(verdict="undecided", ratio=1.0, low=low, high=1.06)
    made.more_time = "20m"
    assert answer(made).endswith("More time tells whether it gains more than 2%: --time 20m.") == asked


def test_without_a_confirmation_it_says_how_far_it_came_or_what_it_takes() -> None:
    early = found(confirmed=None, screen=None, chosen="", arrived="screening")
    assert answer(early) == "No answer yet: interrupted in the screening."
    assert answer(found(confirmed=None, arrived="confirmation")) == (
        "No answer yet: interrupted in the confirmation. The screening chose `advised`, about −20.0%: an estimate, not"
        " a verdict."
    )
    nothing = found(tried=(), screen=None, chosen="", confirmed=None)
    assert answer(nothing).startswith("Leave it as it is: no setting can reach this program")
    left = tuple(LeftOutCandidate(name=name, reason="it has 1 MiB of memory") for name in ("advised", "always"))
    said = answer(msgspec.structs.replace(nothing, left_out=left))
    assert said == "Leave it as it is: it has 1 MiB of memory.", "one reason that nothing is tried is the answer"
    left = (LeftOutCandidate(name="always", reason="it is a setting of the host", needs_root=True),)
    said = answer(msgspec.structs.replace(nothing, left_out=left))
    assert said == "Leave it as it is, or ask as root: what could still reach this program needs root to be tried."
    short = msgspec.structs.replace(nothing, more_time="3m")
    said = "Undecided: 10 min 00 s have no room for the pairs of runs that a verdict takes. Give --time 3m or more"
    assert answer(short).startswith(said)
    assert in_short(short) == "undecided"


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
    most = "at most 115 MiB of memory, 110 MiB of it a pool that stays reserved, +15.0% by the most of all runs"
    assert said[-1] == f"Price: {most}."


def test_advice_needs_the_evidence_of_the_earlier_runs_too() -> None:
    arms = [summary(name, [], "wall_s") for name in ("as-is", "advised")]
    one = comparison("advised", "wall_s", "better", baseline="as-is", ratio=0.8, low=0.7, high=0.9)
    one = msgspec.structs.replace(one, evidence_larger=0.1, evidence_smaller=300.0)
    cell = cell_result("command", "command", Metric("wall_s", "s", "lower", "time"), {}, arms, [one])

    def after(*smaller: float) -> Advice:
        shared = {
            f"advise-confirmation/{n}": (EarlierComparison("command", "advised", "wall_s", 9, "undecided", 1.0, each),)
            for n, each in enumerate(smaller)
        }
        results = msgspec.structs.replace(
            plain(), cells=(cell,), earlier=tuple(shared), earlier_shared=shared, confidence=0.99
        )
        return found(confirmed=with_earlier_runs(confirmed("r/1", cell, one), results, cell, one))

    assert recommended(after()) and known(after().confirmed).earlier == ""
    assert recommended(after(0.9)) and "all together better" in " ".join(notes(after(0.9), short=True))
    refused = after(0.5, 0.5)
    assert not recommended(refused)
    assert (
        answer(refused).startswith("Undecided: this run alone decides on `advised` (wall_s")
        and in_short(refused) == "undecided: advised"
    )
    told = (
        "2 earlier runs of the same question (advise-confirmation/0, advise-confirmation/1): all together undecided"
        " (evidence 38 of 100), by this run alone better."
    )
    assert told in list(notes(refused, short=True)) and told in whole_text(refused)


def test_middle_sized_pages_are_delivered_too() -> None:
    arms = [
        summary("as-is", [], "wall_s", coverage={f"anon:{PAGESIZE}": 1.0}),
        summary("always-64k", [], "wall_s", coverage={f"anon:{PAGESIZE}": 0.25, f"anon:{16 * PAGESIZE}": 0.75}),
    ]
    one = comparison("always-64k", "wall_s", "better", baseline="as-is", ratio=0.8, low=0.7, high=0.9)
    made = confirmed(
        "r/1", cell_result("command", "command", Metric("wall_s", "s", "lower", "time"), {}, arms, [one]), one
    )
    assert (made.huge_before, made.huge_after) == (0.0, 0.75)


def test_a_footprint_that_hardly_changed_has_no_sign() -> None:
    same = last(memory_before=100 << 20, memory_after=(100 << 20) - 1)
    (price,) = (one for one in details(same) if one.startswith("Price"))
    assert price.endswith(", 0.0% by the most of all runs.")


def test_little_memory_is_not_none() -> None:
    assert [mib(size) for size in (0, 300 << 10, 5 << 20, 10 << 20, 3 << 30)] == [
        "none", "300 KiB", "5.00 MiB", "10 MiB", "3,072 MiB",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("low", "high", "span"),
    [
        (0.5, 0.9999, "(−50.0% to −0.01% at 99%)"),
        (1.0002, 1.5, "(+0.02% to +50.0% at 99%)"),
        (1.0, 1.0, "(0.0% to 0.0% at 99%)"),
    ],
)
def test_an_end_beside_no_change_is_not_rounded_onto_it(low: float, high: float, span: str) -> None:
    assert growth_text(FootprintChange(ratio=0.9, low=low, high=high, confidence=0.99, pairs=9)).endswith(span)


@pytest.mark.parametrize(
    ("growth", "words"),
    [(None, "is not known"), (-0.0049, "as much memory as before"), (-0.9999, "99.9% less"), (0.1, "10% more")],
)
def test_a_price_is_told_as_it_is(growth: float | None, words: str) -> None:
    assert words in price_text(growth)


def test_what_stands_behind_it_is_told() -> None:
    said = list(details(found()))
    assert said[0].startswith("As it is: 1.0 s a run (6 runs, pairs of the same differ by 2.0% (sd))")
    assert any(one.startswith("Tried: always (host)") and "dropped by the screening" in one for one in said)
    assert any("pool-2m" in one and "at the screening's rate of 10%" in one for one in said)
    assert any("advised" in one and "judged by blocks of its own: better" in one for one in said)
    assert "Not tried: off: the program has base pages already." in said
    assert f"Delivered: 97% of its memory in pages above {format_size(PAGESIZE)} (0% before)." in said
    assert said[-1] == "Price: at most 104 MiB of memory, +4.0% by the most of all runs."


def test_an_advice_of_a_program_whose_pages_nobody_saw() -> None:
    seen = msgspec.structs.replace(SEEN, coverage={}, memory=0)
    assert "memory unknown, its pages were not seen." in next(details(found(pilot=seen)))


def test_an_advice_that_was_moved_leads_to_no_other_results(tmp_path: Path) -> None:
    folder = AdviceFolder.new(tmp_path)
    folder.path.mkdir(parents=True)
    link = tmp_path / "link"
    link.symlink_to(folder.path)
    assert folder.results == AdviceFolder(link).results == tmp_path.resolve()
    moved = folder.path.rename(tmp_path / "moved")
    with pytest.raises(UserError, match="not in the folder advice of its results"):
        _ = AdviceFolder(moved).results


MIB = 1 << 20


def seen(name: str, ratio: float | None, growth: float | None, **changes: Any) -> MeasuredSetting:
    change = None
    if growth is not None:
        change = FootprintChange(ratio=growth, low=growth - 0.01, high=growth + 0.01, confidence=0.99, pairs=14)
    size = SettingFootprint(resident=100 * MIB, pool=0)
    made = MeasuredSetting(
        name=name, known="confirmed", n=14, ratio=ratio, low=ratio and ratio - 0.02, high=ratio and ratio + 0.02,
        confidence=0.99, footprint=size, growth=change,
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


def whole(growth: float | None = 0.7, screened: bool = True, **changes: Any) -> Advice:
    """An advice with every arm's figures: `advised` was confirmed, `pool-2m` measured beside it."""
    fields = {"measured": (seen("as-is", 1.0, 1.0), seen("advised", LAST.ratio, growth), BESIDE), **changes}
    made = last(**fields)
    made.screen = msgspec.structs.replace(
        SCREENED, measured=(seen("as-is", 1.0, 1.0, known="screening"), seen("always", 0.95, 1.05, known="screening"))
    )
    return made


BESIDE = seen(
    "pool-2m", 0.81, 1.15, known="beside",
    footprint=SettingFootprint(resident=5 * MIB, pool=110 * MIB),
)  # fmt: skip


@pytest.mark.parametrize(
    ("growth", "words"),
    [
        (0.9, "; it takes 10% less memory."),
        (1.04, "; it takes 4.0% more memory."),
        (1.003, "; it takes as much memory as before."),
        (1.12, "but the program has 12% more memory: that is yours to weigh."),
    ],
)
def test_where_speed_goes_first_memory_is_its_price(growth: float, words: str) -> None:
    assert words in answer(whole(growth=growth))


def test_a_price_that_nobody_saw_is_said_not_to_be_known() -> None:
    assert "; what memory it takes is not known." in answer(whole(growth=None, memory_before=None))


def test_a_direction_that_the_earlier_runs_do_not_bear_out_asks_for_another_run() -> None:
    made = last(verdict="undecided", reason="of 2 runs.", earlier="of 2 runs.")
    said = answer(made)
    assert said.startswith("Undecided: this run alone decides on `advised` (wall_s")
    assert said.endswith("together do not. Run the same command again: each run adds its evidence.")
    assert "same command again" not in answer(last(verdict="undecided", reason="of 14 pairs", earlier="of 2 runs."))


def test_a_candidate_is_called_the_best_where_it_is_that_of_several() -> None:
    made = last(verdict="equivalent", ratio=1.0, low=0.99, high=1.01)
    assert answer(made).startswith("Leave it as it is: the best that was found, `advised`, usually")
    one = msgspec.structs.replace(made, tried=made.tried[:1])
    assert answer(one).startswith("Leave it as it is: `advised` usually makes no difference above 2% (wall_s")
    assert "up to 28% of runs may stall" in answer(one), "1 - .01^(1/14)"
    assert made.screen is not None
    made.screen = msgspec.structs.replace(made.screen, best="pool-2m")
    said = "Leave it as it is: `advised`, the first candidate that may be as good as `pool-2m`, usually"
    assert answer(made).startswith(said)


def test_an_own_option_of_a_program_is_named_in_the_answer() -> None:
    words = ["redis-server", "--port", "{port}"]
    option = {"environment": {"MALLOC_CONF": "thp:always"}, "parameters": {"server": [*words, "--disable-thp", "no"]}}
    own = SettingCandidate(
        name="own-thp", use={"name": "own-thp", "from": "thp", **option}, reach="process", reason="r"
    )
    made = last(candidate="own-thp")
    made.tried, made.chosen = (own,), "own-thp"
    made.question = Question(workload=service(words, ("load",), seconds=60.0))
    assert answer(made).startswith("Set `own-thp` (MALLOC_CONF=thp:always --disable-thp no): wall_s −20.0%")
    elsewhere = {"name": "own-thp", "parameters": {"server": ["redis-server", "-c", "x"]}}
    made.tried = (msgspec.structs.replace(own, use=elsewhere),)
    assert answer(made).startswith("Set `own-thp`: wall_s")


def test_the_table_has_every_setting_with_the_rate_at_which_it_is_known() -> None:
    made = whole(growth=1.04)
    rows = settings(made)
    assert [(row.name, row.dominated_by) for row in rows] == [
        ("as-is", ""), ("advised", ""), ("pool-2m", "advised"), ("always", "advised"),
    ]  # fmt: skip
    lines = list(details(made))
    assert [line.split()[0] for line in lines[:5]] == ["setting", "as-is", "advised", "pool-2m", "always"]
    assert [word in line for line, word in zip(lines[2:5], ("confirmed", "runner-up", "screened"), strict=True)] == [
        True
    ] * 3
    (beside,) = (line for line in lines if line.startswith("Tried: pool-2m"))
    assert "the runner-up, measured beside the confirmation: −19.0% (−21.0% to −17.0%) at 99%, by itself" in beside
    assert beside.endswith("; memory +15.0% (+14.0% to +16.0% at 99%); dominated by advised.")
    assert settings(found(screen=None, confirmed=None)) == ()


def test_a_setting_that_could_not_be_run_has_its_reason() -> None:
    made = whole()
    made.screen = msgspec.structs.replace(SCREENED, left_out={"always": "the kernel granted 0"}, measured=())
    lines = list(details(made))
    assert [line.split() for line in lines if line.startswith("always")] == [["always", "–", "not", "run", "host"]]
    assert "Tried: always (host): good for something; it could not be run here: the kernel granted 0." in lines


def test_the_causes_stand_behind_the_answer() -> None:
    cause = Cause(
        arm="advised", baseline="as-is", told="faults", by="CPU time", saved=0.2, share=0.9, low=0.8, high=1.0
    )
    line = "The gain is mostly page faults: the kernel's time is 90% (80% to 100% at 95%, by itself)"
    assert any(one.startswith(line) for one in details(last(cause=cause)))


def test_a_record_from_before_there_were_footprints_is_told_as_it_was() -> None:
    old = msgspec.to_builtins(found())
    del old["beside"], old["confirmed"]["measured"], old["screen"]["measured"], old["screen"]["runner_up"]
    assert msgspec.convert(old, Advice) == found()
