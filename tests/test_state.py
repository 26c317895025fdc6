from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hugewise.host.knob import read
from hugewise.host.local_host import LocalHost
from hugewise.model.pages import THP
from tests.requirements import need, need_root
from tests.state import changed, page_state

ENABLED = f"{THP}/enabled"

# A run in the middle of an arm, killed with the pytest that it belongs to.
_KILLED = """
import os, signal, sys
from hugewise.host.local_host import LocalHost
from hugewise.host.journal import JOURNAL, Journal
from hugewise.host.lock import HostLock
from hugewise.host.knob import Settings
host = LocalHost()
lock = HostLock(host).__enter__()
settings = Settings(host, Journal.begin(host, JOURNAL, "a killed run"))
assert settings.apply({sys.argv[1]: sys.argv[2]}) == []
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.xdist_group("host")  # nobody else may turn it meanwhile
def test_what_differs_is_named_with_both_values() -> None:
    need(Path(ENABLED).exists(), "a kernel with transparent huge pages")
    before = page_state()
    assert changed(before) == {}
    other = {**before, ENABLED: "sometimes", f"{THP}/gone": "1"}
    assert changed(other) == {ENABLED: ("sometimes", before[ENABLED]), f"{THP}/gone": ("1", None)}
    del other[ENABLED]
    assert changed(other)[ENABLED] == (None, before[ENABLED])


@pytest.mark.whole
def test_tests_begin_on_a_machine_that_is_put_back(tmp_path: Path) -> None:
    need_root()
    need(Path(ENABLED).exists(), "a kernel with transparent huge pages")
    before = page_state()
    other = "always" if read(LocalHost(), ENABLED) == "never" else "never"
    killed = subprocess.run([sys.executable, "-c", _KILLED, ENABLED, other], check=False)
    left = changed(before)
    (tmp_path / "test_nothing.py").write_text("def test_nothing(): pass\n")
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.conftest", str(tmp_path)]
    done = subprocess.run(pytest, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    assert changed(before) == {}
    assert killed.returncode == -9
    assert ENABLED in left
    assert done.returncode == 0, done.stdout
