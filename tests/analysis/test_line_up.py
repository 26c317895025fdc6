"""What fell into the seconds of a stall: the readings around it, their differences, and what is usual."""

import msgspec

from hugewise.analysis.over_time import EVENTS, between, lined_up, worst_stalls
from hugewise.model.over_time import SampleSeries, Stall
from tests.build.trials import attempt

SERIES = SampleSeries(
    period_s=1.0,
    length_s=4.0,
    t_s=(-0.5, 0.5, 1.5, 2.5, 3.5, 4.5),
    constant={"thp.65536.anon_fault_alloc": 7, "vmstat.pgmajfault": 3},
    changed={
        "vmstat.compact_migrate_scanned": (0, 0, 0, 900, 900, 900),
        "vmstat.compact_stall": (5, None, 5, 5, 6, 6),
        "thp.2097152.anon_fault_alloc": (1, 2, 3, 13, 14, 15),
        "vmstat.pgfault": (0, 100, 200, 320, 420, 520),
        "vmstat.allocstall_normal": (0, 0, 0, 2, 2, 2),
        "vmstat.allocstall_movable": (0, 0, 0, 3, 3, 3),
        "pressure.memory.some": (0, 0, 0, 250_000, 250_000, 250_000),
        "processes.last_pid": (30_000, 30_001, 32_767, 12, 20, 30),
    },
)


def stall(at_s: float, latency_s: float) -> Stall:
    return Stall(at_s=at_s, latency_s=latency_s, server="unix:/s", operations=4)


def test_a_stall_has_what_was_counted_between_the_readings_around_it() -> None:
    short, worst = lined_up(SERIES, [stall(3.0, 0.01), stall(1.6, 0.2)])[::-1]
    assert (worst.latency_s, worst.from_s, worst.to_s) == (0.2, 1.5, 2.5)
    assert worst.events["compaction_pages"] == 900
    assert worst.events["huge_bytes_cleared"] == 10 * (2 << 20)
    assert worst.events["reclaim_stalls"] == 5
    assert worst.events["memory_stalled_s"] == 0.25
    assert worst.events["major_faults"] == 0  # it did not change, and is known
    assert (short.from_s, short.to_s, short.events["compaction_pages"]) == (2.5, 3.5, 0)


def test_what_is_usual_is_a_median_a_second_of_the_measured_part() -> None:
    (found,) = lined_up(SERIES, [stall(1.6, 0.2)])
    assert (found.usual["faults"], found.usual["compaction_pages"]) == (100.0, 0.0)


def test_what_is_not_there_is_not_zero() -> None:
    (found,) = lined_up(SERIES, [stall(1.6, 0.2)])
    assert "swapped_pages" not in found.events  # the machine does not count it
    assert "begun" not in found.events  # the numbers of processes began anew: how many there were is not known
    assert "compaction_stalls" not in between(SERIES, 0, 1)  # not read then
    assert between(SERIES, 0, 2)["compaction_stalls"] == 0
    assert set(found.events) <= set(EVENTS)


def test_what_is_known_in_part_is_not_known_and_makes_nothing_unusual() -> None:
    series = SampleSeries(
        length_s=4.0,
        t_s=(0.0, 1.0, 2.0, 3.0, 4.0),
        changed={
            "vmstat.pgfault": (None, 1000, 2000, 3000, 4000),
            "vmstat.pswpin": (0, 0, 1, 1, 1),
            "vmstat.pswpout": (None, None, None, None, None),
            "thp.65536.anon_fault_alloc": (0, 0, 5, 5, 5),
            "thp.2097152.anon_fault_alloc": (0, 0, None, 5, 5),
            "vmstat.thp_fault_alloc": (None, None, 1, 9, 9),
        },
    )
    (found,) = lined_up(series, [stall(1.1, 0.2)])
    assert found.events == {"faults": 1000}
    assert found.usual["faults"] == 1000  # of the intervals that have it
    (later,) = lined_up(series, [stall(2.1, 0.2)])
    assert later.events["huge_faults"] == 8
    assert later.usual["huge_faults"] == 4.0
    one = attempt("thp", 1.0, stalls=(found, later))
    (shown,) = worst_stalls(["thp"], [one])
    assert shown.unusual == ()
    nothing_usual = msgspec.structs.replace(later, usual={})
    (shown,) = worst_stalls(["thp"], [attempt("thp", 1.0, stalls=(nothing_usual,))])
    assert shown.unusual == ()


def test_a_stall_that_no_readings_surround_has_no_events() -> None:
    (found,) = lined_up(SERIES, [stall(4.4, 0.2)])
    assert (found.from_s, found.events) == (None, {})
    (alone,) = lined_up(SampleSeries(length_s=1.0), [stall(0.5, 0.1)])
    assert alone.from_s is None
