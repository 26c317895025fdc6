"""The command line of ssh: the caller's own program with its configuration, keys, agents and jump hosts.

It never asks: what would need a password fails. The host is given what is asked for and nothing else: no agent, no
display, no port of the caller's, whatever their configuration says. Source: ssh(1), ssh_config(5).
"""

from __future__ import annotations

from collections.abc import Sequence

from hugewise.errors import UserError
from hugewise.machine.programs import of_root

__all__ = ["ssh_command"]

_NOTHING_ELSE = (
    *("-T", "-a", "-x", "-o", "BatchMode=yes", "-o", "ClearAllForwardings=yes"),
    *("-o", "PermitLocalCommand=no", "-o", "RemoteCommand=none"),
)


def ssh_command(reach: Sequence[str], command: str, *, connect_s: int, alive_s: int) -> list[str]:
    """The words that have `command` done by the shell of a host: quote in it what is not fixed.

    `reach`: options of the user's, and the target last. ssh gives up after `connect_s` seconds without a connection,
    and after three times `alive_s` without a word. Raises UserError where there is no ssh.
    """
    program = of_root("ssh")
    if program is None:
        raise UserError("ssh: no such program; other hosts are reached by it", hint="apt install openssh-client")
    times = ("-o", f"ConnectTimeout={connect_s}", "-o", f"ServerAliveInterval={alive_s}", "-o", "ServerAliveCountMax=3")
    return [program, *_NOTHING_ELSE, *times, *reach[:-1], "--", reach[-1], command]
