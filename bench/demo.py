"""Count the comparisons that the demo decides, quiet and beside two busy loops.

    python -m bench.demo

Each run is `hugewise run studies/demo.toml` into a folder of its own. The status is 1 where more than OPEN of its
comparisons are undecided, a cell has no answer, or the run takes longer than LONGEST seconds.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from hugewise.model.results import DECIDED, Results

HERE = Path(__file__).parent.parent
OPEN = 1  # comparisons that may stay undecided
LONGEST = 240.0
LOOPS = 2


class Found(NamedTuple):
    """Comparisons that one run of the demo decided, and the seconds that the command took."""

    decided: int
    comparisons: int
    answered: int
    cells: int
    seconds: float

    @property
    def good(self) -> bool:
        return self.decided >= self.comparisons - OPEN and self.answered == self.cells and self.seconds <= LONGEST


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """Run `loops` endless loops of a shell during the block."""
    with ExitStack() as running:
        for _ in range(loops):
            process = running.enter_context(subprocess.Popen(["/bin/sh", "-c", "while :; do :; done"]))
            running.callback(process.kill)
        yield


def run(study: Path = HERE / "studies" / "demo.toml") -> Found:
    """Run the demo. Raises CalledProcessError where it fails."""
    with tempfile.TemporaryDirectory(prefix="hugewise-demo-") as folder:
        began = time.monotonic()
        command = [str(Path(sys.executable).parent / "hugewise"), "run", str(study), "--results", folder]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds = time.monotonic() - began
        (report,) = Path(folder).glob("*/*/report.json")
        return found(report.read_bytes(), seconds)


def found(report: bytes, seconds: float) -> Found:
    """Return the decided comparisons of a `report.json`. A cell with none open, or a better one, has an answer."""
    results = msgspec.json.decode(report, type=Results)
    states = [one["state"] for one in msgspec.json.decode(report)["answers"]]
    verdicts = [one.verdict for cell in results.cells for one in cell.judged]
    decided, answered = (
        sum(verdict in DECIDED for verdict in verdicts),
        sum(state in ("set", "weigh", "leave") for state in states),
    )
    return Found(decided, len(verdicts), answered, len(states), seconds)


def told(name: str, one: Found) -> str:
    """Return a line of the table."""
    return (
        f"  {name:24} {one.decided} of {one.comparisons} comparisons decided, {one.answered} of {one.cells} cells"
        f" answered, {one.seconds:.0f} s{'' if one.good else '   below the target'}"
    )


def main() -> int:
    """Print both runs; 1 where one of them is below the target."""
    print(f"the demo (target: all comparisons but {OPEN}, and every cell, within {LONGEST:.0f} s)")
    ran: list[Found] = []
    for name, loops in (("quiet", 0), (f"beside {LOOPS} busy loops", LOOPS)):
        with busy(loops):
            ran.append(run())
        print(told(name, ran[-1]), flush=True)
    return 0 if all(one.good for one in ran) else 1


if __name__ == "__main__":
    sys.exit(main())
