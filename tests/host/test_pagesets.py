"""The lists of free pages of each CPU: they are emptied for a moment, and the setting is put back whatever happens."""

import errno

import pytest

from hugewise.errors import StorageError
from hugewise.host import memory_state
from hugewise.host.ledger import Draining
from tests.build.hosts import FakeHost, Killed

# Of /proc/zoneinfo of Linux 6.18, the lines about one CPU of a zone.
_ZONE = """\
Node 0, zone   Normal
  pages free     3935
        boost    0
  pagesets
    cpu: 0
              count:    {count}
              high:     14
              batch:    63
  vm stats threshold: 6
"""


class Lists(FakeHost):
    """Its lists keep so many pages at each look; the last number stays."""

    def __init__(self, *counts: int) -> None:
        super().__init__()
        self.numbers[memory_state.FRACTION] = 8  # as an administrator chose it
        self.counts = list(counts)
        self.looks = 0
        self.refuses = False

    def read(self, path: str) -> str:
        if path != "/proc/zoneinfo":
            return super().read(path)
        self.looks += 1
        return _ZONE.format(count=self.counts.pop(0) if len(self.counts) > 1 else self.counts[0])

    def write(self, path: str, text: str) -> None:
        if self.refuses:
            raise OSError(errno.EINVAL, "Invalid argument", path)
        super().write(path, text)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_state, "_PAUSE_S", 0.0)


def test_the_lists_are_emptied_and_the_setting_is_as_it_was() -> None:
    host, noted = Lists(37_000, 5_000, 1_000), list[Draining]()
    memory_state.drain(host, lambda one: noted.append(one) if not host.writes else None)
    assert noted == [Draining("8")]  # before anything was turned
    assert host.writes == [(memory_state.FRACTION, "1000000"), (memory_state.FRACTION, "8")]
    assert host.looks == 3


def test_lists_that_stay_full_are_waited_for_in_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_state, "_DRAIN_S", 0.0)
    host = Lists(37_000)
    memory_state.drain(host, lambda _: None)
    assert (host.looks, host.numbers[memory_state.FRACTION]) == (1, 8)


def test_a_kernel_without_the_setting_or_that_refuses_it_keeps_the_lists() -> None:
    host, noted = Lists(37_000), list[Draining]()
    host.refuses = True
    memory_state.drain(host, noted.append)
    assert (host.looks, host.writes) == (0, [])
    del host.numbers[memory_state.FRACTION]
    noted.clear()
    memory_state.drain(host, noted.append)
    assert noted == []


def test_nothing_is_turned_that_the_journal_has_not() -> None:
    def full(_: Draining) -> None:
        raise StorageError("disk full")

    host = Lists(37_000)
    with pytest.raises(StorageError):
        memory_state.drain(host, full)
    assert host.writes == []


def test_a_run_that_was_killed_meanwhile_is_put_back_once_and_what_others_chose_stays() -> None:
    host = Lists(0)
    host.dies_at = 1  # after the setting was turned
    with pytest.raises(Killed):
        memory_state.drain(host, lambda _: None)
    host.dies_at = None
    assert host.numbers[memory_state.FRACTION] == 1_000_000
    assert memory_state.put_back(host, "8") is True
    assert host.numbers[memory_state.FRACTION] == 8
    assert memory_state.put_back(host, "8") is False
    host.numbers[memory_state.FRACTION] = 100
    assert memory_state.put_back(host, "8") is False
    assert host.numbers[memory_state.FRACTION] == 100
