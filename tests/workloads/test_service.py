"""A server of the user's under a load of theirs: its commands, what says that it is up, and its own pool."""

from typing import Any

import msgspec
import pytest

from hugewise.errors import StudyError
from hugewise.model.design import refusal
from hugewise.model.pages import PageTarget
from hugewise.model.policy import Treatment
from hugewise.model.procedure import OutputReady, Places, PortReady, Step
from hugewise.model.workload import ParameterValue
from hugewise.plan.cells import resolve
from hugewise.workloads import _mariadb, discover
from hugewise.workloads._own_pool import files, literals, server_kind, server_of, with_option, without_pool
from hugewise.workloads.service import WORKLOAD, filled_in, ready, split, variables
from tests.build.studies import study_of
from tests.build.workloads import BASE, HUGE, POOL, Said, given, use

PLACES = Places(data="/dev/shm/x/data", run="/dev/shm/x/run", ports=(4711,), sut=(0,), client=(1,), cwd="/home/me")
SERVER, LOAD = ("serve", "--port", "{port}", "--dir={folder}/a", '{"a": 1}'), ("ask", "127.0.0.1:{port}")


def values(**more: Any) -> dict[str, ParameterValue]:
    return given(WORKLOAD, **{"server": SERVER, "load": LOAD, **more})


def test_ports_and_folders_are_filled_in_and_no_other_braces_mean_anything() -> None:
    procedure = WORKLOAD.procedure(BASE, values(fill=("fill", "{folder}", "{fold}", "{{port}}")), PLACES)
    (server,) = procedure.servers
    assert server.argv == ("serve", "--port", "4711", "--dir=/dev/shm/x/data/a", '{"a": 1}')
    assert procedure.timed.argv == ("ask", "127.0.0.1:4711")
    (fill,) = procedure.warm
    assert fill.argv == ("fill", "/dev/shm/x/data", "{fold}", "{4711}")
    assert {server.cwd, procedure.timed.cwd, fill.cwd} == {"/home/me"}, "where its user called"
    unfilled = WORKLOAD.procedure(BASE, values(), PLACES)
    assert (unfilled.warm, unfilled.window) == ((), None), "nothing runs before the load"
    assert filled_in(("{port}",), msgspec.structs.replace(PLACES, ports=())) == ("{port}",), "a machine without ports"


def test_the_treatment_reaches_the_server_and_not_the_load() -> None:
    procedure = WORKLOAD.procedure(POOL, values(pool_bytes="64m"), PLACES)
    (server,) = procedure.servers
    assert server.treated and server.named == "tree"
    assert server.environment["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=2"
    assert procedure.timed.environment == {}


def test_tunables_of_the_servers_own_stay_beside_those_of_the_treatment() -> None:
    own = values(environment=("GLIBC_TUNABLES=glibc.malloc.arena_max=1", "HOME={folder}"), pool_bytes="64m")
    (server,) = WORKLOAD.procedure(POOL, own, PLACES).servers
    joined = "glibc.malloc.arena_max=1:glibc.malloc.hugetlb=2"
    assert server.environment == {"GLIBC_TUNABLES": joined, "HOME": "/dev/shm/x/data"}
    assert WORKLOAD.configuration(POOL, own) == ({"GLIBC_TUNABLES": joined}, ())
    assert WORKLOAD.procedure(BASE, own, PLACES).servers[0].environment["GLIBC_TUNABLES"] == "glibc.malloc.arena_max=1"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", PortReady(port=4711)),
        ("tcp:{port}", PortReady(port=4711)),
        ("tcp:80", PortReady(port=80)),
        ("unix:{folder}/socket", PortReady(path="/dev/shm/x/data/socket")),
        ("unix:@name", PortReady(path="@name")),
        ("line:^Ready to accept", OutputReady("^Ready to accept")),
        ("line:{port}", OutputReady("{port}")),
    ],
)
def test_what_says_that_it_is_up(text: str, expected: PortReady | OutputReady) -> None:
    assert ready(text, SERVER, PLACES) == expected


def test_a_command_may_say_that_it_is_up_and_no_shell_reads_it() -> None:
    found = ready("exec:ask -p {port} 'are you;there' $HOME", SERVER, PLACES)
    assert isinstance(found, Step)
    assert found.argv == ("ask", "-p", "4711", "are you;there", "$HOME")
    assert ready("", ("serve",), PLACES) == PortReady(), "a command that names no port: when it listens anywhere"


def test_the_port_that_such_a_command_asks_at_must_be_the_servers() -> None:
    def port(text: str, places: Places = PLACES) -> int | None:
        (server,) = WORKLOAD.procedure(BASE, values(ready=text), places).servers
        return server.port

    assert port("exec:ask -p {port}") == 4711
    assert port("exec:ask http://127.0.0.1:{port}/") == 4711
    assert port("exec:ask -p 80") is None
    assert port("line:{port}") is None


def test_words_are_split_as_a_shell_does_and_nothing_else_of_it_is_done() -> None:
    assert split("a 'b c' \"d\" e\\ f; g | h > i `j` $(k) *") == (
        *("a", "b c", "d", "e f;", "g", "|", "h", ">", "i", "`j`", "$(k)", "*"),
    )
    for wrong, why in (("a 'b", "no closing quotation"), ("", "names no program"), ("''", "names no program")):
        with pytest.raises(ValueError, match=why):
            split(wrong)


