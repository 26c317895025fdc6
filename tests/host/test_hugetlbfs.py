"""A private hugetlbfs. It takes no page of any pool: only a guest does."""

import os
import pwd
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hugewise.errors import SettingError, UserError
from hugewise.host import memory_state
from hugewise.host.journal import Journal, recover
from hugewise.host.ledger import Mounted
from hugewise.host.memory_state import HugetlbMount
from hugewise.machine import programs
from tests.build.hosts import FakeHost
from tests.requirements import need, need_program, need_root

pytestmark = pytest.mark.looks

_SIZE = 2 << 20


@pytest.fixture
def mountable() -> Iterator[None]:
    """This process may mount one; none is left."""
    need_root()
    need_program("mount", "mount")
    need(Path("/sys/kernel/mm/hugepages/hugepages-2048kB").exists(), "hugetlb pages of 2 MiB")
    yield
    assert not [line for line in Path("/proc/mounts").read_text().splitlines() if f"hugewise-{os.getpid()}-" in line]


def mounted(path: str) -> list[str]:
    return [line.split()[3] for line in Path("/proc/mounts").read_text().splitlines() if line.split()[1] == path]


@pytest.mark.usefixtures("mountable")
def test_it_is_noted_mounted_for_its_account_alone_and_unmounted() -> None:
    nobody = pwd.getpwnam("nobody")
    noted: list[str] = []
    with HugetlbMount.open(_SIZE, nobody, noted.append) as mount:
        assert noted == [mount.path]
        [options] = mounted(mount.path)
        assert {"pagesize=2M", f"uid={nobody.pw_uid}", f"gid={nobody.pw_gid}", "mode=700"} <= set(options.split(","))
        assert Path(mount.path).stat().st_uid == nobody.pw_uid
    assert not Path(mount.path).exists()
    memory_state.unmount(mount.path)  # a second time, as recovery may


@pytest.mark.usefixtures("mountable")
def test_what_is_left_and_in_use_goes_too() -> None:
    mount = HugetlbMount.open(_SIZE, None, lambda _: None)
    with subprocess.Popen(["sleep", "60"], cwd=mount.path) as user:
        try:
            memory_state.unmount(mount.path)
            assert not Path(mount.path).exists()
        finally:
            user.kill()


@pytest.mark.usefixtures("mountable")
def test_a_size_that_the_kernel_has_not_is_an_error_and_leaves_nothing() -> None:
    noted: list[str] = []
    with pytest.raises(SettingError, match="cannot mount a hugetlbfs with pages of 12 kB"):
        HugetlbMount.open(12 << 10, None, noted.append)
    assert not Path(noted[0]).exists()


def test_a_machine_without_mount_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    need_root()
    monkeypatch.setattr(programs, "PATH", "/nowhere")
    with pytest.raises(SettingError, match="mount: no such program on PATH") as caught:
        HugetlbMount.open(_SIZE, None, lambda _: None)
    assert caught.value.hint == "apt install mount"


@pytest.mark.usefixtures("mountable")
def test_the_next_call_unmounts_what_a_killed_run_left(tmp_path: Path) -> None:
    host, path = FakeHost(), tmp_path / "hugewise" / "journal.jsonl"
    journal = Journal.begin(host, path, "the dead run")
    mount = HugetlbMount.open(_SIZE, None, lambda path: journal.append(Mounted(path)))
    journal.abandon()
    assert mounted(mount.path)
    assert recover(host, path).run == "the dead run"
    assert not Path(mount.path).exists()
    assert recover(host, path).run is None


def test_a_journal_that_names_another_folder_is_not_trusted(tmp_path: Path) -> None:
    host, path = FakeHost(), tmp_path / "hugewise" / "journal.jsonl"
    journal = Journal.begin(host, path, "the dead run")
    journal.append(Mounted(str(tmp_path)))
    journal.abandon()
    with pytest.raises(UserError, match=f"cannot be trusted: it names {tmp_path}"):
        recover(host, path)
    assert tmp_path.exists()


@pytest.mark.parametrize(
    "path", ["/", "/run", "/run/hugewise-1-hugetlb-", "/run/hugewise-1-hugetlb-1/..", "/tmp/hugewise-1-hugetlb-1"]
)
def test_no_other_path_is_taken_for_its_own(path: str) -> None:
    assert not memory_state.is_own(path)
    with pytest.raises(SettingError, match="no mount of hugewise's own"):
        memory_state.unmount(path)
