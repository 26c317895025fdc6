"""What the tests themselves stand on: tests that are repeated, the page state, and waits."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hugewise.errors import MachineError
from hugewise.host.knob import read
from hugewise.host.local_host import LocalHost
from hugewise.model.pages import HUGETLB, THP
from tests.again import Again, BrowserError, noted
from tests.conftest import TURNED, pytest_itemcollected
from tests.requirements import need, need_root
from tests.state import changed, page_state
from tests.wait import until

HERE = Path(__file__).parent
ALONE = [sys.executable, "-m", "pytest", "-q", "-p", "xdist.plugin", "-n", "2", "-p", "no:cacheprovider"]


def fault(error: BaseException) -> str | None:
    """What a report of a test that ended so says of the machine."""
    call: Any = SimpleNamespace(excinfo=SimpleNamespace(value=error))
    steps, report = noted(call), SimpleNamespace(fault=None)
    next(steps)
    with pytest.raises(StopIteration):
        steps.send(report)
    found: str | None = report.fault
    return found


def test_a_fault_of_the_machine_has_a_type() -> None:
    panic = MachineError("it panicked\n  console: of int3")
    assert fault(panic) is None, "no emulator did it"
    panic.emulator = True
    assert fault(panic) == "MachineError: it panicked"
    assert fault(BrowserError("it is silent")) == "BrowserError: it is silent"
    assert fault(AssertionError("it is wrong")) is None


@pytest.mark.parametrize(
    ("failed", "alone", "status"),
    [
        ([("a", "a panic")], 0, 0),
        ([("a", "a panic")], 1, 1),
        ([("a", None)], None, 1),  # an assertion
        ([("a", "a panic"), ("b", "a panic")], None, 1),
        ([("a", "a panic"), ("b", None)], None, 1),
        ([("a", "a panic"), ("a", None)], None, 1),  # what it left behind
        ([("a", None), ("a", "a panic")], None, 1),
    ],
)
def test_only_one_test_that_the_machine_let_down_is_done_again(
    monkeypatch: pytest.MonkeyPatch, failed: list[tuple[str, str | None]], alone: int | None, status: int
) -> None:
    """`alone`: how it ends then; None: it is not done again."""
    plugin, asked = Again(), list[str]()

    def run(words: list[str], **_: Any) -> SimpleNamespace:
        asked.append(words[-1])
        return SimpleNamespace(returncode=alone)

    monkeypatch.setattr(subprocess, "run", run)
    for name, why in failed:
        report: Any = SimpleNamespace(nodeid=f"{name}@host", failed=True, fault=why)
        plugin.pytest_runtest_logreport(report)
    session: Any = SimpleNamespace(exitstatus=pytest.ExitCode.TESTS_FAILED, config=SimpleNamespace(rootpath=HERE))
    plugin.pytest_sessionfinish(session)
    assert session.exitstatus == status
    assert asked == ([] if alone is None else ["a"])
    assert plugin.said.startswith("FLAKY a: a panic") == (alone is not None)


def test_the_process_that_hands_out_the_tests_does_it(tmp_path: Path) -> None:
    """By the installed pytest and xdist: the report comes with its fault, and the exit status is that of the end."""
    (tmp_path / "conftest.py").write_text(
        "import pytest\n"
        "from tests.again import Again, noted\n"
        "def pytest_configure(config):\n"
        "    if config.getoption('numprocesses', None):\n"
        "        config.pluginmanager.register(Again())\n"
        "@pytest.hookimpl(wrapper=True)\n"
        "def pytest_runtest_makereport(call):\n"
        "    return (yield from noted(call))\n"
    )
    (tmp_path / "test_it.py").write_text(
        "from pathlib import Path\n"
        "from tests.again import BrowserError\n"
        "def test_once():\n"
        "    if not Path('there').exists():\n"
        "        Path('there').touch()\n"
        "        raise BrowserError('it is silent')\n"
    )
    command = [*ALONE, "--rootdir", str(tmp_path)]
    environment = {"PYTHONPATH": str(HERE.parent), "PATH": "/usr/bin:/bin", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\nFLAKY test_it.py::test_once: BrowserError: it is silent (passed alone)\n" in done.stdout


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


@pytest.mark.host  # nobody else may turn it meanwhile
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
    (tmp_path / "test_nothing.py").write_text("import pytest\n@pytest.mark.whole\ndef test_nothing(): pass\n")
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.conftest", str(tmp_path)]
    done = subprocess.run(pytest, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    assert changed(before) == {}
    assert killed.returncode == -9
    assert ENABLED in left
    assert done.returncode == 0, done.stdout


def test_a_wait_in_vain_says_for_what_and_what_it_saw() -> None:
    with pytest.raises(AssertionError, match=r"not within 0 s: all have come; last seen: \[\]"):
        until(list, "all have come", 0)
    with pytest.raises(AssertionError, match="last seen: .two of three"):
        until(lambda: False, "all have come", 0, seen=lambda: "two of three")


class Item(SimpleNamespace):
    """A test as it is collected: where it lies, what it asks for, and its markers."""

    def add_marker(self, marker: Any) -> None:
        mark = getattr(pytest.mark, marker) if isinstance(marker, str) else marker
        self.marks[mark.name] = mark

    def get_closest_marker(self, name: str) -> object:
        return self.marks.get(name)


@pytest.mark.parametrize(
    ("asks", "marks", "alone"),
    [
        (["x86"], [], True),  # a guest is where others look for what a run left
        ([], ["boots"], True),
        (["unchanged"], [], True),
        ([], ["whole"], True),
        ([], ["looks"], True),
        ([], ["soak"], False),
        ([], [], False),
    ],
)
def test_what_needs_the_host_is_one_process_s(asks: list[str], marks: list[str], *, alone: bool) -> None:
    item: Any = Item(fixturenames=asks, marks={})
    for mark in marks:
        item.add_marker(mark)
    pytest_itemcollected(item)
    group = item.get_closest_marker("xdist_group")
    assert (group is not None and group.args == ("host",)) == (item.get_closest_marker("host") is not None) == alone


def test_beside_the_host_s_process_nothing_is_read_that_it_turns() -> None:
    with pytest.raises(AssertionError, match="play the host"):
        LocalHost().read(ENABLED)
    for path, turned in (
        (f"{THP}/hugepages-2048kB/enabled", True),
        (f"{HUGETLB}/hugepages-1048576kB/nr_hugepages", True),
        ("/sys/devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages", True),
        (f"{THP}/hpage_pmd_size", False),
        (f"{THP}/hugepages-64kB/enabled", False),  # that it is there says which sizes there are
    ):
        assert (TURNED.fullmatch(path) is not None) == turned, path


def test_one_process_does_all_of_a_group(tmp_path: Path) -> None:
    """By the versions of pytest and xdist that are installed: some have no groups, and say nothing of it."""
    (tmp_path / "test_it.py").write_text(
        "import os, time, pytest\n"
        "@pytest.mark.parametrize('number', range(12))\n"
        "def test_free(number):\n"
        "    time.sleep(0.05)\n"
        "@pytest.mark.xdist_group('host')\n"
        "@pytest.mark.parametrize('number', range(12))\n"
        "def test_it(number):\n"
        "    time.sleep(0.05)\n"
        f"    with open({str(tmp_path / 'pids')!r}, 'a') as file:\n"
        "        file.write(f'{os.getpid()}\\n')\n",
        encoding="utf-8",
    )
    command = [*ALONE, "--dist", "loadgroup", "--rootdir", str(tmp_path), str(tmp_path)]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # no other plugin is of use here
    done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, env=environment)
    assert done.returncode == 0, done.stdout.decode()
    pids = (tmp_path / "pids").read_text().split()
    assert len(pids) == 12
    assert len(set(pids)) == 1
