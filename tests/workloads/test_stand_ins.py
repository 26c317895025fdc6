"""What runs in place of what others publish figures of, as workloads tell it, and how it gets into results."""

from __future__ import annotations

from typing import Any

import pytest

from hugewise.analysis.analysis import stand_ins_of
from hugewise.model.workload import StandIn
from hugewise.workloads import discover
from tests.build.workloads import given

TOLD: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("mysql-ro", {}, ("MariaDB in place of MySQL",)),
    ("integer-set", {}, ("open programs with inputs of their own in place of SPECint",)),
    ("x264", {}, ("synthetic clips in place of vbench's",)),
    ("x264", {"clips": "/vbench"}, ()),
    ("tpcc", {}, ("go-tpc in place of sysbench-tpcc",)),
    ("tpcc", {"sysbench_tpcc": "/opt/tpcc"}, ()),
    ("build", {}, ()),
    ("build", {"project": "lua"}, ("Lua in place of GDB",)),
    ("build", {"project": "gdb"}, ()),
    ("build", {"project": "gdb", "target": "all-libiberty"}, ("all-libiberty of GDB in place of all-gdb",)),
    ("redis", {}, ("hugewise's own load generator in place of memtier_benchmark",)),
    ("memcached", {}, ("hugewise's own load generator in place of memtier_benchmark",)),
    ("pgbench", {}, ()),
]


@pytest.mark.parametrize(("name", "parameters", "words"), TOLD)
def test_a_workload_names_what_it_stands_in_with(name: str, parameters: dict[str, Any], words: tuple[str, ...]) -> None:
    workload = discover()[name]
    assert isinstance(workload, StandIn)
    values = given(workload, **parameters)
    assert workload.stand_ins(values) == words
    assert stand_ins_of(name, values) == words


def test_of_other_versions_nothing_is_told() -> None:
    assert stand_ins_of("gone", {}) == ()
    assert stand_ins_of("tpcc", {"warehouses": 3}) == (), "it had no such parameter then"
    assert stand_ins_of("chase", {}) == (), "a micro-workload is what it is"
