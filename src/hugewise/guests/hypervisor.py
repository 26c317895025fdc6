"""QEMU and KVM on this host: the QEMU that is installed, whether KVM boots a guest, and the account that QEMU runs as.

That KVM's device opens, and that vCPUs can be made, proves nothing: a guest is booted. QEMU is given a private folder.
"""

from __future__ import annotations

import functools
import os
import pwd
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from hugewise import unprivileged
from hugewise.errors import HugewiseError, MachineError, UserError
from hugewise.files import storing
from hugewise.guests.boot import BootedGuest, Hosting, boot
from hugewise.guests.qemu import PROGRAMS
from hugewise.host.ledger import JournalRecord, Scratched
from hugewise.host.local_host import account
from hugewise.host.scratch import Scratch, discard
from hugewise.machine.agent import Agent
from hugewise.model.guest import HARDWARE, Accelerator, Architecture, Backing, Guest, Image, Kernel
from hugewise.model.workload import Missing

_PLACE = Path("/dev/shm")  # noqa: S108  (a short path for sockets; the folder is private)


def qemu_account(*, privileged: bool) -> pwd.struct_passwd | None:
    """Return the account that QEMU runs as: nobody under root. None: as the caller. Raises UserError."""
    return account(None, "unprivileged", privileged=privileged)


def private_folder(who: pwd.struct_passwd | None, note: Callable[[JournalRecord], None]) -> Scratch:
    """Make this process's folder for sockets and for files of `who`; `note` is told before. Raises UserError."""
    uid, gid = (None, None) if who is None else (who.pw_uid, who.pw_gid)
    return Scratch.open(_PLACE, uid, gid, lambda path: note(Scratched(path)))


@contextmanager
def single_boot() -> Iterator[Hosting]:
    """Host a guest that belongs to no attempt, as the account of attempts. Raises UserError, StorageError."""
    who = qemu_account(privileged=os.geteuid() == 0)
    place = private_folder(who, lambda _: None)
    try:
        outputs = place.path / "outputs"
        with storing(str(outputs)):
            outputs.mkdir(mode=0o700)
        yield Hosting(outputs=outputs, run=place.folder("run"), account=who)
    finally:
        discard(str(place.path))


# Debian's, of 12 and 13.
_PACKAGES: dict[Architecture, str] = {"x86-64": "qemu-system-x86", "arm64": "qemu-system-arm"}
# RHEL's and its like.
_ELSEWHERE = ("/usr/libexec/qemu-kvm", "/usr/bin/qemu-kvm")
_VERSION = re.compile(r"QEMU emulator version (.+)")


def missing(arch: Architecture, named: str | None = None) -> Missing | None:
    """Return what guests of this architecture lack here, or None. `named`: the QEMU that a study names."""
    if named is not None:
        return None if os.access(named, os.X_OK) else Missing(f"{named}: no such program for guests of {arch}")
    if _found(arch) is not None:
        return None
    return Missing(f"no {PROGRAMS[arch]} for guests of {arch}", _PACKAGES[arch])


def find_qemu(arch: Architecture, named: str | None = None) -> str:
    """Return the path of the QEMU that is `named`, else of the one installed for `arch`. Raises UserError."""
    if (lacking := missing(arch, named)) is not None:
        hint = "name QEMU's program, or remove qemu from [guest]" if named else f"apt install {lacking.package}"
        raise UserError(lacking.reason, hint=hint)
    return named or _found(arch) or PROGRAMS[arch]


def _found(arch: Architecture) -> str | None:
    # distributions have another name for the QEMU of the host's own architecture
    found = shutil.which(PROGRAMS[arch])
    if found is None and HARDWARE[arch] == os.uname().machine:
        found = next((path for path in _ELSEWHERE if os.access(path, os.X_OK)), None)
    return found


@functools.cache
def qemu_version(program: str) -> str:
    """Return a QEMU's version, such as `7.2.22 (Debian 1:7.2+dfsg-7)`. Raises MachineError."""
    try:
        done = unprivileged.run([program, "--version"], timeout=60)
    except HugewiseError as error:
        raise MachineError(error.message, hint=error.hint) from None
    match = _VERSION.search(done.stdout)
    if done.status != 0 or match is None:
        message = (done.stderr or done.stdout).strip()[:500]
        raise MachineError(f"{program} --version failed: {message or done.why}")
    return match[1]


