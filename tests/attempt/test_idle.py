"""The footprint of idle servers: khugepaged's passes are waited for, in a bounded time, where it works at all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hugewise.attempt import idle
from hugewise.model.pages import THP


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
    return idle._waited(lambda: next(scans), 5.0, clock, clock.sleep), clock.now


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
    assert waited(iter([7, None]))[0] == f"{idle.SCANS} could not be read"


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
    assert idle.never_collapses({f"{THP}/{name}": value for name, value in (off | changed).items()}) is sleeps
