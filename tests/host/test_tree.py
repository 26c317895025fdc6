"""Commands of an ordinary user without a cgroup stand still by SIGSTOP; their launcher does not, and ends them."""

import errno
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from hugewise import processes
from hugewise.errors import HugewiseError
from hugewise.host import cgroup
from hugewise.host.cgroup import Freezer
from tests.wait import has_ended, until

BUSY = "while :; do :; done"
FORKING = "while :; do /bin/true; done & while :; do (:); done"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a busy machine is slow to stop is not given up."""
    monkeypatch.setattr(Freezer.__init__, "__defaults__", (60.0,))


def test_the_processes_below_a_launcher_stop_and_go_on_without_a_group_and_it_does_not() -> None:
    """What an ordinary user has: the launcher itself must hear, and ends what is stopped."""
    launcher = ["/bin/sh", "-c", f"({BUSY}) & ({FORKING}) & wait"]
    with subprocess.Popen(["/bin/sh", "-c", '"$@"; exit', "guardian", *launcher], start_new_session=True) as begun:
        tree, descriptor = cgroup.Tree(), os.pidfd_open(begun.pid)
        try:
            with pytest.raises(HugewiseError, match="without a cgroup"):
                tree.freeze()
            tree.follow(type("Launcher", (), {"fileno": lambda _: descriptor})())
            until(lambda: len(tree.processes()) > 2, "they are there")
            for _ in range(3):
                tree.freeze()
                stopped, above = tree.processes(), processes.tree(begun.pid)[:2]
                assert all(map(cgroup._is_stopped, stopped)) and not any(map(cgroup._is_stopped, above))
                tree.thaw()
                until(lambda: not all(map(cgroup._is_stopped, tree.processes())), "they go on")
        finally:
            os.close(descriptor)
            os.killpg(begun.pid, signal.SIGKILL)


def test_a_process_of_another_account_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command may start sudo or su: who runs it cannot stop these."""

    def refused(pid: int, number: int) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(cgroup.Tree, "processes", lambda _: [1])
    monkeypatch.setattr(os, "kill", refused)
    tree = cgroup.Tree(root=1)
    for turn, word in ((tree.freeze, "freeze"), (tree.thaw, "thaw")):
        with pytest.raises(HugewiseError, match=rf"cannot {word} the command, .*\(sudo, su\): Operation not permitted"):
            turn()


# Starts a program by the probe, freezes what is below its launcher, and says the guardian's number.
FREEZES = """
import sys, time
from pathlib import Path
from hugewise.host.cgroup import Freezer, Tree
from hugewise.host.local_machine import LocalMachine
from hugewise.machine.machine import run_launchers
from tests.build.live_agent import job

Freezer.__init__.__defaults__ = (60.0,)

def frozen(launched):
    tree = Tree()
    tree.follow(launched[0])
    while not Path(sys.argv[1], "begun").exists():
        time.sleep(0.01)
    tree.freeze()
    print(tree.root, flush=True)
    time.sleep(600)

script = f"(while :; do :; done) & touch {sys.argv[1]}/begun; while :; do :; done"
run_launchers([(LocalMachine(), job(Path(sys.argv[1], "job"), "/bin/sh", "-c", script))], alongside=frozen)
"""


@pytest.mark.parametrize("killed", ["hugewise", "guardian"])
def test_the_launcher_ends_what_is_frozen_without_a_group_when_hugewise_is_killed(tmp_path: Path, killed: str) -> None:
    with subprocess.Popen([sys.executable, "-c", FREEZES, str(tmp_path)], stdout=subprocess.PIPE) as begun:
        assert begun.stdout is not None
        guardian = int(begun.stdout.readline())
        below = processes.tree(guardian)
        try:
            stopped = list(map(cgroup._is_stopped, below))
            assert len(below) >= 4 and stopped == [False, False] + [True] * (len(below) - 2)
            os.kill(begun.pid if killed == "hugewise" else guardian, signal.SIGKILL)
            until(lambda: all(map(has_ended, below)), "they are gone")
        finally:
            begun.kill()
            for pid in below:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
