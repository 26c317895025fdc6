"""Runs whose arms ran in guests: one that was recorded (without its times), and two that are constructed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from hugewise.analysis.analysis import guests
from hugewise.model.guest import Backing, GuestsRecord, KernelRecord, Option
from hugewise.model.metric import COMMON, NOT_IN_EMULATION
from hugewise.model.pages import PageTarget
from hugewise.model.policy import Deployment, Treatment
from hugewise.model.results import CellResult, Results
from hugewise.model.trial import Attempt, DeliveryThreshold
from hugewise.stats.classical import summarise
from hugewise.stats.family import conclude
from hugewise.stats.fixed import FixedN
from hugewise.stats.method import Contrast
from hugewise.store.records import ArmRecord, CellRecord
from tests.build.restated import Levels, cell, restated, run
from tests.build.results import cell_result
from tests.build.trials import block

FAULTS = next(metric for metric in COMMON if metric.name == "page_faults")
INSTRUCTIONS = next(metric for metric in COMMON if metric.name == "instructions")
WHY = "no KVM: this processor shows neither vmx nor svm"
RECORDED = Path(__file__).parents[1] / "report" / "recorded-guests.json"

_OF_TIME = ("wall_s", "cpu_s", "cycles", "dtlb_walk_steps", "system_s", "ops_per_s")


def recorded() -> Results:
    """Three arms and blocks of the workload `fault` on 64 MiB, as a run recorded them: Debian's kernel, emulated."""
    attempts = msgspec.json.decode(RECORDED.read_bytes(), type=list[Attempt])
    backings = {"base": Backing(), "64k": Backing(), "small-pages": Backing(pages="base")}
    arms = [
        _arm(name, "debian", backing, next(a for a in attempts if a.arm == name)) for name, backing in backings.items()
    ]
    record = CellRecord(
        id="fault",
        workload="fault",
        values={"bytes": 64 << 20},
        metric=FAULTS,
        baseline="base",
        delivery=DeliveryThreshold(0.99, 0.01),
        arms=tuple(arms),
    )
    blocks = [block(n, *(a for a in attempts if a.block == n), cell="fault") for n in (1, 2, 3)]
    methods = [
        FixedN(Contrast("fault", arm, "base", FAULTS), planned=3, confidence=0.99, margin=0.005, family=2)
        for arm in ("64k", "small-pages")
    ]
    for method in methods:
        for one in blocks:
            method.observe(one)
    told: dict[str, Any] = {"mechanism": "system", "treatment": "", "deployment": None}
    summaries = [summarise(blocks, a.name, FAULTS, 0.99, policy=a.treatment.policy, **told) for a in arms]
    found = cell_result("fault", "fault", FAULTS, record.values, summaries, conclude(methods, 0.99, 0.005))
    versions = {"accelerator": f"tcg: {WHY}"}
    return replace(run([(found, attempts)], study="recorded"), guests=guests([record], attempts, None, versions))


def lpc() -> Results:
    """Constructed: a compile on base pages of 4, 16 and 64 KiB, and on a kernel of Debian's, beside the talk's figures.

    Page faults are judged; memory is charged.
    """
    arms = {"base": "4k", "64k": "4k", "16k": "16k", "64k-on-16k": "16k", "64k-base": "64k", "debian": "debian"}
    levels: Levels = {
        "base": (1_000_000.0, "none"),
        "64k": (300_000.0, "better"),
        "16k": (285_000.0, "better"),
        "64k-on-16k": (135_000.0, "better"),
        "64k-base": (99_000.0, "better"),
        "debian": (1_000_500.0, "undecided"),
    }
    memory = (400e6, 401e6, 410e6, 412e6, 480e6, 800e6)
    allocations = {  # of 64 KiB; a kernel of 64 KiB pages and Debian's tell none
        "base": 0.0,
        "64k": 17_000.0,
        "16k": 0.0,
        "64k-on-16k": 16_000.0,
    }
    more: dict[str, Sequence[float | None]] = {
        "page_faults": tuple(level for level, _ in levels.values()),
        "charged_peak_bytes": memory,
        "lifetime_faults": tuple(1.01 * level for level, _ in levels.values()),
        "real_time": (None,) * 6,
    }
    one, attempts = cell("compile", "build", FAULTS, {"project": "lua"}, levels, more, spread=0.002)
    for place, attempt in enumerate(attempts):
        if attempt.arm in allocations:
            told = {"allocations_64k": allocations[attempt.arm], "allocations_2m": 0.0}
            attempts[place] = replace(attempt, metrics={**attempt.metrics, **told})
    kernels = {
        "4k": _kernel("4k", 4096, "build", ()),
        "16k": _kernel(
            "16k", 16384, "build", (Option("ARM64_16K_PAGES", "n", "y"), Option("ARM64_4K_PAGES", "y", "n"))
        ),
        "64k": _kernel("64k", 65536, "build", (Option("ARM64_64K_PAGES", "n", "y"),)),
        "debian": _kernel("debian", 4096, "package", tuple(Option(f"OPTION_{n}", "n", "m") for n in range(1200))),
    }
    stands = {
        "base": "4K (4KPS)",
        "64k": "64K (4KPS)",
        "16k": "16K (16KPS)",
        "64k-on-16k": "64K (16KPS)",
        "64k-base": "64K (64KPS)",
        "debian": "64K (4KPS)",
    }
    whole = in_guests(one, attempts, arms, kernels)
    return restated("lpc-2024-mthp-arm64", [("compile", "kernel-build")], stands, whole)


