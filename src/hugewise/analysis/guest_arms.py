"""What the guests of each arm were, summed up over its attempts. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from hugewise.model.guest import Accelerator, Backing
from hugewise.model.guest_record import GuestsRecord
from hugewise.model.guest_results import GuestArm, Guests, StayedGuest
from hugewise.model.metric import Metric
from hugewise.model.results import Fact
from hugewise.model.trial import Attempt
from hugewise.store.records import ArmRecord, CellRecord

__all__ = ["boots_of", "counted", "guests", "stayed"]

_ACCELERATORS: Mapping[str, Accelerator] = {"kvm": "kvm", "tcg": "tcg"}

# Facts of a guest that every attempt of an arm has in common.
_SAME = (
    *("kernel_release", "kernel_sha256", "accelerator", "cpu_model", "guest_cpus", "guest_memory_bytes", "qemu"),
    *("image", "initramfs_sha256"),
)


def guests(
    cells: Sequence[CellRecord], attempts: Sequence[Attempt], record: GuestsRecord | None, versions: Mapping[str, str]
) -> Guests | None:
    """The guests of a run; None where its arms ran on the host.

    `record` is the content of the run's `guests.json`; runs that were made before there was one have it in part in the
    first record's `versions`.
    """
    arms: dict[str, ArmRecord] = {}
    for cell in cells:
        for arm in cell.arms:
            if arm.kernel is not None:
                arms.setdefault(arm.name, arm)
    if not arms:
        return None
    found = tuple(_arm(arm, [one for one in attempts if one.arm == name]) for name, arm in arms.items())
    told = versions.get("accelerator", "").partition(": ")
    baseline = arms.get(cells[0].baseline)
    return Guests(
        arch=None if record is None else record.arch,
        accelerator=_ACCELERATORS.get(told[0]) if record is None else record.accelerator,
        why=told[2] if record is None else record.why,
        counting=record is not None and record.counting,
        baseline=record.baseline if record is not None else (baseline.kernel or "" if baseline is not None else ""),
        arms=found,
        kernels=() if record is None else record.kernels,
        stayed=stayed(attempts),
    )


def boots_of(attempts: Sequence[Attempt]) -> int:
    """In how many boots of guests that stay the attempts were."""
    return len({one.guest["resident_boot"] for one in attempts if "resident_boot" in one.guest})


def stayed(attempts: Sequence[Attempt]) -> tuple[StayedGuest, ...]:
    """Each boot of a guest that stayed, with what its attempts found."""
    boots: dict[str, list[Mapping[str, Fact]]] = {}
    for one in sorted(attempts, key=lambda each: each.started):
        if "resident_boot" in one.guest and one.state in ("accepted", "failed"):
            boots.setdefault(str(one.guest["resident_boot"]), []).append(one.guest)
    return tuple(
        StayedGuest(
            attempts=len(told),
            seconds=_number(told[-1].get("resident_s")),
            free_huge=tuple(value for facts in (told[0], told[-1]) if (value := _free_huge(facts)) is not None),
        )
        for told in boots.values()
    )


def _free_huge(facts: Mapping[str, Fact]) -> float | None:
    """What share of the free memory was in blocks that a huge page fits into."""
    free, huge = _number(facts.get("resident_free_bytes")), _number(facts.get("resident_free_huge_bytes"))
    return huge / free if free else None


def counted(metric: Metric, record: GuestsRecord | None) -> Metric:
    """The metric in the words of where it comes from: guests that count have no hardware counter of instructions."""
    if record is None or not record.counting or metric.name != "instructions":
        return metric
    words = "instructions of the timed region, counted by emulation: the guest's clock goes by them"
    return msgspec.structs.replace(metric, description=words)


def _arm(arm: ArmRecord, attempts: Sequence[Attempt]) -> GuestArm:
    told = [one.guest for one in attempts if one.guest and one.state in ("accepted", "failed")]
    shares = [share for facts in told if isinstance(share := facts.get("backing_share"), int | float)]
    mapped = [share for facts in told if isinstance(share := facts.get("kvm_share"), int | float)]
    weakest = min(told, key=lambda facts: _number(facts.get("backing_share")), default={})

    def same(name: str) -> str:
        return " or ".join(_distinct(told, name))

    return GuestArm(
        arm=arm.name,
        policy=arm.treatment.policy,
        attempts=len(told),
        kernel=arm.kernel or "",
        release=same("kernel_release"),
        sha256=same("kernel_sha256"),
        backing=arm.backing or Backing(),
        share=min(shares, default=None),
        proof=str(weakest.get("backing_proof", "")),
        accelerator=same("accelerator"),
        cpu_model=same("cpu_model"),
        cpus=_whole(told, "guest_cpus"),
        memory=_whole(told, "guest_memory_bytes"),
        qemu=same("qemu"),
        image=same("image"),
        initramfs=same("initramfs_sha256"),
        kvm_share=min(mapped) if mapped and len(mapped) == len(told) else None,
        varied={name: tuple(values) for name in _SAME if len(values := _distinct(told, name)) > 1},
    )


def _distinct(told: Sequence[Mapping[str, Fact]], name: str) -> list[str]:
    return list(dict.fromkeys(str(facts[name]) for facts in told if name in facts))


def _whole(told: Sequence[Mapping[str, Fact]], name: str) -> int | None:
    return next((value for facts in told if isinstance(value := facts.get(name), int)), None)


def _number(value: Fact | None) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
