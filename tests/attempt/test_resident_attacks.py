"""What could make the verdict of a resident block false, or leave something behind: each was found by an attack."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from hugewise.attempt.play import Play
from hugewise.attempt.recording import stored
from hugewise.attempt.underway import Group, Work
from hugewise.machine import noise, probe
from hugewise.model.pages import PageTarget
from hugewise.model.trial import Attempt, DeliveryThreshold
from hugewise.model.workload import Launch
from tests.attempt.test_disturbances import FILES
from tests.attempt.test_runner_guests import SAID, FakeGuest, FakeMachine, Fault, bench, trial
from tests.build.hosts import Files
from tests.build.studies import an_arm, cell_of

BASE = PageTarget("base", 4096)
EVENTS = list(probe.decode(msgspec.json.encode(event) + b"\n" for event in SAID))


class OnThisHost(FakeGuest):
    """What is played without a guest: the machine's counters are of all that runs on it."""

    own = False


class Filled(Play):
    """Servers whose memory was looked at before their turns, and after."""

    served = True
    counted = "nothing was counted"

    def __init__(self, filled: Sequence[probe.Coverage] | None, coverage: Sequence[probe.Coverage]) -> None:
        self.filled, self.coverage = filled, coverage


def pages(**sizes: int) -> list[probe.Coverage]:
    """A server with so many bytes, as in `anon_4096 = 8192`."""
    seen = {name.replace("_", ":"): size for name, size in sizes.items()}
    return [probe.Coverage(7, "server", True, "kpageflags", seen, False, 1)]


def recorded(folder: Path, *plays: Play) -> list[Attempt]:
    """What is stored of the arms of one block, two of which promise base pages."""
    arms = [an_arm(name, BASE) for name in ("base", "thp")]
    cell = cell_of(Fault(), *arms, kind="resident", delivery=DeliveryThreshold(0.9, 0.1))
    works = []
    for order, (arm, play) in enumerate(zip(arms, plays, strict=True)):
        aboard = OnThisHost(FakeMachine(emulated=False))
        work = Work(arm, trial(arm.name, order), 1, folder, aboard=aboard, play=play, events=EVENTS)
        work.launch = Launch(argv=("true",), proof="live")
        works.append(work)
    group = Group(bench(folder), cell, works, iter(["01"]))
    group.before = noise.snapshot(Files(FILES))
    group.after = noise.snapshot(Files({**FILES, "/proc/38/stat": FILES["/proc/38/stat"].replace(" 100 ", " 300 ")}))
    for work in works:
        work.before, work.after = group.before, group.after
    return [stored(group, work) for work in works]


def test_pages_that_nobody_could_see_before_the_turns_are_not_proven(tmp_path: Path) -> None:
    """Else whoever had other pages at first, and lost them, would pass by what is there in the end."""
    base, huge = pages(anon_4096=8192), pages(anon_2097152=2 << 20)
    seen, unseen = recorded(tmp_path, Filled(base, base), Filled([], base))
    assert (seen.delivery.delivered, unseen.delivery.delivered) == (True, None)
    assert unseen.delivery.reason == "before its turns: no memory was found to prove it by"
    without_turns, changed = recorded(tmp_path / "again", Filled(None, base), Filled(huge, base))
    assert (without_turns.delivery.delivered, changed.delivery.delivered) == (True, False)
