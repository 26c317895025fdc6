"""Installing one hugewise on every host of an inventory, over the caller's own ssh: from wheels that lie here.

A folder of wheels goes to each host, each held against its hash there; a virtual environment is made of them without
any index, so that every host has the same files and needs no network; then the wheels are removed again. What is left
is the folder of the installation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from hugewise import reading
from hugewise.errors import HugewiseError, UserError
from hugewise.fleet.engine import CommandOutput, call_all, over_ssh
from hugewise.fleet.inventory import HostEntry, Inventory

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+!-]{0,199}\.whl")
_MOST = 1 << 30  # bytes of one wheel
_MOST_SAID = 1 << 20
_QUICK_S, _SLOW_S = 60.0, 900.0
_PLACE = re.compile(r"/[A-Za-z0-9._/-]{1,200}")
# Runs before anything is made there: nothing is overwritten, no other account could have put files in, and no run under
# way gets other files.
_LOOK = """
import ensurepip, os, stat, sys, venv
from pathlib import Path
folder = Path(sys.argv[1])
if sys.version_info < (3, 11):
    sys.exit("its Python is %d.%d, and 3.11 is needed" % sys.version_info[:2])
if len(folder.parts) < 3:
    sys.exit(f"{folder} is a folder of the system: name one of its own, such as /opt/hugewise")
if folder.exists() and any(folder.iterdir()):
    made = folder / "pyvenv.cfg"
    if not made.is_file() or "hugewise" not in made.read_text(errors="replace"):
        sys.exit(f"{folder} is there, and is no installation of hugewise: name another one")
for each in (folder, *folder.parents):
    if os.path.lexists(each):
        found = each.lstat()
        if stat.S_ISLNK(found.st_mode) and found.st_uid != 0:
            sys.exit(f"{each} is a link of another account")
        shared = found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX and not stat.S_ISLNK(found.st_mode)
        if found.st_uid not in (0, os.geteuid()) or shared:
            sys.exit(f"{each} can be changed by others")
for path in Path("/proc").glob("[0-9]*/cmdline"):
    try:
        words = path.read_bytes().split(b"\\0")
    except OSError:
        continue
    if words[0].startswith(os.fsencode(folder) + b"/") and b"fleet" in words and b"keep" in words:
        sys.exit("a fleet measures there now: wait for it, or end it: hugewise fleet resume --end")
"""
_AT_ONCE = 4  # hosts: each has the wheels in memory on its way


class Carry(Protocol):
    """A command on a host, with its standard input: `engine.over_ssh`."""

    def __call__(
        self, entry: HostEntry, words: Sequence[str], data: bytes = b"", *, timeout: float, most: int
    ) -> CommandOutput: ...


class HostWheel(msgspec.Struct, frozen=True):
    """A wheel here, with its SHA-256."""

    path: Path
    digest: str


def wheels_in(folder: Path) -> list[HostWheel]:
    """Return the wheels in a folder, one of them hugewise's. Raises UserError."""
    hint = f"make it: make wheel; pip download --only-binary :all: --dest {folder} dist/hugewise-*.whl"
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == ".whl")
        wheels = [HostWheel(path, reading.sha256(path)) for path in paths]
        large = [wheel.path.name for wheel in wheels if wheel.path.stat().st_size > _MOST]
    except (OSError, reading.UnreadableError) as error:
        raise UserError(f"the wheels in {folder}: {error}", hint=hint) from None
    if large:
        raise UserError(f"{folder / large[0]}: larger than {_MOST >> 20:,} MiB", hint="take it away")
    if odd := [wheel.path.name for wheel in wheels if not _NAME.fullmatch(wheel.path.name)]:
        raise UserError(f"{folder / odd[0]}: not the name of a wheel", hint="take it away")
    own = [wheel for wheel in wheels if wheel.path.name.startswith("hugewise-")]
    if len(own) != 1:
        raise UserError(f"{folder} has {len(own)} wheels of hugewise, and one is to be installed", hint=hint)
    return wheels


def provision(
    inventory: Inventory,
    wheels: Sequence[HostWheel],
    say: Callable[[str], None],
    *,
    python: str = "python3",
    carry: Carry = over_ssh,
) -> Mapping[str, str]:
    """Install them on every host that ssh reaches; why that failed, by host. Raises UserError where one has no ssh."""
    for host in inventory.host:
        if host.ssh is None:
            raise UserError(f"{inventory.file}: {host.name} has no ssh", hint='add its target: ssh = "..."')

    def install(name: str) -> None:
        _install(inventory, inventory.entry(name), wheels, python, carry)

    failed: dict[str, str] = {}
    for name, came in call_all(install, [host.name for host in inventory.host], _AT_ONCE).items():
        if isinstance(came, HugewiseError):
            failed[name] = came.message
            say(f"{name}: {came.message}")
        elif isinstance(came, BaseException):
            raise came
        else:
            say(f"{name}: installed in {inventory.installation(inventory.entry(name))}")
    return failed


def _install(inventory: Inventory, entry: HostEntry, wheels: Sequence[HostWheel], python: str, carry: Carry) -> None:
    folder, extra = inventory.installation(entry), "[fleet]" if inventory.fleet.engine == "dask" else ""

    def run(*words: str, data: bytes = b"", timeout: float = _QUICK_S, cure: str = "") -> bytes:
        prefix = ["sudo", "-n", "--"] if entry.root else []
        output = carry(entry, [*prefix, *words], data, timeout=timeout, most=_MOST_SAID)
        if output.status:
            raise HugewiseError(f"{' '.join(words[:3])[:100]}: {output.why}{f'; {cure}' if cure else ''}")
        return output.stdout

    cure = "it needs Python 3.11 or later with venv and ensurepip (apt install python3-venv)"
    run(python, "-I", "-c", _LOOK, folder, cure=cure)
    below = run("mktemp", "-d").decode("ascii", "replace").strip()  # this account alone can enter it
    if not _PLACE.fullmatch(below):
        raise HugewiseError("mktemp has made no folder there")
    try:
        for wheel in wheels:
            there = f"{below}/{wheel.path.name}"
            run("dd", f"of={there}", "status=none", data=reading.content(wheel.path, _MOST), timeout=_SLOW_S)
            checksum = run("sha256sum", "--", there).split()
            if not checksum or checksum[0].decode("ascii", "replace") != wheel.digest:
                raise HugewiseError(f"{wheel.path.name} has not come there as it is here")
        run(python, "-I", "-m", "venv", "--prompt", "hugewise", folder)
        pip = [f"{folder}/bin/python", "-I", "-m", "pip", "--isolated", "--disable-pip-version-check"]
        pip += ["install", "--quiet", "--no-input", "--no-index"]
        own = next(wheel.path.name for wheel in wheels if wheel.path.name.startswith("hugewise-"))
        run(*pip, "--find-links", below, f"{below}/{own}{extra}", timeout=_SLOW_S)
        # An installed hugewise of the same version may have other files.
        run(*pip, "--no-deps", "--force-reinstall", f"{below}/{own}", timeout=_SLOW_S)
    finally:
        run("rm", "-r", "-f", "--", below)
    run(f"{folder}/bin/hugewise", "--version")
