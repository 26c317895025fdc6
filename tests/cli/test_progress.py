"""A run as it is shown while it runs: its lines in a log, and on a terminal the intervals of what is open."""

import io
import math
import os
import pty
import time

import numpy as np
import pytest

from hugewise.cli.progress import Intervals, bar, show_progress
from hugewise.session.progress import AttemptStarted, BlockEnded, OpenComparison, Started
from hugewise.stats.sequential import Sequential
from tests.build.trials import CONTRAST, block
from tests.terminal import drained


def test_a_log_has_a_line_within_a_block_that_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    out = io.StringIO()
    with show_progress(out) as listener:
        listener(Started("r", "f", 3, 0, None))
        listener(AttemptStarted(1, "build", "base"))
        now += 60
        listener(AttemptStarted(1, "build", "thp"))
        listener(BlockEnded(1, "build", "complete", 1, 3, 10.0, 2))
        now += 60
        listener(BlockEnded(2, "fault", "complete", 2, 3, 10.0, 0, 1, 2))
    assert out.getvalue().splitlines() == [
        "run r in f: 3 blocks planned",
        "block 1 (build): thp",
        "1/3 blocks, about 10.0 s left if 2 cells not begun take as long as the others (build)",
        "2/3 blocks, 1 of 2 decided, about 10.0 s left (fault)",
    ]


def test_a_run_with_a_time_budget_is_planned_by_its_time() -> None:
    """The 1,000 blocks of a command's study were told of runs of two minutes."""
    out = io.StringIO()
    with show_progress(out) as listener:
        listener(Started("r", "f", 1000, 0, 120.0))
        listener(Started("r", "f", 1000, 0, 120.0, 0, 8))
    assert out.getvalue() == "run r in f: 2 min 00 s planned\nrun r in f: 0 of 8 decided, 2 min 00 s planned\n"


def test_a_log_has_a_line_at_each_tenth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    out = io.StringIO()
    with show_progress(out) as listener:
        for number in range(1, 41):
            listener(BlockEnded(number, "chase", "complete", number, 40, 40.0 - number, 0, 5, 8))
    told = [int(line.partition("/")[0]) for line in out.getvalue().splitlines()]
    assert told == [1, *range(4, 41, 4)]
    assert "5 of 8 decided, about" in out.getvalue()


def open_(arm: str, ratio: float | None, low: float | None, high: float | None) -> OpenComparison:
    return OpenComparison(arm, "base", "wall_s", ratio, low, high)


@pytest.mark.parametrize(
    ("ratio", "low", "high", "reach", "drawn"),
    [
        (None, None, None, None, "◂━━━━━━━━━┿━━━━━━━━━▸"),
        (0.9, 0.8, None, 0.4, "    ━━━●━━┿━━━━━━━━━▸"),
        (math.exp(-0.2), math.exp(-0.4), 1.0, 0.4, "━━━━━●━━━━┿          "),
        (math.exp(-0.2), math.exp(-0.28), math.exp(-0.12), 0.4, "   ━━●━━  │          "),
        (math.exp(0.2), math.exp(0.12), math.exp(0.28), 0.4, "          │  ━━●━━   "),
        (0.0, 0.0, 0.5, 0.4, "●         │          "),
        (math.inf, 2.0, math.inf, 0.4, "          │         ●"),
        (1.0, 0.01, 1.2, 0.4, "◂━━━━━━━━━●━━━━━     "),
    ],
)
def test_a_bar_has_no_change_in_its_middle(
    ratio: float | None, low: float | None, high: float | None, reach: float | None, drawn: str
) -> None:
    assert bar(ratio, low, high, reach) == drawn


def test_the_bar_of_a_comparison_closes_as_pairs_come() -> None:
    """Within the frame of its first interval; no interval is wider than one before it."""
    made = Sequential(CONTRAST, planned=400, alpha=0.01, margin=0.005)
    intervals, drawn = Intervals(), []
    for number, shift in enumerate(np.random.default_rng(1).normal(0.0, 0.1, 60), 1):
        made.observe(block(number, {"base": 100.0, "thp": 100.0 * math.exp(shift)}))
        found = made.effect()
        assert found is not None
        intervals.see("chase", [open_("thp", found.ratio, found.low, found.high)])
        drawn.append(intervals.lines(80, 10)[-1])
    assert "◂" in drawn[0] and "▸" in drawn[0]
    wide = [sum(line.count(mark) for mark in "━●┿◂▸") for line in drawn]
    assert wide == sorted(wide, reverse=True)
    assert wide[0] == 21 and 3 <= wide[-1] <= 10
    assert "%" in drawn[-1] and " to +" in drawn[-1]


def test_cells_that_find_no_room_are_those_that_were_measured_longest_ago() -> None:
    intervals = Intervals()
    for cell in ("one", "two", "three"):
        intervals.see(cell, [open_("thp", 0.9, 0.8, 1.1), open_("mthp-64k", 0.9, 0.8, 1.1)])
    intervals.see("one", [open_("thp", 0.9, 0.8, 1.1)])
    lines = intervals.lines(80, 7)
    assert [line for line in lines if "wall_s" in line] == ["one: wall_s against base", "three: wall_s against base"]
    assert len(lines) == 6
    intervals.see("three", ())
    assert not any("three" in line for line in intervals.lines(80, 20))
    assert intervals.lines(80, 2) == []


def test_no_line_is_wider_than_the_terminal() -> None:
    intervals = Intervals(ascii_only=True)
    intervals.see("c" * 300, [open_("界" * 99, 0.9, 0.8, 1.1), open_("a\nb\x1b[2J", 0.9, None, 1.1)])
    lines = intervals.lines(60, 9)
    assert max(map(len, lines)) <= 60 and all(line.isprintable() for line in lines)
    assert "+" in lines[2] and "━" not in "".join(lines)


def live(monkeypatch: pytest.MonkeyPatch, *events: BlockEnded) -> str:
    """All that a terminal of 80 columns was sent, of events 10 s apart."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w", encoding="utf-8") as stream:
        with show_progress(stream) as listener:
            listener(Started("r", "f", 40, 0, None))
            for event in events:
                now += 10.0
                listener(event)
        return drained(ours)


def test_a_terminal_has_the_open_comparisons_of_the_last_block(monkeypatch: pytest.MonkeyPatch) -> None:
    told = live(
        monkeypatch,
        BlockEnded(9, "chase", "complete", 9, 40, 10.0, 0, 0, 1, lambda: (open_("thp", 0.7, 0.6, 0.8),)),
        BlockEnded(10, "chase", "complete", 10, 40, 10.0, 0, 0, 1, lambda: (open_("thp", 0.7, 0.66, 0.74),)),
    )
    assert "chase: wall_s against base" in told and "hold whenever one looks" in told
    assert "−30.0% (−34.0% to −26.0%)" in told
    assert "10/40 blocks 0 of 1 decided" in told


def test_looking_takes_no_more_than_a_hundredth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not every block is looked at where that takes long: the machine is to be measured."""
    now, asked = 0.0, 0
    monkeypatch.setattr(time, "monotonic", lambda: now)

    def slow() -> tuple[OpenComparison, ...]:
        nonlocal now, asked
        now, asked = now + 0.5, asked + 1
        return ()

    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w", encoding="utf-8") as stream, show_progress(stream) as listener:
        for number in range(1, 101):
            now += 10.0
            listener(BlockEnded(number, "chase", "complete", number, 100, 10.0, 0, 0, 1, slow))
    os.close(ours)
    assert 15 <= asked <= 22  # 1% of 1,000 s, at 0.5 s a look
