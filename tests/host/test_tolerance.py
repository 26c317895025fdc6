"""What real processes have open, and whether they may notice that they were frozen."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hugewise.host.freezer import unfreezable_reason
from tests.build import known
from tests.requirements import need, need_root

PLAIN = "f = open('/dev/null'); r, w = os.pipe()"
SOCKET = "import socket; held = socket.socketpair()"
TERMINAL = "held = os.openpty()"
TIMERFD = """
import ctypes
assert ctypes.CDLL(None).timerfd_create(1, 0) >= 0
"""
TIMER = """
import ctypes
identity = ctypes.c_void_p()
libc = ctypes.CDLL(None)
create = getattr(libc, "timer_create", None) or ctypes.CDLL("librt.so.1").timer_create
assert create(1, None, ctypes.byref(identity)) == 0
"""
NAMED = "open('/proc/self/comm', 'w').write('a\\x1b[31m\\nb'); import socket; held = socket.socketpair()"


@contextmanager
def running(script: str) -> Iterator[int]:
    """A Python that has done `script`, and waits; without a terminal or a socket of the caller."""
    words = [sys.executable, "-S", "-c", f"import os\n{script}\nprint(flush=True)\ninput()"]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    ) as child:
        try:
            assert known(child.stdout).readline() == b"\n"
            yield child.pid
        finally:
            child.kill()


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (SOCKET, "has a socket: who is at its other end may not wait"),
        (TERMINAL, r"has a terminal \(/dev/pts/\d+\): who is there goes on"),
        (TIMERFD, r"has a timer of its own \(timerfd\)"),
        (TIMER, r"has a timer of its own \(timer_create\)"),
    ],
)
def test_what_may_notice_is_told(script: str, reason: str) -> None:
    with running(PLAIN) as plain, running(script) as other:
        if script == TIMER:
            need(Path(f"/proc/{other}/timers").exists(), "/proc/PID/timers (CONFIG_CHECKPOINT_RESTORE)")
        assert re.match(rf"process {other} \(python[\w.]*\) {reason}", known(unfreezable_reason([plain, other])))


def test_what_only_computes_does_not_notice() -> None:
    with running(PLAIN) as plain:
        assert unfreezable_reason([plain]) is None
    assert unfreezable_reason([]) is None


def test_who_has_ended_is_passed_over() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert unfreezable_reason([child]) is None  # a zombie
    os.waitpid(child, 0)
    assert unfreezable_reason([child]) is None


def test_a_name_is_shown_as_text() -> None:
    with running(NAMED) as pid:
        assert known(unfreezable_reason([pid])).startswith(
            f"process {pid} (a\N{REPLACEMENT CHARACTER}[31m b) has a socket"
        )


def test_who_cannot_be_looked_at_is_a_reason() -> None:
    need_root()
    reading, writing = os.pipe()
    with running(PLAIN) as pid:
        child = os.fork()
        if child == 0:
            try:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
                os.write(writing, str(unfreezable_reason([pid])).encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        os.close(writing)
        said = os.read(reading, 4096).decode()
        os.close(reading)
        assert said.endswith("cannot be looked at: Permission denied")


def test_a_kernel_without_timers_says_what_it_can(tmp_path: Path) -> None:
    fd = tmp_path / "7" / "fd"
    fd.mkdir(parents=True)
    (tmp_path / "7" / "comm").write_text("old\n")
    (fd / "0").symlink_to("/dev/null")
    (fd / "10").symlink_to("/dev/tty1")
    (fd / "9").symlink_to("/dev/pts/3 (deleted)")
    assert known(unfreezable_reason([7], tmp_path)).startswith("process 7 (old) has a terminal (/dev/pts/3 (deleted))")
    (fd / "9").unlink()
    (fd / "10").unlink()
    assert unfreezable_reason([7], tmp_path) is None


@pytest.mark.parametrize(
    ("stat", "said"),
    [
        ("7 (a) b) Z 1", None),
        ("7 (old) X 1", None),
        (None, None),
        ("7 (Z) S 1", "process 7 (old) cannot be looked at: Not a directory"),
    ],
)
def test_who_cannot_be_looked_at_is_passed_over_where_it_has_ended(
    tmp_path: Path, stat: str | None, said: str | None
) -> None:
    process = tmp_path / "7"
    process.mkdir()
    (process / "fd").touch()
    (process / "comm").write_text("old\n")
    if stat is not None:
        (process / "stat").write_text(f"{stat}\n")
    assert unfreezable_reason([7], tmp_path) == said
