"""Whether KVM really boots a guest here. That its device opens, and that vCPUs can be made, proves nothing."""

from __future__ import annotations

import grp
import os
import pwd
import re
import stat
from collections.abc import Callable
from pathlib import Path

import msgspec

from hugewise.errors import HugewiseError
from hugewise.guests import program
from hugewise.guests.boot import Booted, boot
from hugewise.guests.hosting import for_one_boot
from hugewise.model.guest import HARDWARE, Accelerator, Architecture, Backing, Guest, Image, Kernel

__all__ = ["TRIAL_S", "Choice", "NoKvm", "bare", "choose", "refusal"]

# How long the guest that is tried may take to say hello.
TRIAL_S = 10.0
_MEMORY = 512 << 20
_DEVICE = Path("/dev/kvm")
_VIRTUALISATION = re.compile(r"^flags\s*:.*\b(vmx|svm)\b", re.MULTILINE)
_MODULES = {"vmx": "kvm_intel", "svm": "kvm_amd"}
_known: dict[tuple[str, str, Architecture], Choice] = {}


class Choice(msgspec.Struct, frozen=True):
    """The accelerator for guests of one architecture, why it is that, and what would give KVM, where that is known."""

    accelerator: Accelerator
    why: str
    cure: str | None = None


class NoKvm(msgspec.Struct, frozen=True):
    """Why KVM cannot run guests here, and the cure."""

    why: str
    cure: str


def bare(kernel: Kernel, accelerator: Accelerator, cpu: str = "max") -> Guest:
    """A guest with that kernel and the agent alone, to be asked something."""
    return Guest(
        arch=kernel.arch,
        kernel=kernel,
        image=Image(arch=kernel.arch),
        backing=Backing(preallocate=False),
        accelerator=accelerator,
        memory=_MEMORY,
        cpu=cpu,
    )


def refusal(arch: Architecture, root: Path = Path("/"), machine: str | None = None) -> NoKvm | None:
    """Why KVM cannot run guests of `arch` here, as far as the host's files say; None: it must be tried.

    `root` is where the host's files lie, `machine` what uname calls its hardware.
    """
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
        found = _VIRTUALISATION.search(flags)
        if found is None:
            return _without_the_processor(root)
        module = _MODULES[found[1]]
    return _device(root / "dev/kvm", module)


def _without_the_processor(root: Path) -> NoKvm:
    """Why there is no KVM for these guests where the processor does not say that it can run any.

    Modules that do without it (kvm_pvm) have a /dev/kvm, too, and run kernels that were made for them.
    """
    lacking = "this processor shows neither vmx nor svm"
    if not (root / "dev/kvm").exists():
        return NoKvm(
            f"{lacking}: it is a virtual machine's own, or the firmware hides them",
            "measure on a KVM host, or turn virtualisation on: in the firmware, or nested in this machine's host",
        )
    loaded = sorted(path.name for path in (root / "sys/module").glob("kvm_*") if path.name not in _MODULES.values())
    by = f"/dev/kvm is there by {' and '.join(loaded)}" if loaded else "/dev/kvm is there"
    return NoKvm(
        f"{by}, but {lacking}, which a guest with a stock kernel needs to boot with it",
        "measure on a KVM host whose processor shows vmx or svm: bare metal, or a virtual machine that its host lends"
        " them (nested)",
    )


def _device(path: Path, module: str) -> NoKvm | None:
    """Why the device cannot be opened by this account."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        return NoKvm("there is no /dev/kvm", f"sudo modprobe {module}; in a container: --device /dev/kvm")
    except PermissionError:
        return NoKvm(f"/dev/kvm may not be opened by {_name(os.geteuid())}", _to_be_let_in(path))
    except OSError as error:
        return NoKvm(f"/dev/kvm cannot be opened: {error.strerror}", f"see dmesg, then: sudo modprobe {module}")
    return None


def _to_be_let_in(path: Path) -> str:
    """How this account comes to the device: by its group, where that may open it."""
    try:
        status = path.stat()
    except OSError as error:
        return f"see {path}: {error.strerror}"
    if status.st_gid != 0 and status.st_mode & stat.S_IRGRP and status.st_mode & stat.S_IWGRP:
        group = _group(status.st_gid)
        return f"sudo usermod -aG {group} {_name(os.geteuid())}, then log in again (here alone: newgrp {group})"
    return "sudo chgrp kvm /dev/kvm && sudo chmod 660 /dev/kvm, and be in that group; in a container: --device /dev/kvm"


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def choose(
    kernel: Kernel, initramfs: Path, named: str | None = None, *, attempt: Callable[..., Booted] = boot
) -> Choice:
    """KVM if a guest with this kernel and the agent alone boots with it within TRIAL_S, else TCG with the reason.

    It is tried by the account that attempts have: root opening the device says nothing of that one. The answer is kept
    for this process, host boot, QEMU (which may be `named`) and architecture. Whoever compares guests asks once, before
    the first of them.
    """
    qemu = program.find(kernel.arch, named)
    key = (_boot_id(), program.version(qemu), kernel.arch)
    if key not in _known:
        no = refusal(kernel.arch) or _tried(kernel, initramfs, qemu, attempt)
        _known[key] = (
            Choice("kvm", "a guest booted with it") if no is None else Choice("tcg", f"no KVM: {no.why}", no.cure)
        )
    return _known[key]


def _tried(kernel: Kernel, initramfs: Path, qemu: str, attempt: Callable[..., Booted]) -> NoKvm | None:
    """Boot a guest with KVM; why it did not, or None."""
    with for_one_boot() as hosting:
        try:
            attempt(bare(kernel, "kvm"), initramfs, hosting, program=qemu, timeout=TRIAL_S).stop()
        except HugewiseError as error:
            said = "; ".join(line.strip() for line in error.message.splitlines())
            why = f"a guest does not boot with it within {TRIAL_S:g} s: {said}"
            if "Permission denied" in said:  # root may open it, and its QEMU runs as nobody
                return NoKvm(why, _to_be_let_in(_DEVICE))
            return NoKvm(why, error.hint or f"see what {qemu} -accel kvm says here, and dmesg")
    return None


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
