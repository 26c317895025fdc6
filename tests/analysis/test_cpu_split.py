"""The kernel's share of the CPU time that an arm saves, on pairs whose times are known."""

import numpy as np
import pytest

from hugewise.analysis.causes import cpu_split


def pairs(kernel: float, all_: float, *, count: int = 40, sd: float = 0.01) -> list[tuple[float, float]]:
    random = np.random.default_rng(3)
    return [
        ((system := kernel + float(random.normal(0, sd))), system + all_ - kernel + float(random.normal(0, sd)))
        for _ in range(count)
    ]


@pytest.mark.parametrize(
    ("kernel", "all_", "told"), [(0.4, 0.4, "faults"), (0.0, 0.4, "walks"), (0.2, 0.4, "both"), (-0.4, -0.4, "faults")]
)
def test_the_larger_part_is_told(kernel: float, all_: float, told: str) -> None:
    found = cpu_split(pairs(kernel, all_), 40)
    assert found.told == told
    assert found.low is not None and found.high is not None and found.saved is not None
    assert found.low <= kernel / all_ <= found.high
    assert found.saved == pytest.approx(all_, abs=0.01)


def test_what_the_pairs_do_not_show_is_not_told() -> None:
    nothing = cpu_split(pairs(0.0, 0.0), 40)
    assert (nothing.told, nothing.why, nothing.would) == (
        "",
        "its CPU time is not seen to differ",
        "more pairs than 40",
    )
    few = cpu_split(pairs(0.4, 0.4, count=2), 2)
    assert few.told == ""
    assert cpu_split([], 40).why == "the kernel's part of its CPU time was not counted"
