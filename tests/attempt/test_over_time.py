"""What a launcher tells over time, put on the time of the measured part: its ends, its cost, and its file."""

from __future__ import annotations

import gzip
from pathlib import Path

import msgspec
import pytest

from hugewise.analysis.over_time import memory, thinned
from hugewise.attempt import launching
from hugewise.errors import RunError
from hugewise.machine import probe
from hugewise.model.over_time import SamplerUse, SampleSeries
from hugewise.store.dataset import FILE, folder_of, keep_samples, samples
from tests.build.trials import attempt
from tests.machine.test_probe import examples

S = 1_000_000_000


def series(**changes: object) -> probe.MachineSeries:
    made = probe.MachineSeries(
        asked_ns=S,
        period_ns=S,
        t_ns=[9 * S, 10 * S, 11 * S, 12 * S],
        cpu_ns=[0, 2_000_000, 3_000_000, 7_000_000],
        constant={"vmstat.nr_anon_pages": 1000, "thp.65536.nr_anon": 0},
        changed={"vmstat.pgfault": [1, 2, None, 4]},
        absent={"pressure.cpu": "not there"},
    )
    return msgspec.structs.replace(made, **changes)


def micro(begin: int, end: int, user_s: float) -> list[probe.Event]:
    facts: dict[str, int | float | str] = {"user_s": user_s, "system_s": 0.0}
    return [
        probe.Phase(begin - S, "setup"),
        probe.Phase(begin, "timed"),
        probe.Phase(end, "held"),
        probe.Result("chase", end - begin, {}, facts),
        series(),
    ]


def of(found: launching.OverTime) -> SampleSeries:
    assert found.stored is not None
    return msgspec.json.decode(found.stored, type=SampleSeries)


