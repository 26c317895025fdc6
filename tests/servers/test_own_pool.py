"""PostgreSQL and MariaDB as anybody starts them, with their own option for pages of a pool: what backs them then."""

from pathlib import Path
from typing import Any

import pytest

from hugewise.workloads import _mariadb, _postgres
from hugewise.workloads._own_pool import literals, server_kind, with_option, without_pool
from tests.build import known
from tests.requirements import need, need_root
from tests.servers.trying import accepted, quick

pytestmark = pytest.mark.whole

SIZE = 2 << 20
MAKE_POSTGRES = "{0}/initdb -D $0/data -A trust -U nobody --no-sync >/dev/null && exec {0}/postgres -D $0/data -p $1"
MAKE_MARIADB = "mariadb-install-db --no-defaults --datadir=$0/db >/dev/null 2>&1 && exec mariadbd --no-defaults"
SET_POSTGRES = "-k $0 -c listen_addresses= -c shared_buffers=32MB"
SET_MARIADB = "--datadir=$0/db --port=$1 --bind-address=127.0.0.1 --socket=$0/s --pid-file=$0/p"
SIZE_MARIADB = "--innodb-buffer-pool-size=32M --key-buffer-size=8M --aria-pagecache-buffer-size=8M"


@pytest.fixture(autouse=True)
def root_turns_pools() -> None:
    need_root()


def tried(folder: Path, words: tuple[str, ...], ready: str, pool: int) -> dict[str, Any]:
    """As it is, and with its own option."""
    put = with_option(words, SIZE)
    assert not isinstance(put, str)
    own = {"server": list(put), "own_pool": True, "pool_bytes": pool}
    arm = {"name": "own", "from": "reserved-2m", "mechanism": "process", "parameters": own}
    parameters = {"server": list(without_pool(words)), "load": ["/bin/true"], "ready": ready, "stop_within": "20s"}
    found = quick(folder, "service", ("as-is", arm), parameters, timeout="60s", user="nobody", delivery={"share": 0.0})
    accepted(found, "as-is", "own")
    return found


def test_postgresql_has_its_buffers_in_the_pool_and_nobody_else(tmp_path: Path) -> None:
    installed = _postgres.find()
    need(installed is not None, "postgresql-15")
    at = known(installed).folder
    script = f"{MAKE_POSTGRES.format(at)} {SET_POSTGRES}"
    words = ("/bin/sh", "-c", script, "{folder}", "{port}")
    found = tried(tmp_path, words, f"exec:{at}/pg_isready -h {{folder}} -p {{port}} -U nobody", 64 << 20)
    assert found["own"].delivery.delivered is True
    assert found["own"].delivery.coverage[f"hugetlb:{SIZE}"] > 0
    assert not any(name.startswith("hugetlb:") for name in found["as-is"].delivery.coverage)
    assert (32 << 20) < found["as-is"].begun["shared_bytes"] < (64 << 20), "as the pilot of an advice has it"


def test_mariadb_has_its_buffers_in_the_pool_and_nobody_else(tmp_path: Path) -> None:
    need(not _mariadb.missing(), "mariadb-server")
    script = f"{MAKE_MARIADB} {SET_MARIADB} {SIZE_MARIADB}"
    words = ("/bin/sh", "-c", script, "{folder}", "{port}")
    program = f"/usr/sbin/{server_kind(words)}"
    pool = _mariadb.mapped(program, literals(words, _mariadb.SIZED), SIZE)
    found = tried(tmp_path, words, "tcp:{port}", pool)
    assert found["own"].delivery.delivered is True
    assert found["own"].delivery.coverage[f"hugetlb:{SIZE}"] > 8 << 20
    assert not any(name.startswith("hugetlb:") for name in found["as-is"].delivery.coverage)
