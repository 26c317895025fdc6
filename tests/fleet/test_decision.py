"""What is looked at again is all that needs it: after each event the same is decided as by looking at every host."""

from collections import Counter
from pathlib import Path

import pytest

from bench import placement
from hugewise.fleet.decision import Act, Agenda, Decider, Decision

ALL = 1 << 30


class Compared:
    """Every decision is held against that of an agenda which knows nothing, and so looks at all hosts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: Counter[str] = Counter()
        decide = Agenda.decide

        def held(agenda: Agenda, now: float, most: int) -> list[Decision]:
            moment = agenda._moment
            anew = Agenda(moment.state, moment.view, moment.rules)
            wanted = decide(anew, now, ALL)
            found = decide(agenda, now, most)
            acts = [one for one in found if isinstance(one, Act)]
            if len(acts) < len(found):  # one that is written down: of several it may be another one first
                assert len(found) == 1 and wanted and not isinstance(wanted[0], Act), (found, wanted)
            else:
                told = [one for one in wanted if isinstance(one, Act)]
                assert len(told) == len(wanted) and len(acts) == min(most, len(told)), (found, wanted)
                assert set(acts) <= set(told)
                assert agenda.waits() == anew.waits()
            self.seen.update(type(one).__name__ for one in found)
            return found

        monkeypatch.setattr(Agenda, "decide", held)


@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (3, 4))])
def test_the_same_is_decided_as_by_looking_at_every_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Hosts that die and come back; in half of the fleets one never does."""
    compared = Compared(monkeypatch)
    gone, wait = (0, 120.0) if seed % 2 else (1, 3.0)
    played = placement.played(tmp_path, seed, hosts=15, killed=4, gone=gone, wait=wait)
    assert played.doubled == 0 and (played.lost == 0 or not seed % 2)
    assert compared.seen["Act"] > 75 and compared.seen["Assign"] >= 15 and compared.seen["Close"] >= 1


def test_each_event_has_its_own_host_looked_at_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: Counter[str] = Counter()
    written = Decider.of_host

    def counted(decider: Decider, name: str) -> Decision | None:
        looked[name] += 1
        return written(decider, name)

    monkeypatch.setattr(Decider, "of_host", counted)
    played = placement.played(tmp_path, 1, hosts=25, killed=0)
    done = len(played.decided)
    assert played.lost == 0 and done > 125
    assert sum(looked.values()) < 3 * done  # all of them at each would be 25 times as many
    assert max(looked.values()) < 40
