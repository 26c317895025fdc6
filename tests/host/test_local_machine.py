"""This host as a machine: folders, files and processes of an account."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hugewise.errors import StorageError
from hugewise.host.local_machine import Launched, LocalMachine
from tests.requirements import need_root

HERE = LocalMachine()


def test_it_is_no_guest() -> None:
    assert (HERE.emulated, HERE.counters) == (False, True)
    assert set(HERE.cpus()) == os.sched_getaffinity(0)
    assert HERE.environment.keys() <= {"PATH", "LANG", "TZ"}  # little of the caller's


def test_ports_are_free_and_all_different() -> None:
    ports = HERE.ports(5)
    assert len(set(ports)) == 5
    with socket.socket() as one:
        one.bind(("127.0.0.1", ports[0]))
    assert HERE.ports(0) == ()


def test_a_folder_is_fresh_and_private(tmp_path: Path) -> None:
    place = tmp_path / "folder"
    place.mkdir(mode=0o755)
    (place / "left").write_text("of before")
    HERE.folder(str(place), None, None)
    assert list(place.iterdir()) == []
    assert place.stat().st_mode & 0o777 == 0o700
    with pytest.raises(StorageError, match="cannot make"):
        HERE.folder(str(tmp_path / "no" / "parent"), None, None)


def test_a_file_brings_the_folders_that_it_lies_in(tmp_path: Path) -> None:
    HERE.put(str(tmp_path / "a" / "b" / "file"), b"\x00bytes", None, None)
    assert (tmp_path / "a" / "b" / "file").read_bytes() == b"\x00bytes"
    with pytest.raises(StorageError):
        HERE.put(str(tmp_path / "a"), b"", None, None)  # a folder is there


def test_folders_and_files_are_the_accounts(tmp_path: Path) -> None:
    need_root()
    HERE.folder(str(tmp_path / "folder"), 65534, 65534)
    HERE.put(str(tmp_path / "folder" / "file"), b"", 65534, 65534)
    found = [(path.stat().st_uid, path.stat().st_gid) for path in (tmp_path / "folder", tmp_path / "folder" / "file")]
    assert found == [(65534, 65534)] * 2


def test_files_are_had_by_name_and_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    for name in ("log.2", "log.1", "log.10x", "other"):
        (tmp_path / name).write_text(name)
    (tmp_path / "log.3").mkdir()
    os.mkfifo(tmp_path / "log.4")  # reading it would wait for ever
    assert list(HERE.files(str(tmp_path), re.compile(r"log\.\d+"))) == [b"log.1", b"log.2"]


def test_a_link_that_an_account_laid_out_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "log.1").symlink_to(tmp_path / "secret")
    with pytest.raises(OSError):
        list(HERE.files(str(tmp_path), re.compile(r"log\.\d+")))


def test_removing_takes_the_tree_and_not_what_a_link_leads_to(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("")
    (tmp_path / "link").symlink_to(kept)
    HERE.remove(str(tmp_path / "link"))
    assert (kept / "file").exists()
    HERE.remove(str(kept / "file"))
    HERE.remove(str(kept))
    HERE.remove(str(kept))  # it is gone already
    assert list(tmp_path.iterdir()) == []


def test_a_signal_to_one_that_is_gone_is_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    HERE.signal(process.pid, signal.SIGTERM)
    assert process.wait(20) == -signal.SIGTERM
    HERE.signal(process.pid, signal.SIGTERM)


def test_a_launcher_can_be_waited_for_by_its_descriptor() -> None:
    running = Launched(subprocess.Popen(["/bin/sleep", "60"]))
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
