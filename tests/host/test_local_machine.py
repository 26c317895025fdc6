"""This host as a machine; what it has in common with others is in tests/machine/test_machines.py."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
from pathlib import Path

import pytest

from hugewise import reading
from hugewise.host.local_machine import LocalLauncher, LocalMachine


def test_it_is_no_guest() -> None:
    here = LocalMachine()
    assert (here.emulated, here.counters) == (False, True)
    assert set(here.cpus()) == os.sched_getaffinity(0)


def test_a_launcher_can_be_waited_for_by_its_descriptor() -> None:
    running = LocalLauncher(subprocess.Popen(["/bin/sleep", "60"]))
    assert running.poll() is None
    with pytest.raises(TimeoutError):
        running.wait(0.01)
    running.terminate()
    assert select.select([running.fileno()], [], [], 20)[0]
    assert running.wait() == running.poll() == -signal.SIGTERM
    running.terminate()
    running.kill()  # nothing happens to what has ended
    running.close()
    running.close()


def test_many_large_outputs_are_too_much_together(tmp_path: Path) -> None:
    for number in range(5):
        with (tmp_path / f"{number}.log").open("wb") as file:
            file.truncate(reading.MOST)
    found = LocalMachine().files(str(tmp_path), re.compile(r".*\.log"))
    for _ in range(4):
        assert len(next(found)) == reading.MOST
    with pytest.raises(reading.UnreadableError, match="they have more than 1073741824 bytes in all"):
        next(found)
