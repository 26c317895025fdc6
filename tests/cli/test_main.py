"""What holds for every verb: output that nobody takes, and a working directory that is gone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.cli.conftest import HUGEWISE
from tests.requirements import need


def test_output_that_nobody_takes_is_no_traceback() -> None:
    need(Path("/dev/full").exists(), "/dev/full")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*HUGEWISE, "list", "metrics"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert done.stderr.startswith("hugewise: ")
    assert "No space left on device" in done.stderr
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*HUGEWISE, "list", "metrics"], stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_working_directory_that_is_gone_is_said(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    code = f"import os; os.chdir({str(tmp_path / 'gone')!r}); os.rmdir({str(tmp_path / 'gone')!r}); import sys; "
    code += "sys.argv = ['hugewise', 'list', 'studies']; sys.path.pop(0); from hugewise.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "the working directory was removed" in done.stderr
