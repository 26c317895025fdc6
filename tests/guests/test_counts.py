"""Page faults and allocations of guests, counted by their kernels under emulation: exact, the same in every boot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from hugewise import noise, outcome, policy, probe, serving
from hugewise.guests.agent import Agent
from hugewise.guests.boot import Hosting
from hugewise.guests.definition import Backing
from hugewise.guests.knobs import GuestSettings
from hugewise.guests.machine import GuestMachine
from hugewise.pages import PageSizes
from tests.guests.conftest import Bootable
from tests.guests.examples import MIB
from tests.guests.live_agent import job

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
def booted(found: Bootable, hosting: Hosting, seed: int) -> Iterator[GuestMachine]:
    """A guest with room for what is touched; its programs always lie at the same addresses."""
    backing = Backing(pages="base", preallocate=False)
    with found.boot(hosting, memory=512 * MIB, backing=backing, seed=seed, append=("norandmaps",)) as running:
        agent = Agent(running.agent, "a test's", running.error)
        agent.hello()
        yield GuestMachine(agent, emulated=True)
        proof = running.prove()
        assert proof.accepted, proof.why
        agent.close()


def touch(guest: GuestMachine, size: int, page: int, folder: Path) -> Count:
    """Touch `size` bytes once, by the micro-workload of page faults."""
    told = job(folder, "fault", "--bytes", str(size), "--rounds", "1", micro=True, scan="exit")
    argv = (*told.spec.argv, "--counters", "page-faults")
    told = msgspec.structs.replace(
        told, spec=msgspec.structs.replace(told.spec, argv=argv, env=guest.environment, source="kpageflags")
    )
    before = noise.snapshot(guest.host)
    assert serving.run([(guest, told)]) == [0]
    after = noise.snapshot(guest.host)
    events = serving.events(told)
    ended, usage = outcome.last(events, probe.Exit), outcome.last(events, probe.Usage)
    assert ended is not None
    assert ended.code == 0
    (timed,) = [event for event in events if isinstance(event, probe.Counters) and event.scope == "timed"]
    (seen,) = [event for event in events if isinstance(event, probe.Coverage)]
    counted = timed.values["page-faults"].value
    assert counted is not None
    assert usage is not None
    assert usage.major_faults == 0
    served = noise.difference(before, after).faults_by_size.get(page, (0, 0))[0]
    return Count(int(counted), usage.minor_faults, served, seen.bytes)


def count(guest: GuestMachine, pages: Mapping[str, int], folder: Path) -> dict[str, tuple[Count, Count]]:
    """Under each policy: for one base page, which is the least that can be touched, and for all of TOUCHED."""
    base = guest.agent.hello().page_size
    sizes = PageSizes.discover(guest.host, base)
    policies = policy.discover(sizes)
    settings = GuestSettings(guest.host)
    found = {}
    for name, page in pages.items():
        treatment = policies[name].treatment(guest.host, sizes, "system")
        assert treatment.target.size == page
        settings.apply(treatment.knobs)
        found[name] = (
            touch(guest, base, page, folder / f"{name}-least"),
            touch(guest, TOUCHED, page, folder / f"{name}-all"),
        )
    assert settings.drift() == []
    return found


@pytest.mark.parametrize(("kind", "pages"), [("x86", SMALL_BASE), ("arm64", SMALL_BASE), ("arm64_16k", LARGE_BASE)])
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
    one, two = ({name: (a.faults, b.faults, a.lifetime, b.lifetime) for name, (a, b) in boot.items()} for boot in boots)
    assert one == two
