"""What a run's first record says of deployments, and that a resumed run is not held against them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hugewise import workloads
from hugewise.model.pages import PageTarget
from hugewise.model.policy import Deployment
from hugewise.plan.plan import Cell
from hugewise.session import guests, identity
from hugewise.store.records import CellRecord
from tests.build.hosts import FakeHost
from tests.build.studies import an_arm, cell_of
from tests.build.studies import workloads as fakes

THP = PageTarget("thp", 2 << 20)


def deployed(cell: Cell, **files: str) -> Deployment:
    host = FakeHost()
    host.fixed |= files
    return guests.deployment(cell, cell.arms[-1], 0, None, host)


def real(name: str, *, advice: Any = "none", **values: Any) -> Cell:
    """A cell of a workload that comes with hugewise, with its defaults."""
    workload = workloads.discover()[name]
    given = {each.name: each.default for each in workload.parameters} | values
    return cell_of(workload, an_arm("base"), an_arm("thp", THP, advice=advice), values=given)


def test_a_command_is_deployed_with_its_words() -> None:
    cell = cell_of(fakes()["command"], an_arm("base", thp_disable="all"), values={"argv": ("/usr/bin/demo", "a b")})
    kinds = {file.kind: file for file in deployed(cell).files}
    assert '-- "/usr/bin/demo" "a b"' in kinds["unit"].content
    new = {file.kind: file for file in deployed(cell, **{"/usr/lib/systemd/libsystemd-shared-260.so": ""}).files}
    assert new["unit"].content == "[Service]\nMemoryTHP=disable\n"


def test_an_arm_of_a_study_is_verified_against_a_policy_that_other_machines_know() -> None:
    cell = cell_of(fakes()["command"], an_arm("thp", THP, environment={"A-B": "x"}, thp_disable="all"))
    assert deployed(cell).files == ()
    assert deployed(cell).note == "there are no files: 'A-B' is not the name of a variable"
    derived = msgspec.structs.replace(an_arm("thp", THP, environment={"A": "x"}), name="mine")
    (launcher, *_) = deployed(cell_of(fakes()["command"], derived, values={"argv": ("/x",)})).files
    assert launcher.check == "hugewise verify PID --policy thp"


def test_redis_is_told_of_huge_pages_and_so_is_its_allocator() -> None:
    kinds = {file.kind: file for file in deployed(real("redis", advice="huge")).files}
    assert kinds["redis"].content == "disable-thp no\n"
    assert kinds["unit"].content == '[Service]\nEnvironment="MALLOC_CONF=thp:always"\n'
    assert "redis" in kinds
    libc = {file.kind: file for file in deployed(real("redis", allocator="libc")).files}
    assert '"LD_PRELOAD=libc.so.6"' in libc["unit"].content


@pytest.mark.parametrize(
    ("name", "values", "kind", "content"),
    [
        ("pgbench", {}, "postgresql", "huge_pages = off\n"),
        ("mysql-ro", {}, "mariadb", "[mariadbd]\nlarge-pages = OFF\n"),
        ("tpcc", {"server": "mariadb"}, "mariadb", "[mariadbd]\nlarge-pages = OFF\n"),
        ("tpcc", {}, "postgresql", "huge_pages = off\n"),
    ],
)
def test_servers_are_told_by_their_own_files(name: str, values: dict[str, Any], kind: str, content: str) -> None:
    (first, *_) = deployed(real(name, **values)).files
    assert (first.kind, first.content) == (kind, content)


def test_a_pool_reaches_postgresql_by_its_own_setting() -> None:
    workload = workloads.discover()["pgbench"]
    given = {each.name: each.default for each in workload.parameters}
    pool = an_arm(
        "hugetlb-1g", PageTarget("hugetlb", 1 << 30), environment={"GLIBC_TUNABLES": "glibc.malloc.hugetlb=2"}
    )
    (first, *rest) = deployed(cell_of(workload, pool, values=given)).files
    assert first.content == "huge_pages = on\nhuge_page_size = 1048576kB\n"
    assert not any("GLIBC_TUNABLES" in file.content for file in rest)  # each backend would take pages of the pool


def test_a_resumed_run_is_not_held_against_how_it_is_deployed() -> None:
    """A run that an earlier hugewise began has no files."""
    cell = real("redis")
    plan = type("Plan", (), {"cells": (cell,)})()

    def recorded(deployment: Deployment) -> tuple[CellRecord, ...]:
        return identity.cell_records(plan, "sequential", lambda *_: deployment)

    old, new = recorded(Deployment(note="n")), recorded(deployed(cell))
    assert old != new
    assert identity.compared(old) == identity.compared(new)
    later = msgspec.structs.replace(new[0], values={**new[0].values, "came_later": ()})
    assert identity.compared([later]) == identity.compared(new), "a parameter that says nothing"
    given = msgspec.structs.replace(new[0], values={**new[0].values, "came_later": ("rm", "x")})
    assert identity.compared([given]) != identity.compared(new)
    other = msgspec.structs.replace(new[0], baseline="thp")
    assert identity.compared([other]) != identity.compared(old)
    assert msgspec.json.decode(msgspec.json.encode(new), type=tuple[CellRecord, ...]) == new
