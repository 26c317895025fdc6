"""What a workload cannot take, of values and of treatments, with the reason; the usual values can be."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from hugewise.model.policy import Treatment
from hugewise.workloads import discover
from tests.build.workloads import BASE, GIB, GIGANTIC, MIB, POOL, given, treatment

WORKLOADS = discover()
ADVISED = treatment("thp", 2 * MIB, advice="huge")
SERVICE = {"server": ("true",), "load": ("true",)}
KEY_VALUE: tuple[tuple[dict[str, Any], str], ...] = (
    ({"mode": "fast"}, "mode = 'fast' is not one of throughput, sla, rate"),
    ({"payload": "64"}, "payload = '64' is not as in 16:56"),
    ({"set_get": "1"}, "set_get = '1' is not as in 1:10"),
    ({"popularity": "pareto"}, "popularity = 'pareto' is not as in"),
    ({"connections": 0}, "connections = 0 must be at least 1"),
    ({"duration": 0}, "duration = 0.0 must be above 0"),
    ({"mode": "rate"}, "mode rate needs rate"),
    ({"mode": "sla", "pipeline": 8}, "judged per operation"),
    ({"operations": 5000, "mode": "rate", "rate": 10}, "name a duration"),
)


@pytest.mark.parametrize(
    ("name", "treated", "parameters", "reason"),
    [
        *((name, BASE, *row) for name in ("redis", "memcached") for row in KEY_VALUE),
        ("redis", BASE, {"allocator": "tc"}, "allocator = 'tc' is not one of jemalloc, libc"),
        ("redis", POOL, {}, "jemalloc takes no pages of a pool"),
        ("memcached", BASE, {"heap": "flat"}, "heap = 'flat' is not one of steps, packaged"),
        ("memcached", BASE, {"memory": "1m"}, "memory = 1048576 is less than 64m"),
        ("pgbench", BASE, {"mode": "tpcc"}, "mode = 'tpcc' is not one of tpcb, select-only"),
        ("pgbench", BASE, {"protocol": "fast"}, "protocol = 'fast' is not one of simple, extended, prepared"),
        ("pgbench", BASE, {"clients": 0}, "clients = 0 must be at least 1"),
        ("pgbench", BASE, {"duration": "500ms"}, "duration = 0.5 must be at least 1"),
        ("pgbench", BASE, {"database_share": 0}, "database_share = 0"),
        ("pgbench", BASE, {"settings": "fsync"}, "settings: 'fsync' is not NAME=VALUE"),
        ("pgbench", BASE, {"settings": "huge_pages=try"}, "settings: huge_pages belongs to the treatment"),
        ("mysql-ro", BASE, {"test": "writes"}, "'writes' is not one of"),
        ("mysql-ro", BASE, {"threads": 0}, "threads = 0 must be at least 1"),
        ("mysql-ro", BASE, {"buffer_pool": "1m"}, "at least 64m"),
        ("mysql-ro", ADVISED, {}, "never calls madvise"),
        (
            "service",
            BASE,
            {**SERVICE, "ready": "tcp:0"},
            "ready: 'tcp:0': write tcp:PORT, unix:PATH, line:REGEX or",
        ),
        ("service", BASE, {**SERVICE, "ready": "tcp:70000"}, "ready: 'tcp:70000': write tcp:PORT"),
        ("service", BASE, {**SERVICE, "ready": "unix:socket"}, "ready: 'unix:socket': write"),
        ("service", BASE, {**SERVICE, "ready": "soon"}, "ready: 'soon': write"),
        ("service", BASE, {**SERVICE, "ready": "line:("}, "ready: '(' is not a regular expression"),
        ("service", BASE, {**SERVICE, "ready": "exec:a 'b"}, "no closing quotation"),
        ("service", BASE, {**SERVICE, "environment": ("A",)}, "environment: 'A' is not NAME=VALUE"),
        (
            *("service", BASE, {**SERVICE, "environment": ("GLIBC_TUNABLES=glibc.malloc.hugetlb=1",)}),
            "environment: glibc.malloc.hugetlb belongs to the treatment",
        ),
        ("service", BASE, {**SERVICE, "fill": ("",)}, "fill names no program"),
        ("service", BASE, {**SERVICE, "stop": "KILL"}, "stop = 'KILL' is not one of TERM, INT, QUIT"),
        ("service", BASE, {**SERVICE, "ready_within": 0}, "ready_within = 0"),
        ("service", POOL, SERVICE, "it needs to know how much to reserve"),
        ("tpcc", BASE, {"server": "oracle"}, "'oracle' is not one of"),
        ("tpcc", BASE, {"warehouses": 0}, "must be at least 1"),
        ("tpcc", BASE, {"keep_thp": True}, "keep_thp is for MariaDB"),
        ("tpcc", BASE, {"server": "mariadb", "settings": "a=b"}, "MariaDB takes none"),
        ("tpcc", ADVISED, {"server": "mariadb"}, "never calls madvise"),
        ("tpcc", BASE, {"settings": "huge_pages=off"}, "belongs to the treatment"),
        ("integer-set", POOL, {"program": "gcc"}, "collector of its own"),
        ("integer-set", GIGANTIC, {"program": "xz"}, "smaller than a page of 1g"),
        ("integer-set", POOL, {"program": "mcf"}, "is not one of"),
        ("integer-set", POOL, {"program": "xz", "size": 0}, "above 0"),
        ("x264", GIGANTIC, {}, "a whole page of 1g"),
        ("x264", POOL, {"profile": "live"}, "upload, vod"),
        ("x264", POOL, {"length": 0}, "above 0"),
        ("sysbench-memory", msgspec.structs.replace(POOL, mechanism="process"), {}, "root"),
        ("sysbench-memory", treatment("hugetlb", GIB), {}, "was told to take pages of a pool"),
        ("iperf3", BASE, {"peer": "moon"}, "peer = 'moon' is not one of machine, host"),
        ("iperf3", POOL, {}, "mapped from a file"),
        ("iperf3", BASE, {"duration": 0.5}, "at least 1 s"),
        ("build", BASE, {"project": "emacs"}, "project = 'emacs' is not one of linux, gdb, lua, make"),
        ("build", BASE, {"target": "../x"}, "target = '../x' must lie in the source tree"),
        ("build", BASE, {"artefact": "/etc"}, "artefact = '/etc' must lie"),
        ("build", GIGANTIC, {}, "would take a page of 1g"),
        ("build", BASE, {"project": "linux", "config": "-f x"}, "config = '-f x' is not a target"),
        ("build", BASE, {"project": "linux", "config": "--eval=x"}, "config = '--eval=x' is not a target"),
        ("build", BASE, {"project": "linux", "config": "A=b"}, "config = 'A=b' is not a target"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(
    name: str, treated: Treatment, parameters: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    own = {key: str(tmp_path) if value == "EMPTY" else value for key, value in parameters.items()}
    assert reason in (WORKLOADS[name].refuses(treated, given(WORKLOADS[name], **own)) or "")


@pytest.mark.parametrize(("name", "key"), [("iperf3", "bytes"), ("build", "jobs")])
def test_what_the_reader_of_studies_lets_nobody_write_is_refused_too(name: str, key: str) -> None:
    refused = WORKLOADS[name].refuses(BASE, {**given(WORKLOADS[name]), key: -1})
    assert f"{key} = -1 must be at least 0" in (refused or "")


@pytest.mark.parametrize(
    ("name", "treated", "parameters"),
    [
        ("redis", POOL, {"allocator": "libc"}),
        ("service", BASE, SERVICE),
        ("service", POOL, {**SERVICE, "pool_bytes": "1g", "ready": "exec:true --port {port}"}),
        ("service", BASE, {**SERVICE, "ready": "unix:{folder}/socket", "environment": ("A=",)}),
        ("service", BASE, {**SERVICE, "ready": "line:[Rr]eady$"}),
        ("mysql-ro", BASE, {}),
        ("mysql-ro", POOL, {}),
        ("tpcc", BASE, {}),
        ("integer-set", POOL, {"program": "perl"}),
        ("x264", POOL, {}),
        ("sysbench-memory", BASE, {}),
        ("sysbench-memory", POOL, {}),
        ("sysbench-memory", GIGANTIC, {}),
        ("iperf3", BASE, {}),
        ("build", BASE, {}),
        ("build", BASE, {"project": "linux", "config": "defconfig"}),
    ],
)
def test_what_can_be_is_taken(name: str, treated: Treatment, parameters: dict[str, Any]) -> None:
    assert WORKLOADS[name].refuses(treated, given(WORKLOADS[name], **parameters)) is None