def test_times_are_those_of_the_measured_part_and_its_cost_is_that_of_the_readings_in_it() -> None:
    found = launching.over_time(micro(9 * S + S // 2, 11 * S + S // 2, 0.5), None, cpu_s=99.0, base_size=4096)
    record = of(found)
    assert (record.length_s, record.t_s) == (2.0, (-0.5, 0.5, 1.5, 2.5))
    assert record.changed["vmstat.pgfault"] == (1, 2, None, 4)
    assert record.absent == {"pressure.cpu": "not there"}
    assert found.sampled is not None
    # The readings at 10 s and at 11 s; the first was before, the last after. Against the timed region alone.
    assert found.sampled.cpu_s == pytest.approx(0.005)
    assert found.sampled.share == pytest.approx(0.01)
    assert found.sampled.readings == 4


def test_an_attempt_in_which_reading_took_too_much_is_marked() -> None:
    def marks(user_s: float) -> tuple[str, ...]:
        events = micro(9 * S + S // 2, 11 * S + S // 2, user_s)
        return launching.marks(launching.over_time(events, None, cpu_s=None, base_size=4096).sampled)

    assert marks(0.5) == ("reading the machine's counters over time took 1.00% of its CPU time (rule: at most 0.5%)",)
    assert marks(1.0) == ()  # 0.5% is not above it
    assert (
        launching.marks(None)
        == launching.marks(SamplerUse(period_s=1.0, readings=2, cpu_s=0.1, share=None, digest=""))
        == ()
    )


def test_a_command_has_its_whole_life_and_nothing_is_known_of_what_has_not_ended() -> None:
    start = probe.Start(1, 9 * S + S // 2, 77, "0.1.0")
    ended = next(event for event in examples() if isinstance(event, probe.Exit))
    events: list[probe.Event] = [start, series(), msgspec.structs.replace(ended, t_ns=12 * S)]
    found = launching.over_time(events, None, cpu_s=0.0, base_size=4096)
    assert of(found).length_s == 2.5
    assert found.sampled is not None
    assert found.sampled.share is None  # of no CPU time there is no share
    assert launching.over_time([start, series()], None, cpu_s=1.0, base_size=4096) == launching.OverTime()


def test_the_load_generators_tail_is_kept_on_its_own_time_also_without_the_sampler() -> None:
    load = next(event for event in examples() if isinstance(event, probe.Load))
    assert load.timed is not None
    found = launching.over_time([load], None, cpu_s=1.0, base_size=4096)
    record = of(found)
    assert record.seconds == load.timed.seconds
    assert [(one.at_s, one.latency_s) for one in found.stalls] == [(0.5, 31e-6)]
    assert found.sampled is not None
    assert (found.sampled.period_s, found.sampled.share) == (None, None)


@pytest.mark.parametrize(
    ("case", "word"),
    [
        ({"period": 0.0}, "off"),
        ({"emulated": True}, "emulated"),
        ({"together": True}, "together"),
        ({"far": True}, "a host of its own"),
        ({}, None),
    ],
)
def test_why_counters_are_not_read(case: dict[str, bool | float], word: str | None) -> None:
    asked = {"period": 1.0, "emulated": False, "together": False, "far": False} | case
    why = launching.why_not(**asked)  # type: ignore[arg-type]
    assert (why is None) if word is None else word in (why or "")


def test_what_is_kept_is_read_back_and_held_against_its_digest(tmp_path: Path) -> None:
    found = launching.over_time(micro(9 * S, 12 * S, 1.0), None, cpu_s=1.0, base_size=4096)
    stored = attempt("thp", 1.0, sampled=found.sampled)
    folder = folder_of(tmp_path, stored)
    folder.mkdir(parents=True)
    line = b'{"ev":"series","t_ns":[]}\n'
    (folder / "events.jsonl").write_bytes(b'{"ev":"start"}\n' + line + b'{"ev":"exit"}\n')
    assert found.stored is not None
    keep_samples(folder, found.stored)
    assert (folder / "events.jsonl").read_bytes() == b'{"ev":"start"}\n{"ev":"exit"}\n'
    assert samples(tmp_path, stored) == of(found)
    assert samples(tmp_path, attempt("thp", 1.0)) is None
    whole = (folder / FILE).read_bytes()
    for text, word in (
        (gzip.compress(found.stored.replace(b"1000", b"1001")), "was changed"),
        (whole[:-9], "cannot be read"),
        (b"no gzip", "cannot be read"),
        (gzip.compress(b" " * (33 << 20)), "more than"),
    ):
        (folder / FILE).write_bytes(text)
        with pytest.raises(RunError, match=word):
            samples(tmp_path, stored)
    (folder / FILE).unlink()
    with pytest.raises(RunError, match=f"{FILE} cannot be read"):
        samples(tmp_path, stored)


def test_memory_by_page_size_is_what_the_kernel_counts() -> None:
    record = SampleSeries(
        t_s=(0.0, 1.0, 2.0),
        length_s=2.0,
        constant={"hugetlb.2097152.nr_hugepages": 10, "thp.16384.nr_anon": 0},
        changed={
            "vmstat.nr_anon_pages": (1000, 2000, None),
            "thp.2097152.nr_anon": (0, 3, 3),
            "hugetlb.2097152.free_hugepages": (10, 4, 4),
        },
    )
    assert memory(record) == {
        "anon:4096": (1000 * 4096, 2000 * 4096 - 3 * (2 << 20), None),
        "anon:2097152": (0, 3 * (2 << 20), 3 * (2 << 20)),
        "hugetlb:2097152": (0, 6 * (2 << 20), 6 * (2 << 20)),
    }
    # A kernel that does not count by size: how the memory is divided is not known.
    assert memory(SampleSeries(t_s=(0.0,), constant={"vmstat.nr_anon_pages": 1})) == {}


def test_a_long_series_is_shown_thinned_with_its_ends_and_nothing_lost_between() -> None:
    times = tuple(float(second) for second in range(2000))
    record = SampleSeries(
        period_s=1.0, length_s=1999.0, t_s=times, changed={"vmstat.pgfault": tuple(range(0, 4000, 2))}
    )
    one = thinned("thp", attempt("thp", 1.0), record, 1)
    assert len(one.t_s) <= 602
    assert (one.t_s[0], one.t_s[-1]) == (0.0, 1999.0)
    assert sum(value or 0 for value in one.events["faults"]) == 3998
