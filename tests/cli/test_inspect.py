"""`hugewise inspect` as it is called: on this very process, its live view, its JSON, and what is refused."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from hugewise.cli import inspect_show
from hugewise.inspection.inspected import FORMAT, Inspection
from tests.cli.conftest import HUGEWISE, Call


def test_this_very_process_is_looked_at(call: Call) -> None:
    status, out, err = call("inspect", str(os.getpid()))
    assert (status, err) == (0, "")
    assert re.match(rf"process {os.getpid()}\s+\(", out)  # the path of the checkout may not fit the line
    for title in ("Pages", "Mappings by kind", "The kernel, since it was booted", "Rules in force now"):
        assert f"\n{title}" in out
    assert out.replace("\n", "").isprintable()  # no escape sequence where nobody reads them
    assert max(map(len, out.splitlines())) <= 80


def test_as_json_it_is_what_its_types_say(call: Call) -> None:
    status, out, _ = call("inspect", str(os.getpid()), "--json")
    assert status == 0
    told = msgspec.json.decode(out, type=Inspection, strict=True)
    assert told.format == FORMAT
    assert told.processes[0].pid == os.getpid()
    assert told.bytes == sum(one.bytes for one in told.sizes) > 0
    assert {one.kind for one in told.kinds} >= {"anonymous", "file", "stack"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "name processes in one way"),
        (("1", "--cgroup", "x"), "name processes in one way"),
        (("0",), "there is no such process"),
        (("redis server",), "cure: name one that runs: pgrep -a NAME"),
        (("\x1b[2J",), "there is no such process"),
        (("--cgroup", "/no/such/group"), "there is no such control group"),
        (("--cgroup", "/a/../b"), "a group is named without .."),
        (("1", "--interval", "x"), "--interval x: not a duration"),
        (("1", "--interval", "2d"), "--interval 2d: from 100ms to 1h"),
    ],
)
def test_bad_input_is_said_with_its_cure(words: tuple[str, ...], said: str, call: Call) -> None:
    status, out, err = call("inspect", *words)
    assert (status, out) == (2, "")
    assert said in " ".join(err.split())
    assert "cure: " in err
    assert err.replace("\n", "").isprintable()


def test_watched_as_json_it_is_a_line_a_look_until_the_process_has_ended() -> None:
    watched = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    command = [*HUGEWISE, "inspect", str(watched.pid), "--watch", "--json", "--interval", "100ms"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as looking:
        assert looking.stdout is not None
        first, second = (json.loads(looking.stdout.readline()) for _ in range(2))
        assert first["taken"] < second["taken"]
        assert first["processes"][0]["pid"] == second["processes"][0]["pid"] == watched.pid
        watched.kill()
        watched.wait()
        looking.stdout.read()
        assert looking.wait(timeout=120) == 0


@contextmanager
def live_view() -> Iterator[tuple[subprocess.Popen[bytes], int, int]]:
    """This process watched on a terminal: the view, and both ends of that terminal, which the test closes."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
    command = [*HUGEWISE, "inspect", str(os.getpid()), "--watch", "--interval", "100ms"]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, env=environment, start_new_session=True) as looking:
        try:
            yield looking, ours, theirs
        finally:
            looking.kill()


def test_the_live_view_shows_what_has_changed_and_leaves_the_terminal_as_it_was() -> None:
    with live_view() as (looking, ours, theirs):
        _read(ours, b"Mappings by kind")
        assert b"Counted by the kernel" in _read(ours, b"since the last look")
        looking.send_signal(signal.SIGINT)
        _read(ours, b"\x1b[?1049l")
        assert looking.wait(timeout=120) == 130
    os.close(ours)
    os.close(theirs)


def test_the_live_view_ends_with_its_terminal() -> None:
    """Also one that no SIGHUP reaches, as under setsid: it would look for ever."""
    with live_view() as (looking, ours, theirs):
        os.close(theirs)
        _read(ours, b"Mappings by kind")
        os.close(ours)
        looking.wait(timeout=120)


def _read(descriptor: int, until: bytes) -> bytes:
    seen, end = b"", time.monotonic() + 120
    while until not in seen and time.monotonic() < end:
        if select.select([descriptor], [], [], 1)[0]:
            seen += os.read(descriptor, 1 << 16)
    assert until in seen, seen[-2000:]
    return seen


def test_a_pause_is_ten_times_as_long_as_a_look() -> None:
    assert inspect_show.pause(2, 0.01) == 2
    assert inspect_show.pause(2, 0.9) == 9
