"""Whether KVM really boots a guest here. That its device opens, and that vCPUs can be made, proves nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import msgspec

from hugewise.errors import HugewiseError
from hugewise.guests import program
from hugewise.guests.boot import Booted, boot
from hugewise.guests.hosting import for_one_boot
from hugewise.model.guest import HARDWARE, Accelerator, Architecture, Backing, Guest, Image, Kernel

__all__ = ["TRIAL_S", "Choice", "bare", "choose", "refusal"]

# How long the guest that is tried may take to say hello.
TRIAL_S = 10.0
_MEMORY = 512 << 20
_VIRTUALISATION = re.compile(r"^flags\s*:.*\b(vmx|svm)\b", re.MULTILINE)
_known: dict[tuple[str, str, Architecture], Choice] = {}


class Choice(msgspec.Struct, frozen=True):
    """The accelerator for guests of one architecture, and why it is that."""

    accelerator: Accelerator
    why: str


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


def refusal(arch: Architecture, root: Path = Path("/"), machine: str | None = None) -> str | None:
    """Why KVM cannot run guests of `arch` here, as far as the host's files say; None: it must be tried.

    `root` is where the host's files lie, `machine` what uname calls its hardware.
    """
    hardware = os.uname().machine if machine is None else machine
    if HARDWARE[arch] != hardware:
        return f"this host is {hardware} and the guest {arch}: KVM runs guests of the host's own architecture"
    if arch == "x86-64":
        try:
            flags = (root / "proc/cpuinfo").read_text()
        except OSError as error:
            return f"/proc/cpuinfo cannot be read: {error.strerror}"
        if not _VIRTUALISATION.search(flags):
            return "this processor shows neither vmx nor svm: it is a virtual machine's own, or the firmware hides them"
    try:
        os.close(os.open(root / "dev/kvm", os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return f"/dev/kvm cannot be opened: {error.strerror}"
    return None


def choose(kernel: Kernel, initramfs: Path, *, attempt: Callable[..., Booted] = boot) -> Choice:
    """KVM if a guest with this kernel and the agent alone boots with it within TRIAL_S, else TCG with the reason.

    It is tried by the account that attempts have: root opening the device says nothing of that one. The answer is kept
    for this process, host boot, QEMU and architecture. Whoever compares guests asks once, before the first of them.
    """
    qemu = program.find(kernel.arch)
    key = (_boot_id(), program.version(qemu), kernel.arch)
    if key not in _known:
        why = refusal(kernel.arch)
        if why is None:
            why = _tried(kernel, initramfs, qemu, attempt)
        _known[key] = Choice("kvm", "a guest booted with it") if why is None else Choice("tcg", f"no KVM: {why}")
    return _known[key]


def _tried(kernel: Kernel, initramfs: Path, qemu: str, attempt: Callable[..., Booted]) -> str | None:
    """Boot a guest with KVM; why it did not, or None."""
    with for_one_boot() as hosting:
        try:
            attempt(bare(kernel, "kvm"), initramfs, hosting, program=qemu, timeout=TRIAL_S).stop()
        except HugewiseError as error:
            said = "; ".join(line.strip() for line in error.message.splitlines())
            return f"a guest does not boot with it within {TRIAL_S:g} s: {said}"
    return None


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
