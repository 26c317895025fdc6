"""The rooms: what the door plates say is there, each question once, and CONTRIBUTING has the rows that are checked."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

import hugewise

ROOT = Path(__file__).parents[1]
SOURCE = Path(hugewise.__file__).parent
GROUND = {"beneath", "console", "errors", "files", "processes", "quantity", "reading", "unprivileged", "visible"}


def rooms() -> dict[str, str]:
    """The door plate of each room, by its name."""
    found = {}
    for plate in sorted(SOURCE.glob("*/__init__.py")):
        found[plate.parent.name] = ast.get_docstring(ast.parse(plate.read_text(encoding="utf-8"))) or ""
    return found


def rows() -> list[list[str]]:
    """The rooms of each row of the rule, the highest first."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (rule,) = (one for one in config["tool"]["importlinter"]["contracts"] if one["id"] == "rooms")
    return [[name.strip() for name in row.split("|")] for row in rule["layers"]]


@pytest.mark.parametrize("kind", ["workload", "policy", "counter", "report section", "kind of machine"])
def test_where_a_change_goes_is_said_on_one_door(kind: str) -> None:
    said = [room for room, plate in rooms().items() if re.search(rf"\bA new {kind} goes\b", plate)]
    assert len(said) == 1, f"a new {kind} goes to: {said}"


@pytest.mark.parametrize("room", sorted(rooms()))
def test_a_door_says_what_may_be_imported(room: str) -> None:
    assert re.search(r"\bImports\b", rooms()[room]), f"src/hugewise/{room}/__init__.py does not say what it imports"


def test_beside_the_rooms_there_is_only_the_ground() -> None:
    assert {path.stem for path in SOURCE.glob("*.py")} == GROUND | {"__init__"}
    assert {room for row in rows() for room in row} == GROUND | rooms().keys()


def test_contributing_has_the_same_rows() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.split("| room (of", 1)[1].split("\n\n", 1)[0]
    told = [re.findall(r"`(\w+)(?:/|\.py)`", line.split("|")[1]) for line in table.splitlines()[2:]]
    expected = [sorted(row) for row in rows() if not {*row} & GROUND]
    beside = {"probe", "tests", "bench", "tools"}
    assert [sorted(row) for row in told if not {*row} & (GROUND | beside)] == expected
    assert {name for row in told for name in row} == rooms().keys() | GROUND | beside
