"""Swap files: refused with the reason where there can be none; real ones, and what is left of them after a kill."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hugewise.errors import SettingError, UserError
from hugewise.host import journal
from hugewise.host.journal import Journal
from hugewise.host.ledger import Swapped
from hugewise.host.local_host import LocalHost
from hugewise.host.memory_state import SwapFile, in_use, is_named, remove
from tests.requirements import need, need_root

pytestmark = pytest.mark.looks

SIZE = 16 << 20


@pytest.fixture
def folder() -> Path:
    """One on a disk: tmpfs has no swap files, and pytest's folders may lie on it."""
    need_root()
    need(Path("/proc/swaps").exists(), "a kernel with swap")
    return Path("/var/tmp")


def test_only_its_own_names_are_touched(tmp_path: Path) -> None:
    assert is_named("/a/hugewise-swap-12")
    for other in ("/swapfile", "hugewise-swap-12", "/a/../hugewise-swap-1", "/a/hugewise-swap-12x", "/a/hugewise-12"):
        assert not is_named(other), other
        with pytest.raises(SettingError, match="left as it is"):
            remove(other)
    remove(str(tmp_path / "hugewise-swap-1"))  # gone already


def test_a_disk_without_room_is_said_before_anything_is_made(tmp_path: Path) -> None:
    noted: list[Swapped] = []
    with pytest.raises(SettingError, match="a swap file of 1024 TiB is to be made") as caught:
        SwapFile.make(tmp_path, 1 << 50, noted.append)
    assert "--results" in (caught.value.hint or "")
    assert noted == [] and list(tmp_path.iterdir()) == []


@pytest.mark.whole
def test_a_file_system_without_swap_files_says_so() -> None:
    need_root()
    shm = Path("/dev/shm")
    with pytest.raises(SettingError, match="no swap files|takes no swap file"):
        SwapFile.make(shm, SIZE, lambda _: None)
    assert not list(shm.glob("hugewise-swap-*"))


@pytest.mark.whole
def test_it_is_used_from_on_to_off_and_gone_at_the_end(folder: Path) -> None:
    noted: list[Swapped] = []
    made = SwapFile.make(folder, SIZE, noted.append)
    try:
        assert noted == [Swapped(str(made.path))]
        assert made.path.stat().st_mode & 0o777 == 0o600
        assert not in_use(str(made.path))
        made.on()
        made.on()
        assert in_use(str(made.path))
        made.off()
        assert not in_use(str(made.path))
        made.on()
    finally:
        made.close()
    assert not in_use(str(made.path)) and not made.path.exists()


KILLED = """
import os, signal, sys
from pathlib import Path
from hugewise.host.journal import Journal
from hugewise.host.local_host import LocalHost
from hugewise.host.memory_state import SwapFile
journal = Journal.begin(LocalHost(), Path(sys.argv[1]), "the dead run")
SwapFile.make(Path(sys.argv[2]), int(sys.argv[3]), journal.append).on()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.whole
def test_what_a_killed_run_swapped_to_is_removed_by_the_next_root_call(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "hugewise" / "journal.jsonl"
    child = subprocess.run([sys.executable, "-c", KILLED, str(path), str(folder), str(SIZE)], check=False)
    assert child.returncode == -signal.SIGKILL
    (left,) = journal.ledger_of(path.read_bytes(), path).swaps
    assert in_use(left)
    found = journal.recover(LocalHost(), path)
    assert f"{left} = removed" in found.put_back
    assert not in_use(left) and not Path(left).exists()
    assert journal.recover(LocalHost(), path).run is None


def test_a_journal_that_names_another_file_is_not_trusted(tmp_path: Path) -> None:
    need_root()
    path = tmp_path / "hugewise" / "journal.jsonl"
    made = Journal.begin(LocalHost(), path, "the dead run")
    made.append(Swapped("/etc/passwd"))
    made.abandon()
    text = path.read_text().replace(f'"pid":{os.getpid()}', '"pid":4194305')
    path.write_text(text)
    with pytest.raises(UserError, match="it names /etc/passwd"):
        journal.recover(LocalHost(), path)
