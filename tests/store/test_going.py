"""A run goes on while its process has its log, and no longer, however that process ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hugewise import open_results
from hugewise.store.folder import RunFolder
from hugewise.store.log import going_on
from hugewise.store.records import Noted
from tests.build.growing import growing


@pytest.fixture
def run(tmp_path: Path) -> Path:
    growing(tmp_path / "run")
    return tmp_path / "run"


def test_who_adds_to_a_run_has_it_until_the_folder_is_closed(run: Path) -> None:
    folder = RunFolder(run)
    assert (going_on(run), open_results(run).state) == (False, "interrupted")
    folder.append(Noted(t=1.0, text="here"))
    folder.append(Noted(t=2.0, text="still here"))
    assert (going_on(run), open_results(run).state) == (True, "running")
    folder.close()
    assert (going_on(run), open_results(run).state) == (False, "interrupted")
    folder.append(Noted(t=3.0, text="a new session"))
    assert going_on(run)
    del folder  # whoever forgets to close it
    assert not going_on(run)


def test_of_a_process_that_was_killed_the_kernel_takes_it_back(run: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from hugewise.store.folder import RunFolder;"
        "from hugewise.store.records import Noted; folder = RunFolder(Path(sys.argv[1]));"
        "folder.append(Noted(t=1.0, text='here')); print(flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(run)], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline()
            assert going_on(run)
        finally:
            process.send_signal(signal.SIGKILL)
    assert not going_on(run)


def test_what_is_no_log_goes_on_nowhere(tmp_path: Path) -> None:
    assert not going_on(tmp_path)
    os.mkfifo(tmp_path / "run.jsonl")  # which nobody waits for
    assert not going_on(tmp_path)
    (tmp_path / "run.jsonl").unlink()
    (tmp_path / "run.jsonl").symlink_to("/proc/self/status")
    assert not going_on(tmp_path)
