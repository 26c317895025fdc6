"""`tools/walk.py` on a package that is written here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parents[1] / "tools" / "walk.py"
FILES = {
    "__init__": "from pkg.near import helper\n",
    "start": """
from pkg import far, helper
import pkg.near as close

def run(study, *, other=None):
    from pkg.late import lazily
    helper(study)
    far.away(len(other), deep=study.parts)
    known = study.name
    lazily(far.named(known), known)
    for part in study.parts:
        room = close.Room(part)
        room.enter(other)
    helper(study)
""",
    "near": """
class Refused(Exception): pass

class Room:
    def __init__(self, part): self._keep(part)
    def _keep(self, thing): print(thing)
    def enter(self, other): raise Refused(other)

def helper(given): return given
""",
    "far": """
from dataclasses import dataclass
from . import near

@dataclass
class Card:
    first: int
    text: str

def away(count, deep):
    room: near.Room = near.Room(count)
    room.enter(deep)
    Card(count, deep)

def named(name): return near.helper(name)
""",
    "late": "def lazily(first, second): pass\n",
}
WALK = """\
pkg.start: run(study)
pkg.near: helper(given)
pkg.start: back
pkg.far: away(deep)
pkg.near: Room.enter(other)
pkg.far: Card(text)
pkg.start: back
pkg.far: named(name)
pkg.start: back
pkg.late: lazily(second)
pkg.start: back
pkg.near: Room.__init__(part), Room._keep(thing)
pkg.start: back

9 entries, 13 stays in 4 files, 9 returns
  pkg.start: 6 stays, 5 returns
  pkg.near: 3 stays, 2 returns
  pkg.far: 3 stays, 2 returns
  pkg.late: 1 stays, 0 returns
"""


def walked(src: Path, start: str) -> str:
    command = [sys.executable, str(TOOL), "--src", str(src), start]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_value_is_followed_through_imports_methods_and_names(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    for name, text in FILES.items():
        (tmp_path / "pkg" / f"{name}.py").write_text(text, encoding="utf-8")
    assert walked(tmp_path, "pkg.start:run:study") == WALK
    # Another parameter goes another way: its length is not it.
    assert walked(tmp_path, "pkg.start:run:other").splitlines()[-2:] == [
        "  pkg.start: 2 stays, 1 returns",
        "  pkg.near: 1 stays, 0 returns",
    ]
