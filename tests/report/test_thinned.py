"""Figures of large runs draw some of the points, and say so; what a reader would miss stands."""

from __future__ import annotations

from hugewise.report.figures.theme import MOST, Point, thinned, thinning


def drawn(count: int, odd: frozenset[int] = frozenset(), arm: str = "thp") -> list[Point]:
    """Attempts of one arm, whose values fall and rise; those in `odd` were not delivered."""
    return [
        Point(arm, number, float((number * 7919) % count), float(number), _state(number in odd), number == 0)
        for number in range(count)
    ]


def _state(odd: bool) -> str:
    return "not delivered" if odd else "counted"


def test_few_points_are_drawn_all_and_nothing_is_said() -> None:
    points = drawn(MOST)
    assert thinned(points) == points
    assert thinning(points) == ""


def test_of_many_points_the_extremes_and_what_did_not_count_stand() -> None:
    points = drawn(10_000, odd=frozenset({5, 5000, 9999}))
    some = thinned(points)
    assert len(some) <= MOST
    assert some == sorted(some, key=lambda point: point.block)
    assert {5, 5000, 9999} <= {point.block for point in some}
    counted = sorted(point.value or 0.0 for point in points if point.state == "counted")
    assert {*counted[:15], *counted[-15:]} <= {point.value for point in some}
    assert f"{len(some)} of 10,000 points are drawn" in thinning(points)


def test_what_did_not_count_does_not_crowd_out_the_others() -> None:
    points = drawn(10_000, odd=frozenset(range(0, 10_000, 2)))
    states = [point.state for point in thinned(points)]
    assert 0 < states.count("not delivered") <= MOST // 3
    assert states.count("counted") >= MOST // 2


def test_each_arm_has_its_own_share() -> None:
    few, many = drawn(10, arm="base"), drawn(5_000)
    some = thinned([*few, *many])
    assert [point for point in some if point.arm == "base"] == few
