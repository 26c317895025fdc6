"""What marks say to who points at them: the values that they stand for, in figures of series, samples and heaps."""

from __future__ import annotations

import re
from typing import Any

from msgspec.structs import replace

from hugewise.model.over_time import ArmOverTime
from hugewise.report.figures.backed import backed
from hugewise.report.figures.over_time import latencies, pages, within
from hugewise.report.figures.theme import colours
from hugewise.report.images import inline, render
from tests.build.few_blocks import demo
from tests.report.figures.test_within import with_series


def titles(spec: Any) -> list[str]:
    return re.findall(r"<title>(.*?)</title>", inline(render(spec), name="f", title="figure"))


def test_a_second_says_its_median_and_quartiles() -> None:
    results = with_series()
    spec = within(results, results.cells[0], colours(results))
    told = titles(spec)
    assert "base: second 1, median 109.5, quartiles 104.8 to 114.2 work a second" in told, told[:3]
    assert sum(one.startswith("base: second ") for one in told) == 8


def test_several_seconds_are_said_as_such() -> None:
    results = with_series(length=700)
    spec = within(results, results.cells[0], colours(results))
    assert any(one.startswith("base: seconds 4 to 6, median ") for one in titles(spec))


def test_a_share_of_a_heap_says_its_change_with_the_interval() -> None:
    points: list[dict[str, float | None]] = [
        {"share": 40.0, "change": 3.1, "low": 2.0, "high": 4.2},
        {"share": 80.0, "change": 5.0, "low": None, "high": None},
    ]
    told = titles(backed(points, [(0.0, 0.0), (80.0, 5.0)], None, metric="tps", confidence=0.95))
    assert told == ["40% on huge pages: tps +3.1% (+2.0% to +4.2%)", "80% on huge pages: tps +5.0%"]


def test_an_interval_of_a_load_says_its_operations_and_its_latency() -> None:
    results = demo()
    one = ArmOverTime(
        arm="thp",
        block=1,
        number=1,
        of=1,
        length_s=3.0,
        t_s=(0.0, 1.0, 2.0, 3.0),
        memory={},
        events={"collapsed_pages": (1.0, 90.0, 1.0)},
        absent={},
        interval_s=1.0,
        operations=(1000, 2000, 1500),
        p99_us=(300.0, None, 450.0),
    )
    told = titles(latencies(replace(results.cells[0], over_time=(one,)), colours(results)))
    assert "thp: 2,000 /s, second 1 to 2" in told, told
    assert "thp: p99 450.0 µs, second 2 to 3" in told
    assert "thp: khugepaged at second 1.5, more than twice the usual" in told
    assert sum("p99" in each for each in told) == 2


def test_an_area_of_memory_says_how_much_it_is_at_most_and_at_the_end() -> None:
    results = demo()
    one = ArmOverTime(
        arm="thp",
        block=1,
        number=1,
        of=1,
        length_s=3.0,
        t_s=(0.0, 1.0, 2.0, 3.0),
        memory={"anon:4096": (1 << 20, 1 << 29, None, 1 << 20), "anon:2097152": (0, 0, 1 << 30, 1 << 30)},
        events={},
        absent={},
        interval_s=None,
    )
    told = titles(pages(replace(results.cells[0], over_time=(one, replace(one, arm="base")))))
    assert "thp: 4k anonymous memory, 512 MiB at most, 1.00 MiB at the end" in told, told
    assert "thp: 2m anonymous memory, 1.00 GiB at most, 1.00 GiB at the end" in told
    assert len(told) == 4
