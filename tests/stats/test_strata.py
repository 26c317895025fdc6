"""Evidence over strata: products, and one family over all of them."""

from __future__ import annotations

import pytest

from hugewise.stats.evidence import ALL, Carried, RunEvidence, over_strata


def run(number: int, larger: float | None, smaller: float | None, absent: str = "") -> RunEvidence:
    made = Carried(
        cell="c", arm="thp", baseline="base", metric="s", higher_is_better=False, identity={"design": "d"}, pairs=20,
        larger=larger, smaller=smaller, absent=absent,
    )  # fmt: skip
    return RunEvidence(run=f"r{number}", seed_hash=f"{number:x}", host=f"h{number}", comparisons=(made,))


def test_values_multiply_within_strata_and_over_all() -> None:
    found = over_strata({"a": [run(1, 0.1, 30), run(2, 0.1, 40)], "b": [run(3, 0.5, 2)]}, 0.05)
    assert {name: (one.larger, one.smaller) for name, (one,) in found.items()} == {
        "a": (pytest.approx(0.01), pytest.approx(1200)),
        "b": (0.5, 2),
        ALL: (pytest.approx(0.005), pytest.approx(2400)),
    }
    assert {name: one.verdict for name, (one,) in found.items()} == {"a": "better", "b": "undecided", ALL: "better"}
    # Six nulls: the set with the least mean that holds it is it with all but the 1,200.
    assert found[ALL][0].adjusted == pytest.approx((2400 + 2 + 0.5 + 0.01 + 0.005) / 5)


def test_one_stratum_is_not_counted_twice() -> None:
    found = over_strata({"a": [run(1, 0.1, 30)]}, 0.05)
    assert found["a"] == found[ALL]
    assert found["a"][0].adjusted == pytest.approx((30 + 0.1) / 2)


def test_what_one_stratum_lacks_refuses_it_and_the_whole_alone() -> None:
    lacking = run(3, None, None, "pages were not delivered")
    found = over_strata({"a": [run(1, 0.1, 30), run(2, 0.1, 40)], "b": [lacking]}, 0.05)
    assert {name: one.direction for name, (one,) in found.items()} == {"a": "smaller", "b": "refused", ALL: "refused"}
    assert "pages were not delivered" in found[ALL][0].reason


def test_the_same_coins_twice_are_refused() -> None:
    with pytest.raises(ValueError, match="given twice"):
        over_strata({"a": [run(1, 1, 1)], "b": [run(1, 1, 1)]}, 0.05)
    with pytest.raises(ValueError, match="name"):
        over_strata({"": [run(1, 1, 1)]}, 0.05)
