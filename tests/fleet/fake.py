"""A hugewise that a keeper starts in the place of the real one: it says what a run says, and ends as it is told.

What it does stands in `fake.json` beside the results: for each call of run or resume, how it ends, and after how many
blocks. It is a run as far as a keeper looks: a log, whose last record is there when it has ended.
"""

import json
import os
import shutil
import signal
import sys
from pathlib import Path

RECORDED = Path(__file__).parents[1] / "golden/runs/ended"  # `tests.fleet.hosts` would take long to import
THIS = (sys.executable, "-m", "tests.fleet.fake")


def main() -> None:
    verb, *words = sys.argv[1:]
    if verb == "fleet":  # as `begin_keeping` has it
        from hugewise.fleet.keeper import Keeper
        from hugewise.fleet.spool import SpoolEntry

        os.set_inheritable(int(words[2]), False)
        Keeper(SpoolEntry(Path(words[1])), THIS, (0.05,), 0.3).keep()
        return
    if verb == "restore":
        print("nothing to restore")
        return
    if verb == "run":
        results = Path(words[words.index("--results") + 1])
        run = results / "old" / "20261122T125547Z-548a"
        run.mkdir(parents=True)
        write_blocks(run, 0)
    else:
        run = Path(words[0])
        results = run.parents[1]
    told = results.parent / "calls.txt"
    with told.open("a") as file:
        file.write(f"{verb} {' '.join(words)}\n")
    plan = json.loads((results.parents[1] / "fake.json").read_text())
    acts = plan[min(len(told.read_text().splitlines()), len(plan)) - 1]
    conducted(acts, run)


def write_blocks(run: Path, closed: int) -> None:
    """Write the log as it is when so many blocks are closed."""
    lines = (RECORDED / "run.jsonl").read_bytes().splitlines(keepends=True)
    ends = [0, *(number for number, line in enumerate(lines) if line.startswith(b'{"record":"block_closed"'))]
    draft = run / ".run.jsonl"
    draft.write_bytes(b"".join(lines[: ends[closed] + 1]))
    draft.rename(run / "run.jsonl")


def conducted(acts: dict[str, object], run: Path) -> None:
    try:
        for number in range(int(str(acts.get("blocks", 0)))):
            write_blocks(run, number + 1)
        if acts["end"] == "wait":
            signal.pause()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    if acts["end"] == "done":
        shutil.copytree(RECORDED, run, dirs_exist_ok=True)
        print("Finished")
        return
    print(f"hugewise: {acts['end']}", file=sys.stderr, flush=True)
    if acts["end"] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(int(str(acts["status"])))


def terminated(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, terminated)
    main()
