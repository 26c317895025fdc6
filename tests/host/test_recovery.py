"""What a workload leaves behind never keeps a killed run from being put back: a dead process, and `hugewise restore`.

The workload was played as `nobody`, in a folder that the journal names; the process that held the host is killed.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hugewise.host import journal, scratch
from hugewise.host.journal import JOURNAL, Journal
from hugewise.host.knob import Settings
from hugewise.host.ledger import Scratched
from hugewise.host.local_host import LocalHost
from hugewise.host.lock import HostLock
from hugewise.host.pool import Pools
from hugewise.model.pages import HUGETLB, THP
from tests.build.hosts import FakeHost
from tests.requirements import need, need_program, need_root

pytestmark = pytest.mark.usefixtures("unchanged")

ENABLED = Path(f"{THP}/enabled")
POOL = Path(f"{HUGETLB}/hugepages-2048kB/nr_hugepages")
NESTED = """
import os, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
os.chdir(sys.argv[1])
for _ in range(int(sys.argv[2])):
    os.mkdir("d"); os.chdir("d")
open("bottom", "w").close()
"""


def dies(ready: int) -> None:
    """Hold the host as a session does, say where its workloads are played, and wait for SIGKILL."""
    host = LocalHost()
    with HostLock(host):
        settings = Settings(host, Journal.begin(host, JOURNAL, "the killed run"))
        Pools(settings).fill({2 << 20: 4})
        settings.apply({str(ENABLED): "never" if "[always]" in ENABLED.read_text() else "always"})
        made = scratch.Scratch.open(Path("/dev/shm"), 65534, 65534, lambda path: settings.note(Scratched(path)))
        os.write(ready, str(made.folder("run")).encode())
        signal.pause()


@pytest.fixture
def run() -> Iterator[Path]:
    """The folder in which a run that was killed had played as `nobody`; it had turned a knob and filled a pool."""
    need_root()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            dies(writing)
        finally:
            os._exit(1)
    os.close(writing)
    said = os.read(reading, 4096)
    os.close(reading)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert said, "the run did not begin"
    yield Path(os.fsdecode(said))
    journal.restore()


def settings() -> tuple[str, str]:
    return ENABLED.read_text(), POOL.read_text()


@pytest.fixture
def before() -> tuple[str, str]:
    return settings()


def restore() -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", "from hugewise.cli.main import main; main()", "restore"]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize("depth", [1_100, pytest.param(100_000, marks=pytest.mark.soak)])
def test_nested_folders_keep_nothing_from_being_put_back(before: tuple[str, str], run: Path, depth: int) -> None:
    """rmtree recursed, and scratch came before the knobs: `enabled` stayed `always` after two recoveries."""
    assert settings() != before
    subprocess.run([sys.executable, "-S", "-c", NESTED, str(run), str(depth)], check=True)
    done = restore()
    assert done.returncode == 0, done.stderr
    assert "put back what the killed run" in done.stdout
    assert settings() == before
    assert not run.parent.exists()
    assert restore().stdout == "nothing to restore\n"


def busy(folder: Path) -> list[str]:
    need_program("mount", "mount")
    subprocess.run(["mount", "-t", "tmpfs", "none", str(folder)], check=True)
    return ["umount", str(folder)]


def immutable(folder: Path) -> list[str]:
    need_program("chattr", "e2fsprogs")
    (folder / "file").touch()
    done = subprocess.run(["chattr", "+i", str(folder / "file")], capture_output=True, check=False)
    need(done.returncode == 0, "a tmpfs with immutable files (Linux 6.6)")
    return ["chattr", "-i", str(folder / "file")]


@pytest.mark.parametrize("plant", [busy, immutable])
def test_what_cannot_be_removed_is_told_after_all_else_is_put_back(
    before: tuple[str, str], run: Path, plant: Callable[[Path], list[str]]
) -> None:
    (run / "d").mkdir()
    (run / "kept").touch()
    undo = plant(run / "d")
    done = restore()
    assert done.returncode == 1
    assert "run the killed run is not wholly put back" in done.stderr
    assert f"cannot remove {run.parent}" in done.stderr
    assert f"put back {ENABLED}" in done.stderr
    assert settings() == before
    assert not (run / "kept").exists(), "what can go is gone"
    # What stays may have another name by now.
    (left,) = [path for path in run.parent.rglob("*") if path.name == "file" or path.is_mount()]
    subprocess.run([*undo[:-1], str(left)], check=True)
    assert restore().returncode == 0
    assert not run.parent.exists()


def test_a_folder_that_somebody_else_made_meanwhile_keeps_nothing_from_being_put_back(
    before: tuple[str, str], run: Path
) -> None:
    """The run was killed between the record and the folder, and another account took the name."""
    scratch.discard(str(run.parent))
    run.parent.mkdir()
    os.chown(run.parent, 65534, 65534)
    try:
        done = restore()
        assert (done.returncode, settings()) == (0, before), done.stderr
        assert run.parent.exists()
    finally:
        run.parent.rmdir()


def test_a_user_is_told_what_nothing_to_restore_rests_on(tmp_path: Path) -> None:
    host, path = FakeHost(), tmp_path / "hugewise" / "journal.jsonl"
    host.root = False
    assert journal.restore(host, path)[0].startswith(
        f"nothing to restore that a user can see: here is no journal of root's runs ({path})"
    )
    Journal.begin(FakeHost(), path, "run").close()
    assert journal.restore(host, path)[0].startswith(f"nothing to restore: by root's journal ({path}) no run")
    host.root = True
    assert journal.close(host, path) == []
