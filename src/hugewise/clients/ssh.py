"""The agent on a client's host, over the user's own ssh: started with it, ended with it, and nothing of it is left.

One connection carries all: first the probe itself, which a fixed line of shell puts into a new folder there, then the
messages of its agent on the same stdin and stdout. Nothing listens. When the connection ends, so does the agent with
all that it has started, and the folder is removed; where a link is cut and nobody tells it, a silence ends it.
"""

from __future__ import annotations

import os
import secrets
import shlex
import socket
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from hugewise import reading
from hugewise.errors import MachineError
from hugewise.machine.agent import Agent
from hugewise.machine.foreign import plain
from hugewise.machine.ssh import ssh_command
from hugewise.model.client import ClientHost

__all__ = ["SILENCE_S", "Connection", "connect"]

SILENCE_S = 30
_WATCHED_S, _PATIENCE_S = 5.0, 15.0
_CONNECT_S, _ALIVE_S = 10, 5
_HELLO_S, _LEAVE_S = 60.0, 15.0
_MOST_PROBE = 256 << 20
_LAST_WORDS = 2000  # bytes of what ssh said
# Its words are the folder, the bytes of the probe, and the silence. No user's text is in it.
_SHELL = """umask 077
mkdir -- "$1" && chmod 711 -- "$1" || exit 73
trap 'rm -rf -- "$1"' EXIT
trap 'exit 129' HUP INT TERM
head -c "$2" > "$1/hugewise-probe" && chmod 755 -- "$1/hugewise-probe" || exit 74
TMPDIR="$1" "$1/hugewise-probe" agent --channel - --silence "$3"
"""


@dataclass(frozen=True)
class Connection:
    """A client's host while it is reached.

    place   the folder there
    words   what ssh says to people
    """

    host: ClientHost
    agent: Agent
    process: subprocess.Popen[bytes]
    place: str
    words: BinaryIO

    def lost(self) -> bool:
        """Whether it is reached no more."""
        return self.agent.ended() or self.process.poll() is not None

    def close(self) -> None:
        """End the agent with all that it has started, and see that ssh is gone."""
        if self.agent.ended():  # ssh may wait for a link that is cut; the agent ends by itself
            self.process.kill()
        with suppress(MachineError):
            self.agent.poweroff(_LEAVE_S)
        self.agent.close()
        try:
            self.process.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.words.close()


def connect(host: ClientHost, program: Path) -> Connection:
    """Reach the host and start the agent `program` there. Raises MachineError with what ssh said, UserError."""
    place = f"{host.folder}/hugewise-{secrets.token_hex(8)}"
    agent = reading.content(program, _MOST_PROBE)
    words = os.fdopen(os.memfd_create("ssh", os.MFD_CLOEXEC), "rb", buffering=0)
    ours, theirs = socket.socketpair()
    name = f"client {host.name}"

    def error(message: str) -> MachineError:
        said = "" if words.closed else os.pread(words.fileno(), _LAST_WORDS, 0).decode(errors="replace").strip()
        return MachineError(f"{message}; ssh: {plain(said)}" if said else message)

    with theirs:
        process = subprocess.Popen(
            _argv(host, place, len(agent)),
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=words.fileno(),
            start_new_session=True,
        )
    try:
        ours.settimeout(_HELLO_S)
        try:
            ours.sendall(agent)
        except OSError as broken:
            with suppress(subprocess.TimeoutExpired):
                process.wait(1)
            raise error(f"{name} cannot be reached: {broken.strerror or 'it takes too long'}") from None
        channel = Agent(ours, name, error, patience=_PATIENCE_S)
        channel.hello(_HELLO_S)
        channel.watch(_WATCHED_S, _PATIENCE_S)
    except BaseException:
        ours.close()
        process.kill()
        process.wait()
        words.close()
        raise
    return Connection(host, channel, process, place, words)


def _argv(host: ClientHost, place: str, size: int) -> list[str]:
    command = shlex.join(["sh", "-c", _SHELL, "hugewise", place, str(size), str(SILENCE_S)])
    return ssh_command(host.ssh, f"exec {command}", connect_s=_CONNECT_S, alive_s=_ALIVE_S)
