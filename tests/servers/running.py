"""Real servers for tests: each on a unix socket in a folder of its own, asked whether it is ready, and ended."""

import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.requirements import need_program
from tests.wait import until

__all__ = ["Running", "memcached", "redis"]


@dataclass(frozen=True)
class Running:
    """A server that answers."""

    protocol: str
    socket: Path
    process: subprocess.Popen[bytes]

    @property
    def address(self) -> str:
        """As the load generator takes it."""
        return f"unix:{self.socket}"

    def ask(self, request: str) -> str:
        """What it says to one line."""
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(60)
            client.connect(str(self.socket))
            client.sendall(request.encode() + b"\r\n")
            said = b""
            while not said.endswith(b"\r\n") or (request == "stats" and not said.endswith(b"END\r\n")):
                said += client.recv(65536)
            return said.decode()

    def items(self) -> int:
        """How many keys it holds."""
        if self.protocol == "redis":
            return int(self.ask("DBSIZE")[1:])
        return self.stat("curr_items")

    def stat(self, name: str) -> int:
        """One number of `stats` (memcached) or `INFO` (redis)."""
        if self.protocol == "redis":
            lines = self.info().splitlines()
            return int(next(line for line in lines if line.startswith(f"{name}:")).split(":")[1])
        lines = self.ask("stats").splitlines()
        return int(next(line for line in lines if line.startswith(f"STAT {name} ")).split()[2])

    def info(self) -> str:
        """All of redis's INFO: a bulk string, read to its announced length."""
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(60)
            client.connect(str(self.socket))
            client.sendall(b"INFO\r\n")
            stream = client.makefile("rb")
            return stream.read(int(stream.readline()[1:])).decode()


def _answers(server: Running) -> bool:
    try:
        server.items()
    except OSError:
        assert server.process.poll() is None, f"it has ended with {server.process.returncode}"
        return False
    return True


@contextmanager
def _started(protocol: str, command: list[str], path: Path) -> Iterator[Running]:
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    server = Running(protocol, path, process)
    try:
        until(lambda: _answers(server), f"{command} answers")
        yield server
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def redis(*options: str) -> Iterator[Running]:
    """redis without persistence."""
    program = need_program("redis-server", "redis-server")
    with tempfile.TemporaryDirectory(prefix="load") as folder:
        path = Path(folder) / "redis"
        command = [program, "--port", "0", "--unixsocket", str(path), "--save", "", "--appendonly", "no", *options]
        with _started("redis", command, path) as server:
            yield server


@contextmanager
def memcached(*options: str) -> Iterator[Running]:
    """memcached with one thread."""
    program = need_program("memcached", "memcached")
    with tempfile.TemporaryDirectory(prefix="load") as folder:
        Path(folder).chmod(0o777)
        path = Path(folder) / "memcached"
        command = [program, "-s", str(path), "-a", "0777", "-t", "1", "-u", "nobody", *options]
        with _started("memcached", command, path) as server:
            yield server
