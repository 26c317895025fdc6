"""Servers with an option of their own for pages of a pool: found in a command, and told."""

from __future__ import annotations

import pytest

from hugewise.model.pages import PageTarget
from hugewise.model.policy import Treatment
from hugewise.workloads import _mariadb
from hugewise.workloads._own_pool import files, literals, server_kind, server_of, with_option, without_pool
from hugewise.workloads.service import WORKLOAD
from tests.build.workloads import BASE, POOL, given
from tests.workloads.test_service import PLACES

POSTGRES = ("/usr/lib/postgresql/15/bin/postgres", "-D", "{folder}", "-p", "{port}")
SCRIPT = "/pg/bin/initdb -D $0/data -U postgres_owner >/dev/null && exec /pg/bin/postgres -D $0/data -p $1"
MARIADB = ("mariadbd", "--no-defaults", "--datadir={folder}", "--innodb-buffer-pool-size=256M")
PUT = ("-c", "huge_pages=on", "-c", "huge_page_size=2048kB")
OWN = Treatment(policy="reserved-2m", mechanism="process", target=PageTarget("hugetlb", 2 << 20))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (POSTGRES, (POSTGRES[0], *PUT, *POSTGRES[1:])),
        (("postgres",), ("postgres", *PUT)),
        (("env", "A=b", "postgres", "-D", "x"), ("env", "A=b", "postgres", *PUT, "-D", "x")),
        (
            ("/bin/sh", "-c", SCRIPT, "{folder}", "{port}"),
            ("/bin/sh", "-c", SCRIPT.replace("bin/postgres ", f"bin/postgres {' '.join(PUT)} "), "{folder}", "{port}"),
        ),
        (MARIADB, (*MARIADB[:2], "--large-pages", *MARIADB[2:])),
        (
            ("sh", "-c", "exec mysqld --defaults-file=/x --user=a"),
            ("sh", "-c", "exec mysqld --defaults-file=/x --large-pages --user=a"),
        ),
    ],
)  # fmt: skip
def test_the_option_stands_behind_the_server(words: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert with_option(words, 2 << 20) == expected


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("redis-server", "--port", "{port}"),
        ("su", "postgres", "-c", "postgres -D /x"),  # which of them is the server?
        ("/opt/mypostgres", "-D", "x"),
        ("pg_ctl", "-D", "/var/lib/postgres/data"),
        ("sh", "-c", "initdb && postgres-wrapper -D x"),
    ],
)
def test_what_is_not_plainly_such_a_server_is_left_alone(words: tuple[str, ...]) -> None:
    assert server_of(words) is None
    assert isinstance(with_option(words, 2 << 20), str)


def test_a_command_that_says_it_itself_is_not_told_again() -> None:
    for own in ("huge_pages=try", "huge_page_size=1GB"):
        assert with_option((*POSTGRES, "-c", own), 2 << 20) == f"its command says {own.partition('=')[0]} itself"
    assert with_option((*MARIADB, "--skip-large-pages"), 2 << 20) == "its command says large-pages itself"


def test_others_are_told_not_to_take_a_pool_that_is_there() -> None:
    """PostgreSQL does so by itself: all arms of a run would have the pages that are for one of them."""
    assert without_pool(POSTGRES) == (POSTGRES[0], "-c", "huge_pages=off", *POSTGRES[1:])
    assert without_pool((*POSTGRES, "-c", "huge_pages=try")) == (*POSTGRES, "-c", "huge_pages=try")
    assert without_pool(MARIADB) == MARIADB
    assert without_pool(("redis-server",)) == ("redis-server",)


def test_what_decides_how_much_is_read_from_the_words() -> None:
    first = "mariadb-install-db --no-defaults --defaults-file=/x && "
    options = "--no-defaults --key-buffer-size=$1 --innodb_buffer_pool_size=64M"
    words = ("sh", "-c", f"{first}mariadbd {options};x --key-buffer-size=1")
    assert literals(MARIADB, _mariadb.SIZED) == ("--no-defaults", "--innodb-buffer-pool-size=256M")
    assert literals(("sh", "-c", "true"), _mariadb.SIZED) == ()
    assert server_kind(words) == "mariadbd"
    assert literals(words, _mariadb.SIZED) == ("--no-defaults", "--innodb_buffer_pool_size=64M")


# -- the arm of a service


def test_malloc_is_told_nothing_where_the_server_takes_the_pages_itself() -> None:
    own = given(WORKLOAD, server=POSTGRES, load=("ask",), own_pool=True, pool_bytes=64 << 20)
    (server,) = WORKLOAD.procedure(OWN, own, PLACES).servers
    assert server.environment == {}
    (beside,) = WORKLOAD.procedure(POOL, own, PLACES).servers
    assert beside.environment["GLIBC_TUNABLES"] == "", "it would take pages of the pool as well"
    assert WORKLOAD.pool(OWN, own) == 64 << 20
    assert WORKLOAD.pool(BASE, own) == 0


def test_its_configuration_is_the_servers_file() -> None:
    own = given(WORKLOAD, server=POSTGRES, load=("ask",), own_pool=True, pool_bytes=64 << 20)
    variables, (file,) = WORKLOAD.configuration(OWN, own)
    assert variables == {}
    assert (file.kind, file.content) == ("postgresql", "huge_pages = on\nhuge_page_size = 2048kB\n")
    assert file == files("postgresql", 2 << 20)[0]
    other = given(WORKLOAD, server=MARIADB, load=("ask",), own_pool=True, pool_bytes=64 << 20)
    assert WORKLOAD.configuration(OWN, other)[1][0].kind == "mariadb"
    assert WORKLOAD.configuration(BASE, own) == ({}, ())


def test_a_server_without_a_page_of_the_pool_has_not_taken_it() -> None:
    own = given(WORKLOAD, server=MARIADB, load=("ask",), own_pool=True, pool_bytes=64 << 20)
    why = WORKLOAD.short(OWN, own, {"anon:4096": 200 << 20})
    assert why == "the server has no page of the pool, of 64m that it was to take by its own option"
    assert WORKLOAD.short(OWN, own, {"anon:4096": 1 << 20, "hugetlb:2097152": 2 << 20}) is None
    assert WORKLOAD.short(BASE, own, {}) is None
    plain = given(WORKLOAD, server=MARIADB, load=("ask",), pool_bytes=64 << 20)
    assert WORKLOAD.short(OWN, plain, {}) is None