# Limit on the time until the tried guest says hello.
TRIAL_S = 10.0
_MEMORY = 512 << 20
_ACCESS = "be in the group of /dev/kvm: sudo usermod -aG kvm USER, then log in again; in a container: --device /dev/kvm"
_VIRTUALISATION = re.compile(r"^flags\s*:.*\b(vmx|svm)\b", re.MULTILINE)
_MODULES = {"vmx": "kvm_intel", "svm": "kvm_amd"}
_known: dict[tuple[str, Architecture], Choice] = {}


class Choice(msgspec.Struct, frozen=True):
    """The accelerator for guests of one architecture, why it is that, and what would give KVM, where that is known."""

    accelerator: Accelerator
    why: str
    cure: str | None = None


class NoKvm(msgspec.Struct, frozen=True):
    """Reason why KVM cannot run guests here, and the cure."""

    why: str
    cure: str


def minimal_guest(kernel: Kernel, accelerator: Accelerator, cpu: str = "max") -> Guest:
    """Return a guest with that kernel and the agent alone, to be asked something."""
    return Guest(
        arch=kernel.arch,
        kernel=kernel,
        image=Image(arch=kernel.arch),
        backing=Backing(preallocate=False),
        accelerator=accelerator,
        memory=_MEMORY,
        cpu=cpu,
    )


@contextmanager
def asked(guest: Guest, initramfs: Path, name: str, qemu: str | None) -> Iterator[Agent]:
    """Yield the agent of a guest booted to be asked. Raises MachineError, UserError, StorageError."""
    program = find_qemu(guest.arch, qemu)
    with single_boot() as hosting, boot(guest, initramfs, hosting, program=program) as booted:
        agent = Agent(booted.agent, name, booted.error)
        agent.hello()
        yield agent
        agent.close()


def refusal(arch: Architecture, root: Path = Path("/"), machine: str | None = None) -> NoKvm | None:
    """Return why KVM cannot run guests of `arch` here by the files below `root`; None: it must be tried."""
    hardware = os.uname().machine if machine is None else machine
    if HARDWARE[arch] != hardware:
        why = f"this host is {hardware} and the guest {arch}: KVM runs guests of the host's own architecture"
        return NoKvm(why, f"measure on a KVM host of {arch}")
    module = "kvm"
    if arch == "x86-64":
        try:
            flags = (root / "proc/cpuinfo").read_text()
        except OSError as error:
            return NoKvm(f"/proc/cpuinfo cannot be read: {error.strerror}", "mount /proc")
        match = _VIRTUALISATION.search(flags)
        if match is None:  # modules that do without it (kvm_pvm) have a /dev/kvm, too
            return NoKvm(
                "this processor shows neither vmx nor svm, which a guest with a stock kernel needs to boot with KVM",
                "measure on a KVM host, or turn virtualisation on: in the firmware, or nested in this machine's host",
            )
        module = _MODULES[match[1]]
    return _device(root / "dev/kvm", module)


def _device(path: Path, module: str) -> NoKvm | None:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        return NoKvm("there is no /dev/kvm", f"sudo modprobe {module}; in a container: --device /dev/kvm")
    except PermissionError:
        return NoKvm("/dev/kvm may not be opened by this account", _ACCESS)
    except OSError as error:
        return NoKvm(f"/dev/kvm cannot be opened: {error.strerror}", f"see dmesg, then: sudo modprobe {module}")
    return None


def choose(
    kernel: Kernel, initramfs: Path, named: str | None = None, *, attempt: Callable[..., BootedGuest] = boot
) -> Choice:
    """Return KVM if a guest boots with it within TRIAL_S, else TCG with the reason; kept for this process."""
    qemu = find_qemu(kernel.arch, named)
    key = (qemu_version(qemu), kernel.arch)
    if key not in _known:
        no = refusal(kernel.arch) or _tried(kernel, initramfs, qemu, attempt)
        _known[key] = (
            Choice("kvm", "a guest booted with it") if no is None else Choice("tcg", f"no KVM: {no.why}", no.cure)
        )
    return _known[key]


def _tried(kernel: Kernel, initramfs: Path, qemu: str, attempt: Callable[..., BootedGuest]) -> NoKvm | None:
    with single_boot() as hosting:
        try:
            attempt(minimal_guest(kernel, "kvm"), initramfs, hosting, program=qemu, timeout=TRIAL_S).stop()
        except HugewiseError as error:
            message = "; ".join(line.strip() for line in error.message.splitlines())
            why = f"a guest does not boot with it within {TRIAL_S:g} s: {message}"
            if "Permission denied" in message:  # root may open it, and its QEMU runs as nobody
                return NoKvm(why, _ACCESS)
            return NoKvm(why, error.hint or f"see what {qemu} -accel kvm says here, and dmesg")
    return None
