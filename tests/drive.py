"""A run in a process of its own, which does something to itself or to the host at a chosen step.

python -m tests.drive run|resume PATH RESULTS --at STEP --nth N --do kill|interrupt|hold|write=PATH=VALUE
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from hugewise.errors import HugewiseError
from hugewise.session import session
from hugewise.study.load import load


def words(verb: str, path: Path, results: Path, *extra: str) -> list[str]:
    """The command that does it in a process of its own."""
    return [sys.executable, "-m", "tests.drive", verb, str(path), str(results), *extra]


def drive(verb: str, path: Path, results: Path, *extra: str) -> subprocess.CompletedProcess[str]:
    """Do it in a process of its own, and wait for its end."""
    return subprocess.run(words(verb, path, results, *extra), capture_output=True, text=True, check=False, timeout=140)


def at_step(step: str, nth: int, do: str) -> Callable[[str], None]:
    """The function that is told of each step, and acts at the nth `step`."""
    seen = 0

    def on_step(name: str) -> None:
        nonlocal seen
        seen += name == step
        if name != step or seen != nth:
            return
        if do == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif do == "interrupt":
            os.kill(os.getpid(), signal.SIGINT)
        elif do == "hold":
            print("holding", flush=True)
            time.sleep(60)
        else:
            _, path, value = do.split("=")
            Path(path).write_text(value)

    return on_step


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=["run", "resume"])
    parser.add_argument("path", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--at", default="")
    parser.add_argument("--nth", type=int, default=1)
    parser.add_argument("--do", default="")
    chosen = parser.parse_args()
    on_step = at_step(chosen.at, chosen.nth, chosen.do)
    try:
        if chosen.verb == "run":
            folder = session.run(
                load(chosen.path), chosen.results, on_step=on_step, listener=lambda e: print(e, file=sys.stderr)
            )
        else:
            folder = session.resume(chosen.path, on_step=on_step)
    except HugewiseError as error:
        print(f"{type(error).__name__}: {error.message} [{error.hint}]")
        return error.exit_code
    print(folder.path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
