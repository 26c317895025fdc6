"""The guests of a run: what they were, how their kernels differ, and what figures of emulated ones are valid for."""

from __future__ import annotations

from collections.abc import Iterator

from hugewise.model.guest import Backing, KernelRecord
from hugewise.model.results import GuestArm, Guests
from hugewise.quantity import format_size
from hugewise.report import numbers
from hugewise.report.document import Folded, Line, Note, Section, Table, some, table
from hugewise.report.numbers import NOTHING

_ARMS = (
    *("policy", "in the guest", "kernel", "base page", "backing", "proven", "CPU model", "vCPUs", "memory"),
    *("accelerator", "QEMU", "image"),
)
_KERNELS = ("kernel", "release", "base page", "SHA-256", "origin", "options that differ")
_HASH = 12  # characters that tell a hash
_MOST = 500  # options of a difference that are listed


def guests(found: Guests | None) -> Iterator[Section]:
    """Yield, for arms in guests, the section on the guests, and on what differed between attempts."""
    if found is not None:
        told = (
            *map(Line, introduction(found)),
            *some(arms_table(found), kernels_table(found)),
            *differences(found),
            *map(Note, remarks(found)),
        )
        yield Section("Guests", told, key="guests")


def introduction(guests: Guests) -> Iterator[str]:
    """Yield how the accelerator was chosen, and what figures under it are valid for."""
    why = f" Reason: {guests.why}." if guests.why else ""
    ran = "Every attempt ran in a guest of its own"
    if guests.shared_boots:
        ran = f"The attempts ran in {guests.shared_boots} boot{'' if guests.shared_boots == 1 else 's'} of one guest"
    match guests.accelerator:
        case "tcg":
            yield f"{ran}, emulated by QEMU (TCG).{why}"
            counted = (
                "; and instruction counts, compared within one QEMU, one CPU model and one family of kernels"
                if guests.counting
                else ""
            )
            yield (
                "Emulation executes a guest's instructions exactly, and has no TLB, cache or pipeline. Valid are page "
                "faults, allocations by page size, memory use with its peak, and what backs the guest on the host"
                f"{counted}. There is therefore no time, throughput, TLB or cycle figure in this report."
            )
        case "kvm":
            yield f"{ran}, under KVM.{why}"
        case None:
            yield f"{ran}.{why}"
    if guests.shared_boots:
        yield (
            "Each attempt found the guest's memory as those before it had left it, in an order that the coin drew."
            " Verdicts are for what was booted here; another boot begins with other memory."
        )


def arms_table(guests: Guests) -> Table:
    """Return a row an arm: its policy, kernel, backing with the smallest proven share, and the machine around it."""
    pages = {kernel.name: kernel.base_page for kernel in guests.kernels}
    rows = [
        [
            *(arm.arm, arm.policy, _kernel(arm), _page(pages.get(arm.kernel)), _backing(arm.backing), _proven(arm)),
            *(arm.cpu_model or NOTHING, NOTHING if arm.cpus is None else arm.cpus, numbers.size(arm.memory)),
            *(_upper(arm.accelerator), arm.qemu or NOTHING, _short(arm.image) if arm.image else "agent alone"),
        ]
        for arm in guests.arms
    ]
    caption = "the guests of each arm; proven: the smallest share of an attempt"
    return table(caption, _ARMS, rows, len(_ARMS), swatch=True)


def kernels_table(guests: Guests) -> Table | None:
    """Return a row a kernel: release, base page, hash, origin, and how many options differ from the baseline's."""
    rows = [
        [
            *(kernel.name, kernel.release, _page(kernel.base_page), _short(kernel.sha256), kernel.origin),
            _count(guests, kernel),
        ]
        for kernel in guests.kernels
    ]
    caption = f"the kernels; differences are from {guests.baseline}"
    return table(caption, _KERNELS, rows, len(_KERNELS)) if rows else None


def differences(guests: Guests) -> Iterator[Folded]:
    """Yield, for each kernel except the baseline's, a line with the number of differing options, and their list."""
    for kernel in guests.kernels:
        if not kernel.differs:
            continue
        count = len(kernel.differs)
        what = "1 option differs" if count == 1 else f"{count:,} options differ"
        more = f", of which the first {_MOST} stand here (all are in report.json)" if count > _MOST else ""
        line = f"Configuration of {kernel.name} against {guests.baseline}: {what}{more}"
        head = ("option", guests.baseline, kernel.name)
        rows = [[f"CONFIG_{option.symbol}", option.baseline, option.kernel] for option in kernel.differs[:_MOST]]
        yield Folded(line, (table("options (n: not set, or not there)", head, rows, 3),), long=True)


def remarks(guests: Guests) -> Iterator[str]:
    """Yield remarks for the reader: backings that were not proven whole, families of kernels, guests that changed."""
    had = {kernel.name: kernel.had for kernel in guests.kernels}
    others = [arm.arm for arm in guests.arms if arm.kernel in had and had[arm.kernel] != had.get(guests.baseline)]
    if others and guests.baseline in had:
        yield (
            f"Memory of {', '.join(others)} is not to be compared with that of arms on {guests.baseline}: their kernel "
            "is of another family, and differs in more than what its name says."
        )
    unknown = [arm.arm for arm in guests.arms if arm.accelerator == "kvm" and arm.attempts and arm.kvm_share is None]
    if unknown:
        yield (
            f"Of {', '.join(unknown)} the host's pages are proven; with which pages KVM maps them to the guest is not"
            " known (it says so through QEMU 7.1 and newer, and to root in debugfs)."
        )
    for arm in guests.arms:
        for name, values in arm.varied.items():
            called = name.replace("_", " ")
            yield f"{arm.arm}: {called} was not the same in all attempts: {'; '.join(values)}."


def accelerated(guests: Guests) -> str:
    """Name what ran the guests, emulator or KVM; empty where the run did not record it."""
    how = {"tcg": "emulated (TCG): counts and sizes, and no times", "kvm": "under KVM", None: ""}[guests.accelerator]
    return f"guests {how}" if how else ""


def _kernel(arm: GuestArm) -> str:
    release = f": {arm.release}" if arm.release else ""
    return f"{arm.kernel}{release}{f', SHA-256 {_short(arm.sha256)}' if arm.sha256 else ''}"


def _backing(backing: Backing) -> str:
    words: list[str] = [backing.pages]
    if backing.pages.startswith("hugetlb"):
        words.append(backing.source)
    if not backing.preallocate:
        words.append("as it is touched")
    if backing.nodes is not None:
        words.append(f"node{_s(len(backing.nodes))} {', '.join(map(str, backing.nodes))}")
    return ", ".join(words)


def _proven(arm: GuestArm) -> str:
    if arm.share is None:
        return NOTHING
    host = f"{numbers.share(arm.share)} (n {arm.attempts})"
    if arm.accelerator != "kvm":
        return host
    mapped = "mapping unknown" if arm.kvm_share is None else f"maps {numbers.share(arm.kvm_share)} so"
    return f"{host}, KVM {mapped}"


def _page(size: int | None) -> str:
    return NOTHING if size is None else format_size(size)


def _short(digest: str) -> str:
    return f"{digest[:_HASH]}…" if len(digest) > 2 * _HASH else digest


def _upper(accelerator: str) -> str:
    return accelerator.upper() or NOTHING


def _count(guests: Guests, kernel: KernelRecord) -> str:
    if kernel.name == guests.baseline:
        return "baseline"
    return "not known: a configuration is missing" if kernel.differs is None else f"{len(kernel.differs):,}"


def _s(count: int) -> str:
    return "" if count == 1 else "s"
