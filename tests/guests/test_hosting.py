"""Whom QEMU runs as, and that a boot outside of attempts is like theirs and leaves nothing."""

from __future__ import annotations

import os
import pwd
import subprocess
from pathlib import Path

import pytest

from hugewise.guests import hypervisor
from tests.requirements import need_root

OWN = Path(f"/dev/shm/hugewise-{os.getpid()}")

pytestmark = pytest.mark.xdist_group("host")  # others look there for what a run left


def test_only_root_gives_qemu_another_account() -> None:
    assert hypervisor.qemu_account(privileged=True) == pwd.getpwnam("nobody")
    assert hypervisor.qemu_account(privileged=False) is None


def test_one_boot_has_a_folder_of_its_own_and_everything_goes_with_it() -> None:
    with pytest.raises(ValueError, match="it failed"), hypervisor.for_one_boot() as found:
        assert found.run.parent == found.outputs.parent == OWN
        assert found.outputs.stat().st_uid == os.geteuid()
        assert found.outputs.stat().st_mode & 0o777 == 0o700
        (found.outputs / "console.txt").touch()
        (found.run / "agent").touch()
        raise ValueError("it failed")
    assert not OWN.exists()


def test_under_root_the_account_of_attempts_can_enter_its_folder_and_no_other() -> None:
    need_root()
    nobody = pwd.getpwnam("nobody")
    with hypervisor.for_one_boot() as found:
        assert found.account == nobody
        assert (found.run.stat().st_uid, found.run.stat().st_gid) == (nobody.pw_uid, nobody.pw_gid)
        for folder, may in ((found.run, True), (found.outputs, False)):
            done = subprocess.run(["/usr/bin/test", "-w", str(folder), "-a", "-x", str(folder)], user=nobody.pw_uid,
                                  group=nobody.pw_gid, extra_groups=[], check=False)  # fmt: skip
            assert (done.returncode == 0) == may, folder


def test_what_a_killed_process_left_is_removed() -> None:
    ended = subprocess.Popen(["/bin/true"])
    ended.wait()
    left = OWN.with_name(f"hugewise-{ended.pid}")
    (left / "run").mkdir(parents=True)
    (left / "run/kernel").touch()
    with hypervisor.for_one_boot():
        assert not left.exists()
