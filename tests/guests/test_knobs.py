"""The page settings of a guest follow the rules of those of the host, and are journalled nowhere."""

from __future__ import annotations

import pytest

from hugewise.errors import SettingError
from hugewise.guests.boarding import GuestSettings
from hugewise.model.pages import THP
from tests.build.hosts import FakeHost

ENABLED = f"{THP}/enabled"


def test_only_what_differs_is_written() -> None:
    host = FakeHost()
    settings = GuestSettings(host)
    assert settings.apply({ENABLED: "madvise"}) == []
    assert host.writes == []
    assert settings.apply({ENABLED: "always", f"{THP}/hugepages-64kB/enabled": "inherit"}) == []
    assert host.writes == [(ENABLED, "always"), (f"{THP}/hugepages-64kB/enabled", "inherit")]
    assert settings.values()[ENABLED] == "always"
    assert settings.drift() == []


def test_what_the_guest_turns_by_itself_is_drift() -> None:
    host = FakeHost()
    settings = GuestSettings(host)
    settings.apply({ENABLED: "always"})
    host.turn(ENABLED, "never")
    assert [str(each) for each in settings.drift()] == [f"{ENABLED} is never, not always"]


def test_what_the_kernel_does_not_take_is_an_error() -> None:
    settings = GuestSettings(FakeHost(capacity={2 << 20: 10}))
    with pytest.raises(SettingError, match="cannot set"):
        settings.apply({ENABLED: "sometimes"})
    with pytest.raises(SettingError, match=r"did not take .*nr_hugepages = 20: it is 10"):
        settings.apply({"/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "20"})
    with pytest.raises(SettingError, match="no such page setting"):
        settings.apply({f"{THP}/hugepages-7kB/enabled": "always"})