def lkml() -> Results:
    """Constructed: mmap-perf counted in kernels without and with paravirtualisation, and an arm that boots the first
    kernel again (A/A).
    """
    arms = {"none": "pv-none", "again": "pv-none", "xxl": "pv-xxl"}
    count = 195_715_382.0
    levels: Levels = {"none": (count, "none"), "again": (count, "undecided"), "xxl": (197_000_000.0, "worse")}
    more = {"lifetime_faults": (600.0, 600.0, 600.0)}
    one, attempts = cell("mmap-perf", "mmap-perf", INSTRUCTIONS, {"calls": 10_000}, levels, more, spread=1e-4)
    kernels = {
        "pv-none": _kernel("pv-none", 4096, "build", ()),
        "pv-xxl": _kernel("pv-xxl", 4096, "build", (Option("PARAVIRT", "n", "y"), Option("PARAVIRT_XXL", "n", "y"))),
    }
    whole = in_guests(one, attempts, arms, kernels, counting=True)
    return restated("lkml-2009-paravirt", [("mmap-perf", "mmap-perf")], {"none": "native", "xxl": "paravirt"}, whole)


def in_guests(
    one: CellResult,
    attempts: Sequence[Attempt],
    arms: Mapping[str, str],
    kernels: Mapping[str, KernelRecord],
    *,
    counting: bool = False,
) -> Results:
    """The cell as if its arms had run in emulated guests: no times, and facts of a guest. `arms`: arm -> kernel."""
    told = [_emulated(attempt, kernels[arms[attempt.arm]], seed) for seed, attempt in enumerate(attempts, 1)]
    record = CellRecord(
        id=one.cell,
        workload=one.workload,
        values=one.parameters,
        metric=one.metric,
        baseline=one.baseline,
        delivery=DeliveryThreshold(0.0, 1.0),
        arms=tuple(
            _arm(name, kernel, Backing(), next(each for each in told if each.arm == name))
            for name, kernel in arms.items()
        ),
    )
    kept = GuestsRecord(
        arch="arm64" if "16k" in kernels else "x86-64",
        accelerator="tcg",
        why=WHY,
        counting=counting,
        baseline=arms[one.baseline],
        kernels=tuple(kernels.values()),
    )
    return replace(run([(one, told)], study="in guests"), guests=guests([record], told, kept, {}))


def _emulated(one: Attempt, kernel: KernelRecord, seed: int) -> Attempt:
    metrics = {name: None if name in _OF_TIME else value for name, value in one.metrics.items()}
    facts: dict[str, Any] = {
        "accelerator": "tcg",
        "qemu": "7.2.22",
        "cpu_model": "max",
        "guest_seed": seed,
        "guest_memory_bytes": 512 << 20,
        "guest_cpus": 1,
        "kernel": kernel.name,
        "kernel_release": kernel.release,
        "kernel_sha256": kernel.sha256,
        "kernel_origin": kernel.origin,
        "backing": "thp",
        "backing_share": 0.995 if seed == 7 else 1.0,
        "backing_proof": "all of it",
        "image": "5e" * 32,
    }
    absent = {**one.absent, **{name: NOT_IN_EMULATION for name in metrics if name in _OF_TIME}}
    return replace(one, metrics=metrics, absent=absent, wall_s=None, cpu_s=None, guest=facts)


def _kernel(name: str, page: int, had: Any, differs: tuple[Option, ...]) -> KernelRecord:
    return KernelRecord(
        name=name,
        release=f"6.12.0-{name}",
        origin="Debian package linux-image" if had == "package" else f"recipe {name}",
        sha256=(f"{len(name)}{page:x}" * 32)[:64],
        had=had,
        base_page=page,
        differs=differs,
    )


def _arm(name: str, kernel: str, backing: Backing, one: Attempt) -> ArmRecord:
    treatment = Treatment(policy=one.policy, mechanism="system", target=PageTarget("any", 4096))
    return ArmRecord(name, treatment, 0, Deployment(note=""), "backing", kernel, backing)
