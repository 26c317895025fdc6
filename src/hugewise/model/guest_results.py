"""What a run's guests were, as `hugewise.model.results` has them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from hugewise.model.guest import Accelerator, Architecture, Backing
from hugewise.model.guest_record import KernelRecord

__all__ = ["GuestArm", "Guests", "StayedGuest"]


class GuestArm(msgspec.Struct, frozen=True, kw_only=True):
    """An arm whose attempts ran in guests, as they were found to be (attempts that were rejected are not among them).

    attempts     how many tell of their guest
    policy       the page policy within the guest
    kernel, backing   the study's name of the kernel, and what the guest's memory was to be made of on the host
    release, sha256   of the kernel
    share        the smallest share of the guest's memory that was proven to be so backed; null without attempts
    kvm_share    the smallest share of what KVM mapped that it mapped by pages as promised; null where that is not
                 known, or nothing is mapped by KVM
    memory       bytes; image: its SHA-256, empty where there is nothing but the agent
    initramfs    SHA-256 of the agent with the kernel's modules; empty in runs that were made before it was kept
    varied       facts that should be the same in all attempts of the arm and were not, with their values
    """

    arm: str
    policy: str
    attempts: int
    kernel: str
    release: str
    sha256: str
    backing: Backing
    share: float | None
    proof: str
    accelerator: str
    cpu_model: str
    cpus: int | None
    memory: int | None
    qemu: str
    image: str
    initramfs: str = ""
    kvm_share: float | None = None
    varied: Mapping[str, tuple[str, ...]] = {}


class StayedGuest(msgspec.Struct, frozen=True, kw_only=True):
    """A boot of a guest that stayed for more attempts than one, and what these found of it.

    seconds    from its boot to the beginning of the last of its attempts
    free_huge  what share of its free memory was in blocks that a huge page fits into, before the first attempt and
               before the last; empty where its kernel does not say
    """

    attempts: int
    seconds: float
    free_huge: tuple[float, ...] = ()


class Guests(msgspec.Struct, frozen=True, kw_only=True):
    """The guests of a run. `why` says how the accelerator was chosen, `counting` whether instructions are counted.

    kernels   as they were when the run began, with the difference of their configurations from the baseline's kernel;
              empty in runs that were made before it was kept
    stayed    the boots of a guest that all attempts of a session share; empty where each attempt has its own
    """

    arch: Architecture | None
    accelerator: Accelerator | None
    why: str
    counting: bool
    baseline: str
    arms: tuple[GuestArm, ...]
    kernels: tuple[KernelRecord, ...] = ()
    stayed: tuple[StayedGuest, ...] = ()
