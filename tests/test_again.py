from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hugewise.errors import MachineError
from tests.again import Again, BrowserError, noted
from tests.progress import HERE


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
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "xdist.plugin",
        "-n",
        "2",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
    ]
    environment = {"PYTHONPATH": str(HERE.parent), "PATH": "/usr/bin:/bin", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\nFLAKY test_it.py::test_once: BrowserError: it is silent (passed alone)\n" in done.stdout
