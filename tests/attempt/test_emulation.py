"""What is kept of an attempt on an emulated machine, and what becomes null."""

from __future__ import annotations

from hugewise.attempt import recording
from hugewise.attempt.outcome import Outcome
from hugewise.machine import probe
from hugewise.model.metric import NOT_IN_EMULATION, Metric

HITS = Metric("hit_ratio", "1", "higher", "", emulated=True)
RATE = Metric("ops_per_s", "1/s", "higher", "")

FOUND = Outcome(
    state="accepted",
    cpu_s=0.4,
    metrics={
        "wall_s": 0.5,
        "cpu_s": 0.4,
        "peak_bytes": 4096,
        "page_faults": 17,
        "cycles": None,
        "instructions": None,
        "swap_bytes": None,
        "hit_ratio": 0.5,
        "ops_per_s": 9.0,
        "unheard_of": 3.0,
    },
    absent={"cycles": "not supported", "instructions": "not supported", "swap_bytes": "it is not counted here"},
    peak_bytes=4096,
    exit_code=0,
)
COUNTS = {"peak_bytes", "page_faults", "swap_bytes", "hit_ratio"}


def test_counts_and_sizes_stay_and_everything_else_is_null_with_its_reason() -> None:
    kept = recording.only_exact(FOUND, (HITS, RATE))
    assert kept.metrics.keys() == FOUND.metrics.keys()  # nothing goes without a word
    assert {name for name, value in kept.metrics.items() if value is not None} == COUNTS - {"swap_bytes"}
    assert (kept.metrics["page_faults"], kept.metrics["hit_ratio"], kept.metrics["peak_bytes"]) == (17, 0.5, 4096)
    others = FOUND.metrics.keys() - COUNTS
    # Why a count is not there is its own reason; a time is not there because the guest is emulated.
    assert kept.absent == {"swap_bytes": "it is not counted here", **dict.fromkeys(others, NOT_IN_EMULATION)}
    assert (kept.wall_s, kept.cpu_s) == (None, None)
    assert (kept.state, kept.exit_code, kept.peak_bytes) == ("accepted", 0, 4096)


def test_a_metric_that_says_nothing_of_itself_is_no_count() -> None:
    assert recording.only_exact(FOUND, ()).metrics["hit_ratio"] is None


def test_instructions_are_there_where_the_guest_counts_them() -> None:
    kept = recording.only_exact(FOUND, (HITS, RATE), 538_600_000)
    assert kept.metrics["instructions"] == 538_600_000
    assert "instructions" not in kept.absent
    assert kept.metrics["cycles"] is None


def test_an_attempt_without_figures_stays_without() -> None:
    failed = Outcome(state="failed", reason="it exited with 1", exit_code=1)
    assert recording.only_exact(failed, (HITS,)) == failed


def test_a_nanosecond_of_the_guests_clock_is_an_instruction() -> None:
    timed = probe.Result("mmap-perf", 538_600_123, {"ns_per_call": 538.6}, {})
    assert recording.instructions([timed]) == 538_600_123
    assert recording.instructions([probe.Start(1, 0, 7, "0")]) is None
