"""A real sudo, called by an ordinary account: what is measured runs as that account, and the results are its own.

The account and its right to call sudo are there in a mount namespace of the test's own, and so is a Python that the
account can read, where this one lies in a folder of root's.
"""

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import hugewise
from hugewise import beneath
from tests.requirements import need_own_namespaces, need_program, need_root

UID = 4242
NAME = "hw-test"
SOURCE = Path(hugewise.__file__).parent.parent

_ENTERED = r"""
set -eu
mount --make-rprivate /
cd "$1"
for hidden in $2; do  # a folder that root alone may enter: what is needed of it is there, and nothing else
    mkdir -p held && mount --bind "$hidden" held
    mount -t tmpfs -o mode=755 tmpfs "$(dirname "$hidden")"
    mkdir -p "$hidden" && mount --move held "$hidden"
done
for file in passwd shadow group sudoers; do mount --bind "etc/$file" "/etc/$file"; done
cd home
exec setpriv --reuid=@UID@ --regid=@UID@ --clear-groups env -i HOME="$PWD" USER=@NAME@ LOGNAME=@NAME@ \
    PATH=/usr/local/bin:/usr/bin:/bin "$3" -c "$4"
""".replace("@UID@", str(UID)).replace("@NAME@", NAME)


def hidden() -> list[str]:
    """What this Python is made of below folders that others may not enter, a level below each."""
    found = []
    for place in {Path(sys.executable), Path(sys.executable).resolve(), SOURCE}:
        above = next((parent for parent in reversed(place.parents) if not parent.stat().st_mode & 0o001), None)
        if above is not None:
            found.append(str(above / place.relative_to(above).parts[0]))
    return sorted(set(found))


@pytest.fixture
def home() -> Iterator[Path]:
    need_root()
    need_own_namespaces()
    for name, package in (("sudo", "sudo"), ("unshare", "util-linux"), ("setpriv", "util-linux")):
        need_program(name, package)
    made = Path(tempfile.mkdtemp(prefix="hw-sudo-", dir="/var/tmp"))
    made.chmod(0o755)
    (made / "etc").mkdir()
    added = {
        "passwd": f"{NAME}:x:{UID}:{UID}::{made}/home:/bin/sh\n",
        "shadow": f"{NAME}:*:19000:0:99999:7:::\n",
        "group": f"{NAME}:x:{UID}:\n",
        "sudoers": f"{NAME} ALL=(ALL:ALL) NOPASSWD: ALL\n",
    }
    for name, line in added.items():
        (made / "etc" / name).write_text(Path("/etc", name).read_text() + line)
        (made / "etc" / name).chmod(Path("/etc", name).stat().st_mode & 0o777)
    (made / "home").mkdir()
    os.chown(made / "home", UID, UID)
    yield made
    beneath.discard(made)


def called(home: Path, script: str) -> subprocess.CompletedProcess[str]:
    """A shell of the account's, in its home; `$HUGEWISE` is this hugewise."""
    words = [sys.executable, "-P", "-c", "from hugewise.cli.main import main; main()"]
    told = f"HUGEWISE={shlex.quote(shlex.join(['env', f'PYTHONPATH={SOURCE}', *words]))}; {script}"
    return subprocess.run(
        [
            "unshare",
            "-m",
            "--propagation",
            "private",
            "sh",
            "-c",
            _ENTERED,
            "sh",
            home,
            " ".join(hidden()),
            "/bin/sh",
            told,
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )


@pytest.mark.usefixtures("unchanged")
@pytest.mark.soak
def test_sudo_advises_a_program_that_runs_as_its_caller(home: Path) -> None:
    script = r"""
        id -u && sudo -n id -u
        eval "sudo -n $HUGEWISE" advise --time 12s --max-candidates 2 --output deploy -- \
            /bin/sh -c "'id -u >> who; exec perl -e \"\\\$text = q(a) x (64 << 20)\"'"
    """
    done = called(home, script)
    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stdout.splitlines()[:2] == [str(UID), "0"]
    assert set((home / "home" / "who").read_text().split()) == {str(UID)}, "every run of it, and no other"
    kept = list((home / "home").rglob("*"))
    assert (home / "home" / "results" / "advice").is_dir()
    assert {path.lstat().st_uid for path in kept} == {UID}
    assert "needs root" not in done.stdout, "what only root may turn was tried too"


def test_who_calls_without_it_is_an_ordinary_user(home: Path) -> None:
    done = called(home, 'eval "$HUGEWISE" doctor; id -u > who')
    assert (home / "home" / "who").read_text() == f"{UID}\n", done.stderr
