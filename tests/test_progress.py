from __future__ import annotations

from tests.progress import HERE, PARTS, part, spent


def test_every_part_has_its_seconds() -> None:
    assert {part(path) for path in HERE.rglob("test_*.py")} == PARTS.keys()


def test_times_are_said_as_people_say_them() -> None:
    assert [spent(seconds) for seconds in (0.4, 89, 91, 1500)] == ["0 s", "89 s", "2 min", "25 min"]
