from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hugewise.quantity import (
    format_duration,
    format_size,
    parse_cpus,
    parse_duration,
    parse_share,
    parse_size,
    readable_size,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64k", 65536),
        ("2M", 2 << 20),
        ("1g", 1 << 30),
        ("1.5g", 3 << 29),
        ("4096", 4096),
        (4096, 4096),
        ("1GiB", 1 << 30),
    ],
)
def test_sizes_are_powers_of_1024(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@given(st.integers(0, 1 << 62))
def test_a_size_survives_writing_and_reading(size: int) -> None:
    assert parse_size(format_size(size)) == size


@pytest.mark.parametrize(
    ("parse", "texts", "said"),
    [
        (parse_size, ("", "-1", "1x", "0.3k", "k", "1e3", "9" * 400, 1 << 63, "1 0k"), r"size|whole number"),
        (
            parse_duration,
            ("", "5", "-5s", "5 weeks", -1, float("nan"), float("inf"), 10**400, True),
            r"duration|number",
        ),
        (parse_share, ("", "%", "101%", -0.1, 1.1, "nan", float("nan"), 10**400), r"share|number"),
        (parse_cpus, ("", "a", "3-1", "1,,2", "0-3,2", "-1", "0-", "100000"), r"list of CPUs|stands twice"),
    ],
)
def test_what_is_no_quantity_is_refused(parse: Callable[[Any], object], texts: tuple[object, ...], said: str) -> None:
    for text in texts:
        with pytest.raises(ValueError, match=said):
            parse(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("20ms", 0.02), ("90s", 90), ("5m", 300), ("2h", 7200), (3, 3), (0.5, 0.5)]
)
def test_durations_are_seconds(text: str | float, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(("text", "share"), [("0.5%", 0.005), ("100%", 1), (0.25, 0.25), ("0.25", 0.25), (0, 0)])
def test_shares_lie_within_0_and_1(text: str | float, share: float) -> None:
    assert parse_share(text) == pytest.approx(share)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.085, "85 ms"), (4.2, "4.2 s"), (200, "3 min 20 s"), (7500, "2 h 05 min"), (59.99, "1 min 00 s")],
)
def test_durations_for_people(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (384 << 10, "384 KiB"), (3 << 29, "1.5 GiB"), (1 << 60, "1.049e+06 TiB")],
)
def test_a_size_for_people(size: int, text: str) -> None:
    assert readable_size(size) == text


@pytest.mark.parametrize(
    ("text", "cpus"), [("0", (0,)), ("0-3,8\n", (0, 1, 2, 3, 8)), ("14-15", (14, 15)), ("5, 2", (5, 2))]
)
def test_lists_of_cpus_are_as_the_kernel_writes_them(text: str, cpus: tuple[int, ...]) -> None:
    assert parse_cpus(text) == cpus
