"""A run in a process of its own, which does something to itself or to the host at a chosen step.

python -m tests.drive run|resume PATH RESULTS --at STEP --nth N --do kill|interrupt|hold|write=PATH=VALUE
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from hugewise.errors import HugewiseError
from hugewise.session import session
from hugewise.study.load import load


def only_run(results: Path) -> Path:
    """The folder of the only run there, beside the data of workloads."""
    (path,) = (path for path in results.glob("*/*") if path.parent.name != "data")
    return path


def words(verb: str, path: Path, results: Path, *extra: str) -> list[str]:
    """The command that does it in a process of its own."""
    return [sys.executable, "-m", "tests.drive", verb, str(path), str(results), *extra]


def drive(verb: str, path: Path, results: Path, *extra: str, timeout: float = 140) -> subprocess.CompletedProcess[str]:
    """Do it in a process of its own, and wait for its end. It is a fork: nothing is imported again."""
    asked = [verb, str(path), str(results), *extra]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err, Path(os.devnull).open() as none:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                for number, file in enumerate((none, out, err)):
                    os.dup2(file.fileno(), number)
                sys.stdout, sys.stderr = out, err
                status = main(asked)
            except BaseException:  # as at the end of any program
                traceback.print_exc(file=err)
            finally:
                out.flush()
                err.flush()
                os._exit(status)
        end, ended, status = time.monotonic() + timeout, 0, 0
        while not ended and time.monotonic() < end:
            ended, status = os.waitpid(child, os.WNOHANG)
            time.sleep(0 if ended else 0.01)
        if not ended:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise subprocess.TimeoutExpired(asked, timeout)
        said = [os.pread(file.fileno(), 1 << 24, 0).decode() for file in (out, err)]
    return subprocess.CompletedProcess(asked, os.waitstatus_to_exitcode(status), *said)


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


def main(asked: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=["run", "resume"])
    parser.add_argument("path", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--at", default="")
    parser.add_argument("--nth", type=int, default=1)
    parser.add_argument("--do", default="")
    chosen = parser.parse_args(asked)
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
