from __future__ import annotations

import signal
import subprocess
import sys
import uuid

import pytest

from hugewise.errors import LockedError
from hugewise.host.local_host import LocalHost
from hugewise.host.lock import HostLock, boot_id
from tests.build import known
from tests.build.hosts import FakeHost

_HOLDER = """
import sys, time
from hugewise.host.lock import HostLock
from tests.build.hosts import FakeHost
host = FakeHost()
host.fixed["/proc/sys/kernel/random/boot_id"] = sys.argv[1]
with HostLock(host):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def host() -> FakeHost:
    """A host of its own for each test: its boot id is unique."""
    host = FakeHost(root=False)
    host.fixed["/proc/sys/kernel/random/boot_id"] = str(uuid.uuid4())
    return host


def test_a_second_holder_is_told_the_pid_and_the_lock_dies_with_its_holder(host: FakeHost) -> None:
    with subprocess.Popen([sys.executable, "-c", _HOLDER, boot_id(host)], stdout=subprocess.PIPE) as holder:
        try:
            assert known(holder.stdout).readline() == b"held\n"
            for _ in range(200):  # who asked stays in the queue of a holder that never accepts
                with pytest.raises(LockedError) as caught, HostLock(host):
                    pass
                assert caught.value.pid == holder.pid
        finally:
            holder.send_signal(signal.SIGKILL)
            holder.wait()
    with HostLock(host):
        pass


def test_it_can_be_taken_again_after_it_was_given_back(host: FakeHost) -> None:
    for _ in range(2):
        with HostLock(host), pytest.raises(LockedError), HostLock(host):
            pass


def test_it_is_not_inherited(host: FakeHost) -> None:
    with HostLock(host):
        pipe = subprocess.PIPE
        child = subprocess.Popen(["/bin/sh", "-c", "echo up; read x"], stdin=pipe, stdout=pipe, close_fds=False)
        assert known(child.stdout).readline() == b"up\n"
    try:
        with HostLock(host):
            pass
    finally:
        child.communicate(b"\n")


def test_boot_id_of_this_machine() -> None:
    assert str(uuid.UUID(boot_id(LocalHost()))) == boot_id(LocalHost())
