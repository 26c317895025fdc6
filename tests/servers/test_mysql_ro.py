"""MariaDB through whole runs: pages delivered, not delivered, or switched off by the server."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hugewise.model.trial import Attempt
from hugewise.workloads import _mariadb
from hugewise.workloads.mysql_ro import WORKLOAD, MysqlReadOnly
from tests.build import known
from tests.requirements import need, need_program
from tests.servers.trying import accepted, quick, short_pool

pytestmark = pytest.mark.whole

# 49 MB of rows and indexes. Some 9 MB of other memory lie beside the pool in mappings as large: it must be larger than
# ten times that.
PARAMETERS = {"tables": 2, "table_size": 100_000, "buffer_pool": "160m", "duration": "1s", "threads": 2}


@pytest.fixture(autouse=True)
def programs() -> None:
    need_program("sysbench", "sysbench")
    need(not _mariadb.missing(), "mariadbd (apt install mariadb-server)")


def run(folder: Path, *policies: Any, parameters: Mapping[str, Any] = {}, **workload: Any) -> dict[str, Attempt]:
    return quick(folder, "mysql-ro", policies, {**PARAMETERS, **parameters}, **workload)


@pytest.mark.soak
def test_the_buffer_pool_is_backed_as_promised(tmp_path: Path) -> None:
    shipped = {"name": "thp-shipped", "from": "thp", "judged": "setting", "parameters": {"keep_thp": False}}
    found = run(tmp_path, "base", "thp", "mthp-64k", "hugetlb-2m", shipped, parameters={"keep_thp": True})
    accepted(found, "base", "thp", "mthp-64k", "hugetlb-2m", "thp-shipped")
    assert found["base"].delivery.share == 1
    for arm, kind in (("thp", "anon:2097152"), ("mthp-64k", "anon:65536"), ("hugetlb-2m", "hugetlb:2097152")):
        assert found[arm].delivery.delivered is True, arm
        assert found[arm].delivery.coverage[kind] > 40 << 20, arm
    # Left alone, the server switches THP off before it reads a page: the heads of its extents are all that is huge.
    assert known(found["thp-shipped"].delivery.share) < 0.75
    for attempt in found.values():
        assert {metric.name for metric in WORKLOAD.metrics} <= set(attempt.metrics)
        assert attempt.facts["pages_read_from_storage"] == 0
    assert len({attempt.facts["buffer_pool_bytes_data"] for attempt in found.values()}) == 1, "the same bytes"


def test_half_a_pool_is_not_delivered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server takes base pages, with a word in its log, when the pool is short."""
    short_pool(monkeypatch, MysqlReadOnly, size=80 << 20)
    found = run(tmp_path, "base", "hugetlb-2m")["hugetlb-2m"]
    assert found.delivery.delivered is False
    assert known(found.delivery.share) < 0.1
