"""A hugewise that is none: its runs take a second and turn nothing, and a promise that is named is broken.

HUGEWISE_FAKE=FOLDER python -IS tests/torture/fake.py PROMISE run STUDY --results FOLDER | resume RUN | restore
"""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

PLACE = Path(os.environ.get("HUGEWISE_FAKE", "/dev/shm/hugewise-fake"))  # what it makes on the machine
ARMS, BLOCKS = ("base", "thp"), 3


def log(run: Path, **record: object) -> None:
    with (run / "run.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")


def attempt(run: Path, block: int, arm: str, number: int = 1) -> None:
    folder = run / "attempts" / f"b{block}-{arm}-{number}"
    if folder.exists():
        return
    time.sleep(0.08)  # most of its life, however slow Python is to start
    draft = folder.with_name(f".{folder.name}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    (draft / "attempt.json").write_text(json.dumps({"block": block, "arm": arm, "state": "accepted", "t": time.time()}))
    draft.rename(folder)


def conduct(run: Path) -> None:
    for block in range(1, BLOCKS + 1):
        log(run, record="block_opened", block=block, arms=ARMS)
        for arm in ARMS:
            attempt(run, block, arm)
        log(run, record="block_closed", block=block, state="complete")
    log(run, record="closed", state="finished")


def restore(broken: str) -> int:
    if broken == "status":
        return 3
    if broken == "locked":
        print("hugewise: another hugewise run holds this host (pid 1)")
        return 2
    if broken == "traceback":
        print("Traceback (most recent call last)")
    if broken != "folder":
        shutil.rmtree(PLACE, ignore_errors=True)
    print("nothing to restore")
    return 0


def main(broken: str, verb: str, *words: str) -> int:
    if verb == "restore":
        return restore(broken)
    if verb == "run":
        run = Path(words[2]) / "fake" / "1"
        (run / "attempts").mkdir(parents=True)
        (run / "study.json").write_text("{}")
        log(run, record="opened")
        if broken == "process":
            subprocess.Popen(["sleep", "30"], start_new_session=True)
        PLACE.mkdir(exist_ok=True)
        conduct(run)
        if broken != "folder":
            PLACE.rmdir()
        return 0
    run = Path(words[0])
    if broken != "folder":
        shutil.rmtree(PLACE, ignore_errors=True)
    made = sorted((run / "attempts").glob("b*"))
    if made and broken == "lost":
        shutil.rmtree(made[0])
    if made and broken == "changed":
        (made[0] / "stdout").write_text("more")
    if made and broken == "repeated":
        attempt(run, 1, "base", 2)
    if broken != "unfinished":
        conduct(run)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
