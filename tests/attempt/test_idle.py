"""The footprint of idle servers: khugepaged's passes are waited for, in a bounded time, where it works at all."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from hugewise.attempt import service
from hugewise.host.knob import Settings
from hugewise.machine.machine import Drift
from hugewise.model.pages import THP
from tests.build.hosts import FakeHost, Notes


class Clock:
    """Seconds that only sleeping makes pass."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def waited(scans: Iterator[int | None]) -> tuple[str | None, float]:
    clock = Clock()
    return service._waited(lambda: next(scans), 5.0, clock, clock.sleep), clock.now


def test_two_passes_are_enough_and_no_more_is_waited_for() -> None:
    why, after = waited(iter([7, 7, 8, 9]))
    assert why is None
    assert after == pytest.approx(0.04)


def test_the_time_is_bounded_and_the_reason_says_how_far_it_came() -> None:
    def one_pass() -> Iterator[int]:
        yield 7
        while True:
            yield 8

    why, after = waited(one_pass())
    assert why == "khugepaged ended 1 of 2 passes within 5 s"
    assert 5.0 <= after < 5.1


def test_what_cannot_be_read_has_its_reason() -> None:
    assert waited(iter([7, None]))[0] == f"{service.SCANS} could not be read"


@pytest.mark.parametrize(
    ("changed", "sleeps"),
    [
        ({}, True),
        ({"hugepages-2048kB/enabled": "inherit"}, True),
        ({"hugepages-2048kB/enabled": "always"}, False),
        ({"enabled": "madvise"}, False),
        ({"shmem_enabled": "always"}, False),
        ({"hugepages-64kB/shmem_enabled": "within_size"}, False),
    ],
)
def test_khugepaged_works_where_any_size_is_on(changed: dict[str, str], sleeps: bool) -> None:
    off = {
        "enabled": "never",
        "shmem_enabled": "never",
        "hugepages-2048kB/enabled": "never",
        "khugepaged/scan_sleep_millisecs": "10000",
    }
    assert service.never_collapses({f"{THP}/{name}": value for name, value in (off | changed).items()}) is sleeps


class Scanning(FakeHost):
    """Its khugepaged ends a pass whenever it is looked at, once it scans without pauses."""

    def __init__(self, *, root: bool = True) -> None:
        super().__init__(root=root)
        self.numbers[service.SLEEP] = 10_000

    def read(self, path: str) -> str:
        if path == service.SCANS and path in self.fixed and self.numbers.get(service.SLEEP) == 0:
            self.fixed[path] = str(int(self.fixed[path]) + 1)
        return super().read(path)


def passed(host: FakeHost, patience: float = 60.0, settings: Settings | None = None, **turned: str) -> tuple[Any, Any]:
    """Why khugepaged has not passed twice, and the drift that the group is told."""
    knobs = settings or Settings(host, Notes() if host.root else None)
    group: Any = SimpleNamespace(drift=[])
    treatment = SimpleNamespace(knobs={f"{THP}/{name}": value for name, value in turned.items()})
    work: Any = SimpleNamespace(site=SimpleNamespace(host=host, knobs=knobs), arm=SimpleNamespace(treatment=treatment))
    return service._passed(group, work, patience), group.drift


def test_khugepaged_is_hurried_and_passes_twice_under_the_arms_own_knobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_LOOK_S", 0.0)
    host = Scanning()
    settings = Settings(host, Notes())
    assert passed(host, settings=settings, enabled="always") == (None, [])
    assert host.numbers[service.SLEEP] == 0
    assert host.choices[f"{THP}/enabled"][1] == "always"
    settings.apply({})  # the next attempt's knobs are turned
    assert host.numbers[service.SLEEP] == 10_000


def test_khugepaged_that_cannot_be_hurried_says_how_far_it_came() -> None:
    assert passed(Scanning(root=False), patience=0.0) == ("khugepaged ended 0 of 2 passes within 0 s", [])
    host = Scanning()
    del host.numbers[service.SLEEP]  # a kernel without that file is waited for as it is
    assert passed(host, patience=0.0)[0] == "khugepaged ended 0 of 2 passes within 0 s"
    assert host.writes == []


def test_khugepaged_that_has_nothing_to_do_is_not_waited_for() -> None:
    host = Scanning()
    for path in [path for path in host.choices if path.endswith("enabled")]:
        host.choices[path] = (host.choices[path][0], "never")
    assert passed(host, patience=0.0) == (None, [])
    assert host.writes == []


def test_a_kernel_that_counts_no_passes_says_so() -> None:
    host = Scanning()
    del host.fixed[service.SCANS]
    assert passed(host) == (f"{service.SCANS}: not there", [])


def test_knobs_that_others_turned_or_that_are_refused_are_the_reason() -> None:
    host = Scanning()
    settings = Settings(host, Notes())
    host.numbers[service.SLEEP] = 5_000
    found = Drift(service.SLEEP, "10000", "5000")
    assert passed(host, settings=settings) == (f"somebody else turned knobs: {found}", [found])
    why, drift = passed(Scanning(), enabled="sometimes")
    assert why.startswith("khugepaged could not be hurried: ")
    assert drift == []