def test_variables_are_names_with_values() -> None:
    assert variables(("A=", "B=c=d")) == {"A": "", "B": "c=d"}
    for wrong in ("=a", "1A=b", "a b=c", "A"):
        with pytest.raises(ValueError, match="is not NAME=VALUE"):
            variables((wrong,))


# -- what is read


def test_what_the_server_used_is_told_for_each_operation_that_the_load_names() -> None:
    told = Said({"timed": "did 2000 in 1 s"}, sut=use(0.5), client=use(0.25))
    plain = WORKLOAD.read(told, values())
    assert plain.metrics == {"server_cpu_s": 0.5, "server_cpu_us": None}
    assert plain.absent == {"server_cpu_us": "no value is named operations"}
    assert plain.facts == {"load_cpu_s": 0.25}
    counted = WORKLOAD.read(told, values(values=("operations,neutral=regex:did ([0-9]+)",)))
    assert counted.metrics == {"server_cpu_s": 0.5, "server_cpu_us": 250.0}


def test_what_was_not_counted_is_absent_with_the_reason() -> None:
    found = WORKLOAD.read(Said({"timed": "did 0"}), values(values=("operations,neutral=regex:did ([0-9]+)",)))
    assert found.metrics == {"server_cpu_s": None, "server_cpu_us": None}
    assert set(found.absent.values()) == {"the server's CPU time was not counted"}
    none = WORKLOAD.read(Said({"timed": "0"}, sut=use(1.0)), values(values=("operations,neutral=regex:[0-9]+",)))
    assert none.absent == {"server_cpu_us": "operations is 0"}
    with pytest.raises(ValueError, match="nothing in its output matches"):
        WORKLOAD.read(Said({"timed": "\x1b[2J\0"}), values(values=("rate,higher=regex:rate ([0-9]+)",)))


# -- as a workload of a study


def cell(**parameters: Any) -> Any:
    told = {"server": list(SERVER), "load": list(LOAD), **parameters}
    (found,) = resolve(study_of(workload=[{"name": "service", "parameters": told}]), discover())
    return found


def test_the_time_of_the_load_is_judged_or_of_each_operation_or_the_first_value() -> None:
    assert (cell().metric.name, cell().metric.better) == ("wall_s", "lower")
    assert cell(values=["rate,higher,1/s=json:.rate"]).metric.name == "rate"
    counted = "operations,neutral=regex:did ([0-9]+)"
    assert (cell(values=[counted]).metric.name, cell(values=[counted]).metric.better) == ("wall_us", "lower")
    assert cell(values=["rate,higher=json:.rate", counted]).metric.name == "rate"
    assert cell(values=[counted.replace("neutral", "higher")]).metric.name == "operations"
    for own in ("wall_us", "server_cpu_s"):
        with pytest.raises(StudyError, match="names a metric wrongly"):
            cell(values=[f"{own},lower=regex:x"])


def test_a_service_has_a_server_and_a_load() -> None:
    for key in ("server", "load"):
        with pytest.raises(StudyError, match=key):
            cell(**{key: []})
    with pytest.raises(StudyError, match="load"):
        resolve(study_of(workload=[{"name": "service", "parameters": {"server": ["a"]}}]), discover())


# -- in turns

TUNED = msgspec.structs.replace(BASE, mechanism="process", knobs={}, environment={"A": "1"})
ALWAYS = msgspec.structs.replace(HUGE, knobs={"/sys/kernel/mm/transparent_hugepage/enabled": "always"})


def in_turns(arm: Treatment, baseline: Treatment = BASE, **parameters: Any) -> str | None:
    told = values(**parameters)
    return refusal("resident", arm, baseline, WORKLOAD, told, taken=1)


def test_a_service_takes_turns_where_no_setting_of_the_machine_is_turned() -> None:
    assert in_turns(TUNED) is None
    assert in_turns(msgspec.structs.replace(TUNED, target=PageTarget("any", 4096))) is None


def test_what_it_says_of_its_own_time_is_not_compared_in_turns() -> None:
    refused = in_turns(TUNED, values=("rate,higher=regex:x",)) or ""
    assert "its own clock goes on while it stands still" in refused
    assert in_turns(TUNED, values=("operations,neutral=regex:x",)) is None, "a count has no clock"


def test_a_machine_wide_setting_may_differ_whether_its_memory_is_there_before_the_load_or_not() -> None:
    assert in_turns(ALWAYS) is None, "the knobs are turned for each turn"
    assert in_turns(ALWAYS, fill=("fill",)) is None
    assert "needs root" in (in_turns(msgspec.structs.replace(ALWAYS, mechanism="process"), fill=("fill",)) or "")


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


@pytest.mark.parametrize(
    ("words", "content"),
    [
        (("redis-server", "--port", "{port}", "--disable-thp", "no"), "disable-thp no\n"),
        (("memcached", "-m", "64", "-L"), "-L\n"),
        (("memcached", "-L", "-m"), None),
        ((), None),
    ],
)
def test_an_option_that_an_arm_gives_its_server_is_deployed_by_the_servers_file(
    words: tuple[str, ...], content: str | None
) -> None:
    treated = msgspec.structs.replace(HUGE, parameters={"server": words} if words else {})
    _, made = WORKLOAD.configuration(treated, values())
    assert [file.content for file in made] == ([] if content is None else [content])


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
