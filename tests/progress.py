"""What a run of the tests is about to do and how long it takes, said at its start, and a line a part as it goes on.

A part is a folder of tests/ ("." are the files beside this one). PARTS has the seconds of each on 2 cores with nothing
beside: scaled, from runs beside other work, to the 25 minutes of all. HUGEWISE_RECORD_PARTS=1 prints what they took.
"""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest

__all__ = ["Parts", "part"]

HERE = Path(__file__).parent
PARTS = {
    ".": 40, "advise": 180, "analysis": 60, "attempt": 30, "audit": 10, "cli": 35, "deployment": 3, "external": 15,
    "fleet": 40, "fuzz": 90, "guests": 540, "host": 30, "inspection": 8, "machine": 10, "model": 5, "plan": 5,
    "policies": 10, "published": 2, "report": 60, "servers": 330, "session": 155, "stats": 130, "store": 5,
    "study": 15, "torture": 100, "verification": 60, "workloads": 40,
}
            terminalreporter.write_line(f"PARTS = {table}")
