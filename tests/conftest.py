"""Property tests draw the same examples in every run; HUGEWISE_EXPLORE=1 draws new ones, to look for more.

The tests of the host begin on a machine that is put back: when an earlier call of pytest was killed, its last run left
settings turned, and the first run of these tests would put them back between a test's two looks at the page state.
"""

import functools
import os
import re
import signal
import tempfile
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from hugewise import beneath
from hugewise.advise import advise, of_study
from hugewise.errors import LockedError
from hugewise.host import journal
from hugewise.host.local_host import LocalHost
from hugewise.model.pages import THP
from hugewise.session import session
from tests.again import Again, noted
from tests.build.hosts import Unheld
from tests.memory import Whole
from tests.state import changed, page_state

# What a shell runs in the background inherits SIGINT ignored, what nohup runs SIGHUP, and their children with them: no
# run of a test could be ended so.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Nothing is judged by time: a busy machine is slow at any moment.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", PATIENT, derandomize=True, database=None)
settings.register_profile("explore", PATIENT, derandomize=False)
settings.load_profile("explore" if os.environ.get("HUGEWISE_EXPLORE") == "1" else "same")


MEMORY = Whole()

# What tests of the host turn at any moment. A test of another process plays the host, but for those files whose results
# do not depend on the value.
TURNED = re.compile(rf"{THP}/(\w*enabled|defrag|khugepaged/\w+|hugepages-2048kB/\w+)|.*/hugepages-\d+kB/\w+_hugepages")
READ = {
    *("advise/test_of_study.py", "analysis/test_budget.py", "attempt/test_apart.py", "attempt/test_disturbances.py"),
    *("attempt/test_performance.py", "cli/test_backing.py", "cli/test_doctor.py", "cli/test_inspect.py"),
    *("cli/test_main.py", "fleet/test_conduct.py", "fleet/test_inventory.py", "fuzz/test_documents.py"),
    *("inspection/test_rules.py", "machine/test_proc.py", "session/test_open_design.py"),
}


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput") and config.getoption("numprocesses", None):
        config.pluginmanager.register(Again())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    return (yield from noted(call))


def pytest_itemcollected(item: pytest.Item) -> None:
    """Markers go by what a test asks for. What takes the lock of the host, turns its pages, or has folders and
    processes where others look for what a run left, is one process's, in turn; so is what looks at pages under the
    settings that another test may turn.
    """
    fixtures = set(getattr(item, "fixturenames", ()))
    if fixtures & {"unchanged", "finished", "cluster"}:
        item.add_marker("whole")
    if fixtures & {"x86", "arm64", "arm64_16k"}:
        item.add_marker("boots")
    if any(item.get_closest_marker(name) is not None for name in ("whole", "boots", "looks", "host")):
        item.add_marker("host")
        item.add_marker(pytest.mark.xdist_group("host"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Who looks at pages finds memory that has huge ones, whatever runs and tests before have left."""
    if item.get_closest_marker("host") is not None:
        put_back()
        MEMORY.make()


@functools.cache
def put_back() -> None:
    """What a killed run left turned is not there any more; a run that lives keeps what it has. The lock that this takes
    for a moment is wanted by the tests of the host alone.
    """
    if os.geteuid() == 0:
        with suppress(LockedError):
            journal.restore()


@pytest.fixture(autouse=True)
def _played(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.get_closest_marker("host"):
        return
    for module in (session, advise, of_study):  # the lock of this host is that of the tests of the host
        monkeypatch.setattr(module, "HostLock", Unheld)
    if f"{request.path.parent.name}/{request.path.name}" in READ:
        return
    read = LocalHost.read

    def checked(host: LocalHost, path: str) -> str:
        assert not TURNED.fullmatch(path), f"tests of the host turn {path}: play the host, or mark the test `looks`"
        return read(host, path)

    monkeypatch.setattr(LocalHost, "read", checked)
    monkeypatch.setattr(journal, "JOURNAL", Path("/proc/nowhere/journal.jsonl"))


@pytest.fixture(autouse=True)
def _powered(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test cuts the power: what this process syncs is on its way to the disk. Thousands of waits for a disk took
    minutes. `durable.lasting` sees which files were synced, and in which order.
    """
    monkeypatch.setattr(os, "fsync", os.fstat)  # fails for a descriptor that is closed, as fsync does


@pytest.fixture
def reached() -> Iterator[Path]:
    """A folder that every account may enter, as those of pytest are not."""
    path = Path(tempfile.mkdtemp(prefix="hw-", dir="/tmp"))
    path.chmod(0o755)
    try:
        yield path
    finally:
        beneath.discard(path)


@pytest.fixture
def unchanged() -> Iterator[None]:
    """Whatever a test does, the machine's page state is afterwards as it was."""
    before = page_state()
    yield
    if os.geteuid() == 0:
        journal.restore()
    assert changed(before) == {}
