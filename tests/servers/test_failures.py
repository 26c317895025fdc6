"""What goes wrong around a server ends in an error that says so, and the machine is as it was."""

import mmap
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import hugewise
from hugewise.attempt import service
from hugewise.errors import HugewiseError, UserError
from hugewise.host import journal
from hugewise.host.local_machine import LocalMachine
from hugewise.model.trial import Attempt
from hugewise.store import dataset
from hugewise.store.folder import RunFolder
from tests.build.studies import study_of
from tests.drive import only_run
from tests.requirements import need, need_program, need_root
from tests.state import changed, page_state, run_folders

pytestmark = pytest.mark.whole

PGBENCH = {
    "name": "pgbench",
    "timeout": "60s",
    "parameters": {"scale": 1, "shared_buffers": "64m", "clients": 1, "duration": "1s", "lead": "1s"},
}


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Page settings, folders and servers are as they were."""
    need_root()
    before, there = page_state(), run_folders(Path("/dev/shm"))
    yield
    assert changed(before) == {}
    assert journal.restore() == ["nothing to restore"]
    assert run_folders(Path("/dev/shm")) <= there


@pytest.fixture
def small_tmpfs() -> Iterator[Path]:
    """A tmpfs of its own, too small for what a database writes, where an ordinary account can reach it."""
    need_program("mount", "mount")
    with tempfile.TemporaryDirectory(prefix="small-") as folder:
        Path(folder).chmod(0o755)
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300m", "tmpfs", folder], check=False)
        need(done.returncode == 0, "the right to mount a tmpfs")
        yield Path(folder)
        subprocess.run(["umount", "-l", folder], check=True)


def need_postgres() -> None:
    need(any(Path("/usr/lib/postgresql").glob("*/bin/initdb")), "PostgreSQL (apt install postgresql-15)")


def run(results: Path, workload: Mapping[str, Any], policies: Sequence[str] = ("base", "thp")) -> None:
    """A short run of it, without retries."""
    used = [{"delivery": {"share": 0.0}, **workload}]
    study = study_of(policies=list(policies), budget={"blocks": 2}, attempt={"retries": 0}, workload=used)
    hugewise.run(study, results=results)


def attempts(results: Path) -> list[Attempt]:
    return list(RunFolder(only_run(results)).read().attempts)


def test_a_tmpfs_without_room_for_the_data_is_named_before_anything_runs(tmp_path: Path, small_tmpfs: Path) -> None:
    need_postgres()
    (small_tmpfs / "ballast").write_bytes(bytes(200 << 20))
    with pytest.raises(UserError, match=r"small-\w+/hugewise-\d+ has .* free, and an attempt needs") as error:
        run(tmp_path / "results", {**PGBENCH, "storage": str(small_tmpfs)})
    assert "storage" in (error.value.hint or "")
    assert list(small_tmpfs.glob("hugewise-*")) == []


@pytest.mark.soak
def test_a_tmpfs_that_fills_up_under_the_server_is_named_by_the_server_or_by_who_guards_the_room(
    tmp_path: Path, small_tmpfs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_postgres()
    lay_out = dataset.lay_out

    def and_fill(kept: Any, place: Any) -> Path:
        """Leave the server less than a segment of its log."""
        laid: Path = lay_out(kept, place)
        free = os.statvfs(place.path)
        (place.path / "ballast").write_bytes(bytes(free.f_bavail * free.f_frsize - (1 << 20)))
        return laid

    monkeypatch.setattr(dataset, "lay_out", and_fill)
    with pytest.raises(
        HugewiseError, match="blocks in a row do not count.*(No space left|could not write|are left free at)"
    ):
        run(tmp_path / "results", {**PGBENCH, "storage": str(small_tmpfs)})
    assert {attempt.state for attempt in attempts(tmp_path / "results")} == {"rejected"}
    assert list(small_tmpfs.glob("hugewise-*")) == []


def test_a_port_that_somebody_took_is_named_by_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_program("iperf3", "iperf3")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        monkeypatch.setattr(LocalMachine, "ports", lambda *_: (port,))
        with pytest.raises(HugewiseError, match="Address already in use"):
            run(tmp_path / "results", {"name": "iperf3", "timeout": "30s", "parameters": {"duration": "1s"}})


def test_a_server_that_is_not_installed_is_a_requirement_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(UserError, match="redis-server: no such program"):
        run(tmp_path / "results", {"name": "redis", "timeout": "30s"})
    assert not (tmp_path / "results").exists()


@pytest.mark.soak
def test_a_pool_that_is_empty_when_the_server_starts_rejects_the_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """huge_pages = on, never try: PostgreSQL does not start, rather than run on base pages."""
    need_postgres()
    serve = service.ServiceDriver.serve

    def with_less(play: service.ServiceDriver) -> None:
        """Somebody else maps the pages just before the server does."""
        free = int(Path("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages").read_text())
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000  # MAP_HUGETLB
        with mmap.mmap(-1, free << 21, flags=flags):
            serve(play)

    monkeypatch.setattr(service.ServiceDriver, "serve", with_less)
    with pytest.raises(HugewiseError, match="could not map anonymous shared memory"):
        run(tmp_path / "results", PGBENCH, ("hugetlb-2m", "base"))
    states = {(attempt.arm, attempt.state) for attempt in attempts(tmp_path / "results")}
    assert ("hugetlb-2m", "rejected") in states
