"""The probe's agent itself, as a process of this host: a guest without QEMU."""

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from hugewise.machine import probe
from hugewise.machine.agent import Agent
from hugewise.machine.remote import RemoteMachine

SPEC = probe.Spec(argv=("/bin/true",), env={"PATH": "/usr/bin:/bin"}, cwd="/", stdout="", stderr="", timeout_s=60)


@dataclass
class Live:
    """A machine over an agent that runs here; its files lie below `folder`."""

    machine: RemoteMachine
    process: subprocess.Popen[bytes]
    folder: Path


@contextmanager
def started(folder: Path, *arguments: str) -> Iterator[tuple[socket.socket, subprocess.Popen[bytes]]]:
    """An agent below `folder`, and the host's end of its channel."""
    (folder / "tmp").mkdir()
    ours, theirs = socket.socketpair()
    with theirs, (folder / "messages").open("wb") as said:
        process = subprocess.Popen(
            [probe.find(), "agent", "--channel", "-", *arguments],
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=said,
            env={"TMPDIR": str(folder / "tmp")},
        )
    try:
        yield ours, process
    finally:
        ours.close()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


@contextmanager
def live(folder: Path, *, emulated: bool = True) -> Iterator[Live]:
    """An agent that has said hello."""
    with started(folder) as (channel, process):
        agent = Agent(channel, "guest live")
        try:
            agent.hello(60)
            yield Live(RemoteMachine(agent, emulated=emulated, outputs=str(folder / "out")), process, folder)
        finally:
            agent.close()


def job(
    folder: Path,
    *argv: str,
    micro: bool = False,
    scan: Literal["none", "exit"] = "none",
    groups: tuple[Path, ...] = (),
) -> probe.Job:
    """A job with all its files below `folder`, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    streams = {"stdout": str(folder / "stdout"), "stderr": str(folder / "stderr")}
    entered = tuple(map(str, groups))
    spec = msgspec.structs.replace(SPEC, argv=argv, micro=micro, scan=scan, cgroup_procs=entered, **streams)
    return probe.Job(spec, *(folder / name for name in ("spec.json", "events.jsonl", "probe-stderr")))
