"""What is flat and what is not, of samples that are known."""

import pytest

from hugewise.errors import HugewiseError
from tools.torture.cases import judge

MIB = 1 << 20


def rows(grow: float, n: int = 500, jump: float = 0.0) -> list[list[float]]:
    """Samples of a process that grows by the share `grow` over them, and once jumps by a share of it."""
    size = [100 * MIB * (1 + grow * i / n + 0.002 * (i % 3) + (jump if i == n - 20 else 0)) for i in range(n)]
    warming = [50 * MIB + 1 * MIB * i for i in range(40)]
    return [[one, 2 * one, 12 + i % 2, 3] for i, one in enumerate([*warming, *size])]


def test_what_is_flat_after_warm_up_passes() -> None:
    assert all(one.flat for one in judge(rows(0.02)))


def test_what_grows_is_seen() -> None:
    found = judge(rows(0.2))
    assert [one.flat for one in found] == [False, False, True, True]
    assert found[0].growth == pytest.approx(0.13, abs=0.03)


def test_a_peak_is_seen() -> None:
    found = judge(rows(0.0, jump=0.3))
    assert not found[0].flat
    assert found[0].peak == pytest.approx(0.3, abs=0.02)
    assert found[0].growth < 0.01


def test_too_few_samples_are_no_judgement() -> None:
    with pytest.raises(HugewiseError, match="too few"):
        judge(rows(0.0)[:20])
