"""What is counted under emulation is exact: page faults and allocations by the guests' kernels, and instructions."""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hugewise.attempt import outcome, recording
from hugewise.guests import image
from hugewise.guests.boot import Hosting
from hugewise.guests.counted import Survey
from hugewise.guests.hypervisor import Choice
from hugewise.guests.machines import GuestPerAttempt, GuestSettings
from hugewise.guests.resources import GuestResources
from hugewise.machine import noise, probe
from hugewise.machine.machine import Contained, read_events, run_launchers
from hugewise.machine.remote import RemoteMachine
from hugewise.model.guest import Backing, Image
from hugewise.model.pages import THP, PageSizes
from hugewise.policies import discover
from hugewise.study.load import parse
from tests.build import known
from tests.build.guests import MIB
from tests.build.live_agent import job
from tests.guests.boarded import arm, cell, trial
from tests.guests.conftest import Bootable

TOUCHED = 256 * MIB
KIB = 1 << 10

# Policy -> size of the pages that it promises. A kernel has other names for its own: `thp` is the PMD's size.
SMALL_BASE = {"base": 4 * KIB, "mthp-64k": 64 * KIB, "thp": 2 * MIB}
LARGE_BASE = {"base": 16 * KIB, "mthp-64k": 64 * KIB, "mthp-2m": 2 * MIB}


class Count(msgspec.Struct, frozen=True):
    """What touching memory cost under one policy.

    faults     page faults of the timed region, which is the touching
    lifetime   minor page faults of the whole process
    served     anonymous faults of the machine that were served at the policy's size meanwhile; 0 for base pages, of
               which the kernel keeps no such count
    coverage   what backed the memory that was touched, in bytes by kind and page size
    """

    faults: int
    lifetime: int
    served: int
    coverage: Mapping[str, int]


@contextmanager
def booted(found: Bootable, hosting: Hosting, seed: int) -> Iterator[RemoteMachine]:
    """A guest with room enough for what is touched that no page is moved meanwhile; its programs always lie at the same
    addresses.
    """
    backing = Backing(pages="base", preallocate=False)
    room: dict[str, Any] = {"memory": 768 * MIB, "backing": backing, "append": ("norandmaps",)}
    with found.spoken(hosting, seed=seed, **room) as (running, agent):
        yield RemoteMachine(agent, emulated=True)
        proof = running.prove()
        assert proof.accepted, proof.why


def touch(guest: RemoteMachine, size: int, page: int, folder: Path) -> Count:
    """Touch `size` bytes once, by the micro-workload of page faults."""
    launch = job(folder, "fault", "--bytes", str(size), "--rounds", "1", micro=True, scan="exit")
    argv = (*launch.spec.argv, "--counters", "page-faults")
    launch = msgspec.structs.replace(
        launch, spec=msgspec.structs.replace(launch.spec, argv=argv, env=guest.environment, source="kpageflags")
    )
    before = noise.snapshot(guest.host)
    assert run_launchers([(guest, launch)]) == [0]
    after = noise.snapshot(guest.host)
    events = read_events(launch)
    ended, usage = outcome.last(events, probe.Exit), outcome.last(events, probe.Usage)
    assert ended is not None
    assert ended.code == 0
    (timed,) = [event for event in events if isinstance(event, probe.Counters) and event.scope == "timed"]
    (seen,) = [event for event in events if isinstance(event, probe.Coverage)]
    counted = known(timed.values["page-faults"].value)
    assert usage is not None
    assert usage.major_faults == 0
    served = noise.difference(before, after).faults_by_size.get(page, (0, 0))[0]
    return Count(int(counted), usage.minor_faults, served, seen.bytes)


def count(guest: RemoteMachine, pages: Mapping[str, int], folder: Path) -> dict[str, tuple[Count, Count]]:
    """Under each policy: for one base page and for all of TOUCHED.

    The constant of a boot is what the first takes less its one fault. Nothing at all cannot be touched: mmap(2) makes
    no mapping without a length, and a program that makes none is not the one whose constant is asked for.
    """
    base = guest.agent.hello().page_size
    sizes = PageSizes.discover(guest.host, base)
    policies = discover(sizes)
    settings = GuestSettings(guest.host)
    by_name = {}
    for name, page in pages.items():
        treatment = policies[name].treatment(guest.host, sizes, "system")
        assert treatment.target.size == page
        settings.apply(treatment.knobs)
        by_name[name] = (
            touch(guest, base, page, folder / f"{name}-least"),
            touch(guest, TOUCHED, page, folder / f"{name}-all"),
        )
    assert settings.drift() == []
    return by_name


