"""`hugewise` called in this process or started, on a machine in a dictionary or on this one; and a finished run."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hugewise.cli import list as listing
from hugewise.cli import main
from hugewise.session import feasibility
from tests.build.hosts import FakeHost
from tests.drive import only_run

HUGEWISE = [sys.executable, "-c", "from hugewise.cli.main import main; main()"]
SEED = "000102030405060708090a0b0c0d0e0f"
TINY = """
format = 1
name = "tiny"
question = "Größe [bold]?[/nope] 漢字 <script>alert(1)</script> :smile:"
policies = {policies}

[budget]
blocks = 2

[between]
settle = "0ms"

[[workload]]
name = "chase"
timeout = "30s"
parameters = {{ bytes = "8m", loads = 20000 }}

[workload.scales]
published = {{ bytes = ["1m", "64g"] }}
"""

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Call]:
    """`hugewise` with these arguments in this process: its exit status, stdout and stderr at 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}

    def called(*arguments: str | Path) -> tuple[int, str, str]:
        status: object = 0
        try:
            main.main(list(map(str, arguments)))
        except SystemExit as ended:
            status = ended.code or 0
        said = capsys.readouterr()
        assert isinstance(status, int)
        return status, said.out, said.err

    yield called
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    """A machine of root's with 16k, 64k and 2m transparent pages and a pool of 2m pages."""
    host = FakeHost(capacity={2 << 20: 1000})
    for module in (feasibility, listing):
        monkeypatch.setattr(module, "LocalHost", lambda: host)
    return host


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is the working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tiny(folder: Path, *policies: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "tiny.toml"
    path.write_text(TINY.format(policies=list(policies or ("base", "thp"))), encoding="utf-8")
    return path


@pytest.fixture(scope="package")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of the tiny study, with its reports, and what was shown in `shown.txt`."""
    folder = tmp_path_factory.mktemp("finished")
    command = [*HUGEWISE, "run", str(tiny(folder)), "--results", str(folder / "漢字 [x]"), "--seed", SEED]
    plain = {**os.environ, "COLUMNS": "80", "TERM": "dumb", "SECRET": "of the caller"}
    plain.pop("HOME", None)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240, env=plain, cwd="/")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "漢字 [x]" in done.stderr
    run = only_run(folder / "漢字 [x]")
    (folder / "shown.txt").write_text(done.stdout, encoding="utf-8")
    return run


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "copy"))
