"""Procedures whose clients are on a host of their own: what listens where, who knows the password, and what runs
there."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest

from hugewise import workloads
from hugewise.model.pages import PageTarget
from hugewise.model.policy import Treatment
from hugewise.model.procedure import Parted, Places, Procedure, RemoteEndpoint, Server, Step, Write
from hugewise.model.workload import Launch
from hugewise.workloads import _mariadb, _postgres
from hugewise.workloads._mariadb import MariadbPrograms
from hugewise.workloads._postgres import PostgresPrograms

PASSWORD = "5f4dcc3b5aa765d61d8327deb882cf99"  # noqa: S105  (of nobody)
FAR = RemoteEndpoint(
    address="10.0.1.1",
    ports=(7001, 7002),
    client="10.0.1.2",
    folder="/there",
    programs={name: f"/far/{name}" for name in ("pgbench", "sysbench", "go-tpc", "iperf3")},
    password=PASSWORD,
)
PLACES = Places(data="/data", run="/run", ports=(5001,), sut=(0, 1), client=(7, 8), far=FAR)
BASE = Treatment(policy="base", target=PageTarget(kind="base", size=4096), knobs={}, mechanism="system")


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_postgres, "find", lambda _="": PostgresPrograms("/pg", 15, "15.1"))
    monkeypatch.setattr(_mariadb, "find", lambda _="": MariadbPrograms("/mariadbd", "/install", "/mariadb", "10.11.1"))


def values(name: str, **given: Any) -> Mapping[str, Any]:
    found = {parameter.name: parameter.default for parameter in workloads.discover()[name].parameters}
    sizes = {"shared_buffers": 64 << 20, "buffer_pool": 64 << 20, "buffers": 64 << 20, "memory": 64 << 20, "bytes": 0}
    times = {"duration": 5.0, "lead": 1.0, "limit": 1e-3}
    typed = {name: value for name, value in {**sizes, **times}.items() if name in found}
    return {**found, **typed, **given}


CASES: list[tuple[str, dict[str, Any]]] = [
    ("redis", {}),
    ("redis", {"bgsave": True, "instances": 2}),
    ("memcached", {}),
    ("pgbench", {}),
    ("pgbench", {"transactions": 100}),
    ("mysql-ro", {}),
    ("tpcc", {}),
    ("tpcc", {"server": "mariadb"}),
    ("tpcc", {"server": "mariadb", "transactions": 100}),
    ("iperf3", {"peer": "machine"}),
]
IDS = ["-".join([name, *given.keys()]) for name, given in CASES]


def procedure(name: str, given: Mapping[str, Any], places: Places = PLACES) -> Procedure:
    workload = workloads.discover()[name]
    assert isinstance(workload, Parted)
    found: Procedure = workload.procedure(BASE, values(name, **given), places)
    return found


def steps(procedure: Procedure) -> Iterator[Step]:
    yield from (step for step in procedure.before if isinstance(step, Step))
    yield from (server.ready for server in procedure.servers if isinstance(server.ready, Step))
    yield from procedure.warm + procedure.beside + procedure.after


def said(procedure: Procedure) -> Iterator[str]:
    """All that any account sees in a process list."""
    started: list[Server | Step | Launch] = [*procedure.servers, *steps(procedure), procedure.timed]
    for each in started:
        yield from each.argv
        yield from (f"{name}={value}" for name, value in each.environment.items())


@pytest.mark.parametrize(("name", "given"), CASES, ids=IDS)
def test_the_password_is_in_private_files_alone(name: str, given: Mapping[str, Any]) -> None:
    found = procedure(name, given)
    assert not [word for word in said(found) if PASSWORD in word]
    writes = [act for act in found.before if isinstance(act, Write) and PASSWORD in act.text]
    assert all(write.private for write in writes)
    workload = workloads.discover()[name]
    assert isinstance(workload, Parted)
    # Servers that anybody reaches without a password are named, and only those.
    assert (workload.unprotected_access(values(name, **given)) is None) == bool(writes)
    assert PASSWORD not in repr(PLACES)


@pytest.mark.parametrize(("name", "given"), CASES, ids=IDS)
def test_servers_listen_towards_the_client_alone_which_knows_nothing_of_here(
    name: str, given: Mapping[str, Any]
) -> None:
    found = procedure(name, given)
    for server in found.servers:
        words = " ".join(server.argv)
        assert FAR.address in words
        assert str(FAR.ports[0]) in words or str(FAR.ports[1]) in words
        assert not [other for other in ("0.0.0.0", "127.0.0.1", "--port 0 ") if other in words]  # noqa: S104
    timed = " ".join([*found.timed.argv, *found.timed.environment.values()])
    assert FAR.address in timed
    assert str(FAR.ports[0]) in timed
    for step in (each for each in steps(found) if each.far):
        assert "/run" not in " ".join(step.argv) and "/data" not in " ".join(step.argv)
    assert " /run" not in timed and "/data" not in timed
    if not found.timed.micro:
        assert found.timed.argv[0].startswith("/far/")


@pytest.mark.parametrize(("name", "given"), CASES, ids=IDS)
def test_without_such_a_host_nothing_of_it_is_there(name: str, given: Mapping[str, Any]) -> None:
    here = procedure(name, given, msgspec.structs.replace(PLACES, far=None))
    assert not [word for word in said(here) if "10.0.1." in word or "/far/" in word]
    assert not [act for act in here.before if isinstance(act, Write) and act.private]
    assert all(isinstance(server, Server) and "/there" not in " ".join(server.argv) for server in here.servers)


def test_what_cannot_be_asked_from_there_says_why() -> None:
    found = workloads.discover()
    workload = found["iperf3"]
    assert isinstance(workload, Parted)
    assert "guest" in (workload.parted_refused(values("iperf3", peer="host")) or "")
    assert not isinstance(found["chase"], Parted)


def test_an_address_of_ipv6_has_brackets() -> None:
    assert msgspec.structs.replace(FAR, address="fd00::1").at(1) == "[fd00::1]:7002"
