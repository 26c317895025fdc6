"""Measure the CPU cost of the load generator, beside redis-benchmark and, where it is on PATH, memtier_benchmark.

All ask the same redis over the same unix socket for the same work in the same run, in turns: one set to ten gets of
64 B values under 100,000 keys, 50 connections, pipeline 16. The server has one CPU and the client another one.
redis-benchmark has no mix, so it does the sets and the gets one after the other. What counts is getrusage of the whole
client process.
"""

from __future__ import annotations

import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hugewise.machine import probe

ROUNDS = 5
OPERATIONS = 1_100_000
KEYS = 100_000
CONNECTIONS = 50
PIPELINE = 16
TARGETS = {"redis-benchmark": 0.9, "memtier_benchmark": 0.75}
OURS = "hugewise-probe load"


class MissingError(Exception):
    """A program or a CPU that the benchmark needs is not there."""


@dataclass(frozen=True)
class Cost:
    """CPU time of a client in microseconds an operation."""

    user: float
    system: float

    @property
    def both(self) -> float:
        """User and system together: the only figure that is exact where the kernel splits by ticks."""
        return self.user + self.system


def need(name: str, package: str) -> str:
    """Return the path of a program. Raises MissingError."""
    found = shutil.which(name)
    if found is None:
        raise MissingError(f"{name} (apt install {package})")
    return found


@contextmanager
def redis(cpu: int) -> Iterator[Path]:
    """Run redis without persistence on one CPU; yields its socket when it answers."""
    program = need("redis-server", "redis-server")
    with tempfile.TemporaryDirectory(prefix="bench") as folder:
        path = Path(folder) / "redis"
        command = [program, "--port", "0", "--unixsocket", str(path), "--save", "", "--appendonly", "no"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            os.sched_setaffinity(process.pid, {cpu})
            wait_for(path, process)
            yield path
        finally:
            process.terminate()
            process.wait()


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait until the socket accepts connections. Raises MissingError after 10 s, or when the process has ended."""
    end = time.monotonic() + 10
    while process.poll() is None and time.monotonic() < end:
        with socket.socket(socket.AF_UNIX) as client:
            try:
                client.connect(str(path))
            except OSError:
                time.sleep(0.01)
            else:
                return
    raise MissingError("a redis-server that starts (see its messages with: redis-server --port 0)")


def spend(commands: Sequence[Sequence[str]], cpu: int, operations: int) -> Cost:
    """Measure the CPU time of commands that do `operations` together. Raises CalledProcessError when one fails."""
    user = system = 0.0
    for command in commands:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        os.sched_setaffinity(process.pid, {cpu})
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise subprocess.CalledProcessError(process.returncode, list(command))
        user, system = user + usage.ru_utime, system + usage.ru_stime
    return Cost(user / operations * 1e6, system / operations * 1e6)


def ours(path: Path, *options: str) -> list[str]:
    """Return the load generator's command."""
    fixed = ["load", "--protocol", "redis", "--server", f"unix:{path}", "--keys", str(KEYS), "--payload", "64:1"]
    fixed += ["--key-name", "key:%012d"]
    return [probe.find(), *fixed, *options]


def by_ours(path: Path, operations: int) -> list[list[str]]:
    shape = ["--connections", str(CONNECTIONS), "--pipeline", str(PIPELINE), "--operations", str(operations)]
    return [ours(path, "--hit-ratio", "1", "--set-get", "1:10", *shape)]


def by_redis_benchmark(path: Path, operations: int) -> list[list[str]]:
    """Return the commands of redis-benchmark. Raises MissingError where it is not installed."""
    program = need("redis-benchmark", "redis-tools")
    shape = ["-s", str(path), "-c", str(CONNECTIONS), "-P", str(PIPELINE), "-r", str(KEYS), "-d", "64", "-q"]
    sets = operations // 11
    return [
        [program, *shape, "-t", "set", "-n", str(sets)],
        [program, *shape, "-t", "get", "-n", str(operations - sets)],
    ]


def by_memtier(path: Path, operations: int) -> list[list[str]]:
    """Return the commands of memtier_benchmark, which stores keys of its own names first. Raises MissingError."""
    program = shutil.which("memtier_benchmark")
    if program is None:
        raise MissingError("memtier_benchmark is not on PATH")
    shape = ["-S", str(path), "-P", "redis", "-t", "1", "-c", str(CONNECTIONS), f"--pipeline={PIPELINE}"]
    keys = ["-d", "64", f"--key-maximum={KEYS - 1}", "--key-minimum=0", "--hide-histogram"]
    first = [program, "-S", str(path), "-P", "redis", "-t", "1", "-c", "1", *keys, "--ratio=1:0", "--key-pattern=S:S"]
    subprocess.run([*first, "-n", str(KEYS)], check=True, capture_output=True)
    return [[program, *shape, *keys, "--ratio=1:10", "-n", str(operations // CONNECTIONS)]]


def show(costs: dict[str, list[Cost]]) -> str:
    """Return medians over the rounds, and the targets, at 80 columns."""
    text = [f"{'client, us of CPU an operation':<34}{'user':>9}{'system':>9}{'both':>9}"]
    median = {
        name: Cost(statistics.median(c.user for c in found), statistics.median(c.system for c in found))
        for name, found in costs.items()
    }
    for name, cost in median.items():
        text.append(f"{name:<34}{cost.user:>9.3f}{cost.system:>9.3f}{cost.both:>9.3f}")
    for peer, target in TARGETS.items():
        if peer in costs:
            pairs = zip(costs[OURS], costs[peer], strict=True)
            ratio = statistics.median(mine.both / theirs.both for mine, theirs in pairs)
            word = "met" if ratio <= target else "MISSED"
            text.append(f"{OURS} / {peer}: {ratio:.2f}, target at most {target} -> {word}")
    return "\n".join(text)


def measure(path: Path, cpu: int, rounds: int, operations: int) -> tuple[dict[str, list[Cost]], list[str]]:
    """Costs by client; each round begins with another one. And what is missing."""
    spend([ours(path, "--preload")], cpu, KEYS)
    commands, absent = {OURS: by_ours(path, operations)}, []
    for peer, make in (("redis-benchmark", by_redis_benchmark), ("memtier_benchmark", by_memtier)):
        try:
            commands[peer] = make(path, operations)
        except MissingError as missing:
            absent.append(f"{peer}: {missing}" if peer not in str(missing) else str(missing))
    costs: dict[str, list[Cost]] = {name: [] for name in commands}
    names = list(commands)
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            costs[name].append(spend(commands[name], cpu, operations))
    return costs, absent


def main(rounds: int = ROUNDS, operations: int = OPERATIONS) -> int:
    """Measure and print. Returns 1 where a requirement is missing, else 0: a busy machine is no failure."""
    print("CPU of the load generator, redis on a unix socket")
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        print("requires: two CPUs, one for the server and one for the client")
        return 1
    try:
        with redis(cpus[0]) as path:
            costs, absent = measure(path, cpus[-1], rounds, operations)
    except MissingError as missing:
        print(f"requires: {missing}")
        return 1
    print(f"{rounds} rounds of {operations:,} operations each, client on CPU {cpus[-1]}, server on CPU {cpus[0]}")
    print(show(costs))
    for line in absent:
        print(line)
    return 1 if "redis-benchmark" not in costs else 0


if __name__ == "__main__":
    sys.exit(main())