@pytest.mark.boots
@pytest.mark.parametrize(("kind", "pages"), [("x86", SMALL_BASE), ("arm64", SMALL_BASE), ("arm64_16k", LARGE_BASE)])
@pytest.mark.soak
def test_a_guest_takes_a_fault_for_every_page_that_it_touches(
    request: pytest.FixtureRequest, hosting: Hosting, tmp_path: Path, kind: str, pages: Mapping[str, int]
) -> None:
    """Nothing more than a constant, which the same boot measures; and to the fault the same in another boot."""
    bootable: Bootable = request.getfixturevalue(kind)
    boots = []
    for seed in (1, 2):
        with booted(bootable, hosting, seed) as guest:
            boots.append(count(guest, pages, tmp_path / str(seed)))
    for found in boots:
        for name, page in pages.items():
            least, whole = found[name]
            wanted, said = TOUCHED // page, f"{kind}, {name}: {least}, {whole}"
            # The least that can be touched is one fault already.
            assert whole.faults - (least.faults - 1) == wanted, said
            assert whole.lifetime - (least.lifetime - 1) == wanted, said
            assert least.faults == 1, said
            assert sum(whole.coverage.values()) == TOUCHED, said
            if name == "base":
                assert whole.coverage == {f"anon:{page}": TOUCHED}, said
                continue
            assert whole.coverage.get(f"anon:{page}", 0) == TOUCHED, said
            assert abs(whole.served - wanted) <= 0.02 * wanted, said
    first, two = (
        {name: (a.faults, b.faults, a.lifetime, b.lifetime) for name, (a, b) in boot.items()} for boot in boots
    )
    assert first == two


COUNTING = """
format = 1
name = "counting"
policies = ["base", "thp"]

[guest]
arch = "x86-64"
memory = "256m"
cpu = "max,-erms,-fsrm"
counting = true
settle = "1s"

# An emulated boot without ACPI takes two thirds of the time.
[[kernel]]
name = "k"
package = "linux-image-cloud-amd64"
append = ["acpi=off"]

[[workload]]
name = "mmap-perf"
"""


def instructions(found: Bootable, seed: bytes, folder: Path) -> tuple[int, Mapping[str, str | int | float]]:
    """Those of 1,000 calls of mmap-perf in the guest of a run with that seed, and what is kept of the guest."""
    study = parse(COUNTING, "counting.toml")
    provided = GuestResources(
        use=known(study.guest),
        arch="x86-64",
        choice=Choice("tcg", "instructions are counted by emulation"),
        image=Image(arch="x86-64"),
        kernels={"k": found.kernel},
        surveys={"k": Survey(release=found.kernel.release, page_size=4096, files={})},
        initramfs={"k": image.existing_initramfs(found.initramfs)},
    )
    launch = job(folder, "mmap-perf", "--calls", "1000", micro=True)
    use = msgspec.structs.replace(arm(), backing=Backing(pages="base", preallocate=False))
    with ExitStack() as shared:
        boarding = GuestPerAttempt.open(
            study, provided, lambda _: Contained(), shared, lambda _: None, seed=seed, privileged=os.geteuid() == 0
        )
        with closing(boarding.board(cell(), use, trial(slot=0), 1, folder)) as machine:
            machine.site.knobs.apply({f"{THP}/enabled": "never"})
            spec = msgspec.structs.replace(launch.spec, env=machine.site.machine.environment, source="kpageflags")
            assert run_launchers([(machine.site.machine, msgspec.structs.replace(launch, spec=spec))]) == [0]
            backed = machine.leave()
    assert backed.problem is None
    counted = known(recording.instructions(read_events(launch)))
    return counted, backed.facts


@pytest.mark.soak
def test_the_same_seed_gives_the_same_instructions_and_another_seed_others(x86: Bootable, tmp_path: Path) -> None:
    """To the last one, over two boots of two runs: of one seed, one agent, one kernel and one QEMU.

    The guest is pinned to one CPU: boarding._cpus says what else would move QEMU's clock on a busy host.
    """
    first, again = (instructions(x86, bytes(16), tmp_path / str(number)) for number in range(2))
    other, others = instructions(x86, bytes([1] * 16), tmp_path / "other")
    count, facts = first
    assert again == first
    assert facts["guest_seed"] != others["guest_seed"]
    assert facts["initramfs_sha256"] == others["initramfs_sha256"]
    assert count > 1_000_000
    assert other != count
