"""A cluster of Slurm on this machine: Debian's munged, slurmctld and a slurmd for each node, on the loopback.

They are started by hand, in the foreground, with a configuration in a folder of the test, and ended by their pids.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from hugewise.fleet.protocol import THIS
from tests.requirements import need_program, need_root
from tests.wait import until

NODES = ("n1", "n2", "n3")

_CONF = """
ClusterName=hw
SlurmctldHost={name}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SchedulerParameters=sched_interval=1,sched_min_interval=100000,bf_interval=1,batch_sched_delay=0
KillWait=5
SlurmdTimeout=10
PartitionName=all Nodes=ALL Default=YES OverSubscribe=EXCLUSIVE MaxTime=INFINITE State=UP
"""


class Cluster:
    """Up when it is entered; its configuration is that of the process meanwhile."""

    def __init__(self, folder: Path, nodes: Sequence[str] = NODES) -> None:
        self.folder, self.nodes = folder, tuple(nodes)
        self._stack = ExitStack()
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Cluster:
        need_root()
        for program, package in (
            ("munged", "munge"),
            ("slurmctld", "slurmctld"),
            ("slurmd", "slurmd"),
            ("sbatch", "slurm-client"),
        ):
            need_program(program, package)
        with self._stack as stack:
            stack.callback(self._end)
            (self.folder / "state").mkdir()
            key = self.folder / "munge.key"
            key.write_bytes(os.urandom(128))
            key.chmod(0o600)
            ports = _free(1 + len(self.nodes))
            name = socket.gethostname()
            nodes = "".join(
                f"NodeName={node} NodeHostname={name} NodeAddr=127.0.0.1 Port={port} CPUs=1\n"
                for node, port in zip(self.nodes, ports[1:], strict=True)
            )
            self.conf = self.folder / "slurm.conf"
            self.conf.write_text(_CONF.format(name=name, port=ports[0], folder=self.folder) + nodes)
            held = [f"--{what}={self.folder}/munge.{what.partition('-')[0]}" for what in ("socket", "pid-file")]
            held += [f"--{what}={self.folder}/munge.{what.partition('-')[0]}" for what in ("log-file", "seed-file")]
            self.start("munged", "munged", "--foreground", "--force", f"--key-file={key}", *held)
            until((self.folder / "munge.socket").exists, "munged listens")
            self.start("slurmctld", "slurmctld", "-D", "-f", str(self.conf))
            for node in self.nodes:
                self.start(node, "slurmd", "-D", "-N", node, "-f", str(self.conf))
            stack.enter_context(_environment("SLURM_CONF", str(self.conf)))
            asked, idle = ("sinfo", "--noheader", "--Node", "--format=%T"), ["idle"] * len(self.nodes)
            until(lambda: self.said(*asked).split() == idle, "all nodes are idle", seen=lambda: self.said(*asked))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, called: str, *words: str) -> None:
        with (self.folder / f"{called}.out").open("ab") as output:
            self.daemons[called] = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    def _end(self) -> None:
        for each in reversed(self.daemons.values()):
            each.terminate()
            try:
                each.wait(5)
            except subprocess.TimeoutExpired:
                each.kill()
                each.wait()

    def said(self, *words: str) -> str:
        """What a program of Slurm's says, whatever its status."""
        return subprocess.run(words, capture_output=True, text=True, check=False, timeout=30).stdout

    def installed(self) -> Path:
        """A folder with `bin/hugewise`, which runs these sources wherever a job has it."""
        folder = self.folder / "install"
        (folder / "bin").mkdir(parents=True)
        script = folder / "bin" / "hugewise"
        path = os.pathsep.join(each for each in sys.path if each)
        words = " ".join(f"'{each}'" for each in THIS)
        script.write_text(f"#!/bin/sh\nPYTHONPATH='{path}' exec {words} \"$@\"\n")
        script.chmod(0o755)
        return folder


def _free(count: int) -> list[int]:
    """So many free ports."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
