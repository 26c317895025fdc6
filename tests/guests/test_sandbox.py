"""Sandboxes: whose they are, what is lent and taken, and that nothing of them is left."""

from __future__ import annotations

import os
import pwd
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from hugewise import unprivileged
from hugewise.errors import StorageError
from hugewise.guests.cache import open_sandbox
from tests.requirements import need_root
from tests.test_unprivileged import is_gone
from tests.wait import until

_PATIENCE_S = 120.0


@pytest.fixture(autouse=True)
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUGEWISE_CACHE", str(tmp_path / "cache"))


def test_what_is_lent_can_be_read_what_is_made_can_be_taken(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("lent")
    (tmp_path / "secret").chmod(0o600)

    def work(say: unprivileged.Say) -> None:
        if root:
            assert not os.access(sandbox.lent / "in", os.W_OK)
            assert not os.access(sandbox.lent, os.W_OK)
        (sandbox.own / "made").write_text((sandbox.lent / "in").read_text() + " and made")
        (sandbox.own / "made").chmod(0o4777)
        say("done")

    root = os.geteuid() == 0
    lines: list[str] = []
    with open_sandbox() as sandbox:
        sandbox.lend(tmp_path / "secret", "in")
        sandbox.do(work, lines.append)
        sandbox.take("made", tmp_path / "taken")
    assert lines == ["done"]
    assert (tmp_path / "taken").read_text() == "lent and made"
    found = (tmp_path / "taken").stat()
    assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (os.geteuid(), 0o644)
    assert not sandbox.path.exists()


def test_under_root_nobody_else_reaches_it() -> None:
    need_root()
    nobody = pwd.getpwnam("nobody")
    with open_sandbox() as sandbox:
        assert sandbox.path.parent == Path("/var/tmp")
        folders = [
            (path.stat().st_uid, stat.S_IMODE(path.stat().st_mode))
            for path in (sandbox.path, sandbox.lent, sandbox.own)
        ]
        assert folders == [(0, 0o710), (0, 0o755), (nobody.pw_uid, 0o700)]
        assert sandbox.path.stat().st_gid == sandbox.group != nobody.pw_gid


def test_a_workload_of_the_same_account_can_neither_enter_it_nor_trace_who_works() -> None:
    need_root()
    with open_sandbox() as sandbox:
        began, goes_on = os.pipe(), os.pipe()

        def work(_: unprivileged.Say) -> None:
            (sandbox.own / "made").write_text("mine")
            os.write(began[1], str(os.getpid()).encode())
            os.read(goes_on[0], 1)

        def intrude(say: unprivileged.Say) -> None:
            pid = int(os.read(began[0], 20))
            for path in (
                sandbox.path / "own",
                sandbox.path / "own/made",
                Path(f"/proc/{pid}/environ"),
                Path(f"/proc/{pid}/fd"),
            ):
                say("reached" if os.access(path, os.R_OK) else "kept out")
            os.write(goes_on[1], b"x")

        lines: list[str] = []
        thread = threading.Thread(
            target=unprivileged.call, args=(intrude, lines.append), kwargs={"keep": (*began, *goes_on)}
        )
        thread.start()
        sandbox.do(work, print, keep=(*began, *goes_on))
        thread.join(_PATIENCE_S)
        sandbox.take("made", Path(os.environ["HUGEWISE_CACHE"] + "-taken"))
    assert lines == ["kept out"] * 4


def test_work_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def work(_: unprivileged.Say) -> None:
        (shop.own / "below/below").mkdir(parents=True)
        (shop.own / "below").chmod(0)
        (tmp_path / "nowhere" / "x").write_text("")

    with pytest.raises(StorageError, match="cannot work in .*/hugewise-made-"), open_sandbox() as shop:
        shop.do(work, print)
    assert not shop.path.exists()


def test_a_folder_that_another_process_tidies_away_before_it_is_locked_is_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Path] = []
    real = tempfile.mkdtemp

    def tidied_once(*args: Any, **named: Any) -> str:
        made.append(Path(real(*args, **named)))
        if len(made) == 1:
            made[0].rmdir()
        return str(made[-1])

    monkeypatch.setattr(tempfile, "mkdtemp", tidied_once)
    with open_sandbox() as sandbox:
        assert len(made) == 2 and sandbox.path == made[1]
    assert not made[1].exists()


def test_what_a_killed_process_left_the_next_one_removes_and_a_living_ones_stays(tmp_path: Path) -> None:
    script = """\
        import os, time
        from hugewise.guests.cache import open_sandbox
        with open_sandbox() as shop:
            def work(say):
                at = shop.own
                for _ in range(150):  # no recursion, however deep
                    at = at / ("d" * 20)
                    at.mkdir()
                (shop.own / "pid").write_text(str(os.getpid()))
                time.sleep(1000)
            print(shop.path, flush=True)
            shop.do(work, print)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        left = Path(running.stdout.readline().strip())
        helper = left / "own/pid"
        until(lambda: helper.exists() and helper.read_text(), "its helper is there")
        pid = int(helper.read_text())
        with open_sandbox():
            assert left.exists()  # its holder lives
        running.send_signal(signal.SIGKILL)
        running.wait()
        assert is_gone(pid), "its helper goes with it"
    with open_sandbox() as sandbox:
        assert not left.exists()
        assert sandbox.path.parent == left.parent
