"""Real hardware counters, where they can be had anywhere: QEMU's `-cpu max` for arm64 has a PMUv3, which counts cycles.

Under TCG it counts CPU_CYCLES alone: INST_RETIRED needs icount, and the events of stalls are there and stay 0 (QEMU
7.2, target/arm/helper.c, `pm_events`). So one boot shows a counter that counts, one that stays 0 over work that must
move it, and one that no event is behind. What it said stands in `recorded-arm64.json`.
"""

import os
from pathlib import Path

import msgspec
import pytest

from hugewise.guests.boot import Hosting
from hugewise.machine import probe
from hugewise.machine.pmu import schedule
from tests.guests.conftest import Bootable

RECORDED = Path(__file__).parent / "recorded-arm64.json"
TRIES = ("cycles", "cycles:u", "cycles:k", "stalls=r23", "walks=r34", "branch-misses", "instructions")


def check(said: probe.Available) -> None:
    """Cycles count, in each mode; what stays 0, and what is not there, is told so."""
    assert all(said.counters[name] is None for name in ("cycles", "cycles:u", "cycles:k"))
    zero = "it stays 0 over work that must make it count"
    assert (said.counters["stalls"], said.counters["walks"]) == (zero, zero)
    for name in ("branch-misses", "instructions"):
        assert said.counters[name] == "not offered by this processor or its hypervisor"
    assert said.slots is not None and said.slots >= 1
    refused = {label: why for label, why in said.counters.items() if why is not None}
    plan = schedule(None, said.slots, refused)
    assert any("cycles:u" in each for each in plan.sets), "what counts is counted"
    assert not any("instructions" in each for each in plan.sets)
    assert "walks" in refused and plan.left_out["instructions"] == refused["instructions"]


@pytest.mark.boots
@pytest.mark.soak
def test_an_arm64_guest_counts_and_what_stays_at_zero_is_told(arm64: Bootable, hosting: Hosting) -> None:
    with arm64.spoken(hosting) as (_, agent):
        said = agent.ask("counters", *(word for name in TRIES for word in ("--try", name)))
    assert isinstance(said, probe.Available)
    if os.environ.get("HUGEWISE_WRITE_GOLDEN") == "1":
        RECORDED.write_bytes(msgspec.json.format(msgspec.json.encode(said), indent=1) + b"\n")
    check(said)


def test_what_the_guest_said_is_read_as_it_was() -> None:
    (said,) = probe.decode([RECORDED.read_bytes().replace(b"\n", b" ") + b"\n"])
    assert isinstance(said, probe.Available)
    check(said)
