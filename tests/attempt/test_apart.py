"""Clients on a host of their own: what they are told, what is kept, and when the network is named."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from hugewise.attempt.procedure import RemoteClient
from hugewise.attempt.service import MarkedEnds
from hugewise.host.knob import Settings
from hugewise.host.local_host import LocalHost
from hugewise.host.local_machine import LocalMachine
from hugewise.machine import probe
from hugewise.machine.machine import ClientSite, Contained, Folders, Site
from hugewise.model.procedure import Places, RoleUse


class Below(Folders):
    """Folders below one of this host."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def path(self) -> Path:
        return self._path

    def folder(self, name: str) -> Path:
        (self._path / name).mkdir()
        return self._path / name

    def within(self, name: str) -> Folders:
        raise AssertionError

    def clear(self) -> None:
        assert not list(self._path.iterdir())


@pytest.fixture
def site(tmp_path: Path) -> ClientSite:
    clock, carried = iter((1e9, 1e9 + 2)), iter((1_000, 1_000 + 250_000_000))
    return ClientSite(
        machine=LocalMachine(),
        contain=Contained(),
        scratch=Below(tmp_path),
        owner=(None, None),
        cpus=(5,),
        programs={"pgbench": "/far/pgbench"},
        address="127.0.0.1",
        client="127.0.0.2",
        clock=lambda: next(clock),
        carried=lambda: next(carried),
        network=1.2e9,
        facts={"client": "loads"},
    )


def test_places_are_those_of_the_other_host_and_each_attempt_has_a_password_of_its_own(site: ClientSite) -> None:
    here = Places(data="/data", run="/run", ports=(1,), sut=(0,), client=(1,))
    apart = RemoteClient.begin(site, (1,))
    first, second = apart.places(here, 2), apart.places(here, 2)
    assert first.far is not None and second.far is not None
    assert (first.client, first.sut, apart.beside) == ((5,), (0,), (1,))
    assert (first.far.folder, first.far.program("pgbench")) == (apart.folder, "/far/pgbench")
    assert len(first.far.ports) == 2
    assert re.fullmatch(r"[0-9a-f]{32}", first.far.password)
    assert first.far.password != second.far.password


def test_a_private_file_is_the_accounts_alone(site: ClientSite) -> None:
    apart = RemoteClient.begin(site, ())
    apart.put("known", b"x", 0o600)
    assert (Path(apart.folder) / "known").stat().st_mode & 0o777 == 0o600


def test_a_program_there_has_nothing_of_this_host(site: ClientSite) -> None:
    apart = RemoteClient.begin(site, ())
    here = probe.Spec(
        argv=("x",),
        env={"HOME": "/run", "A": "1"},
        cwd="/run",
        stdout="/o",
        stderr="/e",
        uid=7,
        cgroup_procs=("/g",),
        cpus=(0,),
    )
    there = apart.spec(here, {"B": "2"})
    assert there.env["HOME"] == there.cwd == apart.folder
    assert "A" not in there.env and there.env["B"] == "2"
    assert (there.uid, there.cgroup_procs, there.cpus) == (None, (), (5,))
    assert msgspec.structs.replace(there, env={}, cwd=None).stdout == "/o"


@pytest.mark.parametrize(("carried", "named"), [(250_000_000, True), (200_000_000, False), (None, False)])
def test_a_network_that_is_nearly_full_is_named(site: ClientSite, carried: int | None, named: bool) -> None:
    apart = RemoteClient.begin(site, ())
    marks = apart.marks(carried, 2.0)
    assert bool(marks) == named
    if named:
        assert marks == (
            "the network carried 1,000 Mbit/s of the 1,200 that it was seen to carry: it may be what was measured",
        )
    facts = apart.facts(carried, 2.0)
    assert facts["client"] == "loads"
    assert ("network_used_mbit_per_s" in facts) == (carried is not None)


def ends(site: ClientSite | None) -> Iterator[MarkedEnds]:
    machine = LocalMachine()
    here = Site(
        machine=machine,
        knobs=Settings(machine.host, None),
        contain=lambda _: Contained(),
        scratch=lambda place: Below(Path(place)),
        source="smaps",
        base_size=4096,
    )
    found = MarkedEnds()
    for _ in range(2):
        found.mark(here, RoleUse(cpu_s=1.0), lambda: RoleUse(cpu_s=2.0), site)
        yield found


def test_both_ends_are_told_by_the_clients_clock(site: ClientSite) -> None:
    first, both = ends(site)
    assert first is both and both.whole
    assert both.ends == (1e9, 1e9 + 2)
    assert both.carried == 250_000_000
    (_, here) = ends(None)
    assert here.carried is None and here.ends[0] > 1e9 + 2
    assert LocalHost().name
