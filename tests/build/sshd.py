"""A real sshd in a network namespace, with keys of its own, and what ssh knows of it: for fleets and for clients."""

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.requirements import need, need_program, need_root

SSHD = "/usr/sbin/sshd"

_SETTINGS = """
Port {port}
ListenAddress {address}
HostKey {key}
AuthorizedKeysFile {authorized}
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
Subsystem sftp internal-sftp
"""

_REACHED = """
Host {name}
  HostName {address}
  Port {port}
  User {account}
  IdentityFile {key}
  IdentitiesOnly yes
  UserKnownHostsFile {known}
  StrictHostKeyChecking yes
"""


def needed() -> None:
    """What a test needs of the machine for that."""
    need_root()
    need_program("ip", "iproute2")
    need_program("ssh", "openssh-client")
    need(Path(SSHD).exists(), f"{SSHD} (apt install openssh-server)")


def key_pair(path: Path) -> None:
    """Make one; the public key is beside it."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", str(path)], check=True)


def known(address: str, port: int, key: Path) -> str:
    """A line of known_hosts."""
    name = address if port == 22 else f"[{address}]:{port}"
    return f"{name} {' '.join(key.with_suffix('.pub').read_text().split()[:2])}\n"


def reached_by(*, name: str, address: str, account: str, key: Path, known: Path, port: int = 22) -> str:
    """A host of ssh_config(5)."""
    return _REACHED.format(name=name, address=address, port=port, account=account, key=key, known=known)


@contextmanager
def serving(
    within: Sequence[str], folder: Path, *, address: str, key: Path, authorized: Path, port: int = 22, more: str = ""
) -> Iterator[subprocess.Popen[bytes]]:
    """Meanwhile it listens there; `within` are the words that have a command done in the namespace."""
    settings, log = folder / "sshd_config", folder / "sshd.log"
    text = _SETTINGS.format(port=port, address=address, key=key, authorized=authorized)
    settings.write_text(f"{text}{more}\n")
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    with log.open("w") as said:
        running = subprocess.Popen(
            [*within, SSHD, "-D", "-e", "-f", str(settings)], stdin=subprocess.DEVNULL, stdout=said, stderr=said
        )
    try:
        end = time.monotonic() + 120
        while "Server listening" not in log.read_text():
            assert running.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.01)
        yield running
    finally:
        running.terminate()
        running.wait(60)
