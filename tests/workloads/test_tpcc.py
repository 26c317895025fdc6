"""TPC-C: what is run on each server, and what the client says. The recorded outputs are real."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hugewise.model.design import TakingTurns
from hugewise.model.procedure import Part, Places, Server, Step, Write
from hugewise.workloads import _mariadb, _postgres, _tpcc, tpcc
from hugewise.workloads._postgres import TOUCH
from hugewise.workloads._tpcc import go_tpc, go_tpc_whole
from hugewise.workloads.tpcc import WORKLOAD
from tests.build.workloads import BASE, MIB, POOL, Said, given, use

GOLDEN = Path(__file__).parent.parent / "golden" / "tpcc"
GO_TPC = (GOLDEN / "go-tpc.jsonl").read_text()  # a run of 3 s, which tells of two seconds
SILENT = (GOLDEN / "go-tpc-silent.jsonl").read_text()  # a run of 40 s, whose first transaction ended after 6.2 s
TOUCHING = (GOLDEN / "go-tpc-touching.jsonl").read_text()  # another, in which some ended before all stood still
PLACES = Places(data="/d", run="/r", ports=(15306,), sut=(0,), client=(1,))


@pytest.fixture(autouse=True)
def there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both servers and go-tpc seem to be installed, here or not."""
    maria = _mariadb.MariadbPrograms("/s/mariadbd", "/s/mariadb-install-db", "/s/mariadb", "10.11.19")
    monkeypatch.setattr(_mariadb, "find", lambda folder="": maria)
    monkeypatch.setattr(_postgres, "installed", lambda folder="": _postgres.PostgresPrograms("/p", 15, "15.18"))
    monkeypatch.setattr(_tpcc, "go_tpc_path", lambda: "/v/go-tpc")


def said(timed: str, *, client: float = 0.1, lead: int = 1) -> Said:
    told = {"timed": timed, "cpus": "1\n", "lead": f"{lead}\n"}
    return Said(told, sut=use(0.5), client=use(client), seconds=1.0)


def test_go_tpc_reaches_postgres_by_its_socket_and_mariadb_on_the_loopback() -> None:
    argv = WORKLOAD.procedure(BASE, given(WORKLOAD, server="postgres"), PLACES).timed.argv
    # lib/pq sorts its settings and takes the last host: the folder must sort after the dot.
    assert {"--host=.", "--conn-params=sslmode=disable&host=/r", "--ignore-error", "--interval=1s"} <= set(argv)
    assert sorted([".", "/r"])[-1] == "/r"
    procedure = WORKLOAD.procedure(BASE, given(WORKLOAD, server="mariadb"), PLACES)
    assert {"--host=127.0.0.1", "--port=15306", "--time=29s"} <= set(procedure.timed.argv)
    assert {"--bind-address=127.0.0.1", "--port=15306"} <= set(procedure.servers[0].argv)
    assert procedure.window is not None
    assert (procedure.window.lead, procedure.window.length) == (10, 15)


def test_pages_reach_each_server_in_its_own_way() -> None:
    (maria,) = WORKLOAD.procedure(POOL, given(WORKLOAD, server="mariadb"), PLACES).servers
    (postgres,) = WORKLOAD.procedure(POOL, given(WORKLOAD, server="postgres"), PLACES).servers
    assert "--large-pages" in maria.argv
    assert {"huge_pages=on", "huge_page_size=2048kB"} <= set(postgres.argv)
    assert (maria.named, postgres.named) == ("large", "shared")
    assert WORKLOAD.pool(POOL, given(WORKLOAD, server="mariadb")) == (1024 + 24) * 2 * MIB
    assert WORKLOAD.pool(BASE, given(WORKLOAD)) == 0


def test_the_lead_grows_with_the_clients_of_postgres_and_the_size_and_can_be_given() -> None:
    def lead(cpus: int = 1, **parameters: Any) -> float:
        places = msgspec.structs.replace(PLACES, sut=tuple(range(cpus)))
        procedure = WORKLOAD.procedure(BASE, given(WORKLOAD, **parameters), places)
        assert procedure.window is not None
        told = [step.argv for step in procedure.warm if step.name == "lead"]
        assert told == [("echo", f"{procedure.window.lead:g}")], "who reads the seconds of the client is told of it"
        assert f"--time={procedure.window.lead + 15 + 4:g}s" in procedure.timed.argv
        return procedure.window.lead

    assert lead(connections=9) > lead(connections=4) > lead(connections=4, cpus=2)
    assert lead(warehouses=33) > lead(warehouses=12)
    assert lead(warehouses=33) == lead(warehouses=60), "no more than the buffers is touched"
    assert lead(connections=9, lead="4s") == 4
    assert lead(server="mariadb", connections=9) == lead(server="mariadb"), "one process serves all"


def test_a_backend_of_postgres_touches_its_buffers_before_its_first_update() -> None:
    procedure = WORKLOAD.procedure(BASE, given(WORKLOAD), PLACES)
    (prewarm,) = (step for step in procedure.warm if step.name == "prewarm")
    statements = prewarm.argv[prewarm.argv.index("-c") + 1 :: 2]
    assert "pg_prewarm" in statements[0], "what it touches is there before"
    function, trigger = statements[-2:]
    assert "BEFORE UPDATE ON district FOR EACH STATEMENT WHEN (current_setting('hugewise.warm', true)" in trigger
    assert TOUCH.removeprefix("SELECT ") in function
    assert "IF nextval('warmed') = 4 THEN DROP TABLE filler" in function, "the last of four clients frees what is held"
    (fill,) = (statement for statement in statements if statement.startswith("INSERT INTO filler"))
    assert f"least({12 * 110_000_000 // 4 // 8192}, " in fill, "a quarter of the database, where so much is free"


def test_the_redo_log_of_mariadb_is_written_round_once_before_its_pages_are_read() -> None:
    redo, warm, *_ = WORKLOAD.procedure(BASE, given(WORKLOAD, server="mariadb"), PLACES).warm
    assert (redo.name, warm.name) == ("redo", "warm")
    said = redo.argv[-1]
    assert said.startswith("--execute=USE tpcc; CREATE TABLE filler ") and said.endswith("; DROP TABLE filler")
    logged = said.count("UPDATE filler") * 2 * 2048 * 7000
    assert 512 * MIB < logged < 640 * MIB
    assert said.count("innodb_max_purge_lag_wait = 0") == said.count("UPDATE filler"), "nothing is left to be purged"


def test_the_warehouses_are_loaded_once_without_the_client_s_own_check() -> None:
    install, first, server, prepare, analyze = WORKLOAD.data(given(WORKLOAD, server="mariadb")).recipe(PLACES)
    assert isinstance(first, Write) and "CREATE USER tpcc@127.0.0.1" in first.text
    assert "DELETE FROM mysql.global_priv WHERE User = 'root' AND Host <> 'localhost'" in first.text
    assert isinstance(prepare, Step) and "--no-check" in prepare.argv
    assert all(isinstance(each, Step | Server) for each in (install, server, analyze))
    names = [getattr(act, "name", "") for act in WORKLOAD.data(given(WORKLOAD, server="postgres")).recipe(PLACES)]
    assert names == ["initdb", "postgres", "create", "prepare", "rest"]


def test_data_of_another_server_or_size_are_others() -> None:
    values = [
        given(WORKLOAD, server="postgres"),
        given(WORKLOAD, server="mariadb"),
        given(WORKLOAD, warehouses=3),
    ]
    keys = [tuple(sorted((WORKLOAD.data(value).key).items())) for value in values]
    assert len(set(keys)) == len(keys)


@pytest.fixture
def recorded_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorded run ended a second after the part that is read of it."""
    monkeypatch.setattr(tpcc, "_TAIL", 1)


@pytest.mark.usefixtures("recorded_tail")
def test_new_orders_are_counted_in_the_measured_part_alone() -> None:
    seen = go_tpc(GO_TPC, 1, 1, 3)
    assert (seen.new_orders, seen.transactions, seen.errors) == (411, 951, 0)
    assert seen.average_ms == pytest.approx(2121.1 / 411)
    assert seen.quantiles_ms == {}, "those of the summary are of the lead too"
    reading = WORKLOAD.read(said(GO_TPC), given(WORKLOAD, duration="1s"))
    assert reading.metrics["tpmc"] == 411 * 60
    assert reading.metrics["tpm_total"] == 951 * 60
    assert reading.metrics["server_cpu_us"] == pytest.approx(0.5e6 / 951)
    assert set(reading.metrics) == {metric.name for metric in WORKLOAD.metrics}
    assert (reading.problem, reading.marks, reading.series) == (None, (), (951.0,))
    quantiles = {f"latency_p{quantile}_ms" for quantile in (50, 90, 95, 99)}
    assert {*reading.absent} == {name for name, value in reading.metrics.items() if value is None} == quantiles
    assert all("of its whole run alone" in reason for reason in reading.absent.values())


def counted(line: str, operation: str) -> int:
    return sum(int(row["Count"]) for row in json.loads(line) if row["Operation"] == operation)


def orders(line: str) -> int:
    return counted(line, "NEW_ORDER")


def shortened(text: str, first: int, last: int) -> str:
    """As a run of these seconds alone would tell."""
    told = current(text)
    for line in (*told[:first], *told[last:]):
        text = without(text, line)
    return text


def current(text: str) -> list[str]:
    """The lines of the seconds."""
    return [line for line in text.splitlines(keepends=True) if '"[Current] "' in line]


def without(text: str, line: str) -> str:
    """The same, had nothing ended in that second: nor do its transactions count in the summary."""
    lines = [row for row in text.splitlines(keepends=True) if row != line]
    gone = {row["Operation"]: int(row["Count"]) for row in json.loads(line)}
    at = next(place for place, each in enumerate(lines) if '"[Summary] "' in each)
    summary = json.loads(lines[at])
    for row in summary:
        row["Count"] = str(int(row["Count"]) - gone.get(row["Operation"], 0))
    lines[at] = json.dumps(summary) + "\n"
    return "".join(lines)


def slow(text: str, line: str, ms: float) -> str:
    """The same, had what took longest in that second taken so long."""
    rows = json.loads(line)
    rows[0]["Max(ms)"] = f"{ms:.1f}"
    return text.replace(line, json.dumps(rows) + "\n")


def test_the_measured_part_is_found_where_nothing_ended_in_the_first_seconds() -> None:
    """6 of 40 s: backends touched their buffers, and go-tpc tells nothing of a second in which nothing ended."""
    lines = current(SILENT)
    assert len(lines) == 33
    seen = go_tpc(SILENT, 21, 15, 40)
    assert seen.new_orders == sum(map(orders, lines[15:30]))
    assert len(seen.series) == 15
    reading = WORKLOAD.read(said(SILENT, lead=21), given(WORKLOAD, connections=9, warehouses=14))
    assert reading.metrics["tpmc"] == pytest.approx(4 * sum(map(orders, lines[15:30])))


def test_and_where_some_ended_before_that() -> None:
    """What only reads has no buffers to touch: it ends in the first second, and then nothing for 5."""
    lines = current(TOUCHING)
    assert len(lines) == 34
    assert orders(lines[0]) == 0
    assert go_tpc(TOUCHING, 21, 15, 40).new_orders == sum(map(orders, lines[16:31]))


def test_the_last_second_is_told_or_not() -> None:
    """Whether it was is known from the transactions that the summary has more."""
    quick = shortened(TOUCHING, 10, 21)
    lines = current(quick)
    told = quick.replace(lines[-1], "")  # and so in the summary alone
    assert go_tpc(told, 3, 4, 11) == go_tpc(quick, 3, 4, 12)
    all_told = quick
    for row in json.loads(next(line for line in quick.splitlines() if '"[Summary] "' in line)):
        every = sum(counted(line, row["Operation"]) for line in lines)
        all_told = all_told.replace(json.dumps(row), json.dumps({**row, "Count": str(every)}))
    assert all_told != quick
    assert go_tpc(all_told, 3, 4, 11) == go_tpc(quick, 3, 4, 12)
    with pytest.raises(ValueError, match="11 seconds of 12, and not which"):
        go_tpc(all_told, 3, 4, 12)


def test_a_second_without_an_end_in_the_measured_part_counts_as_one() -> None:
    quick = shortened(TOUCHING, 10, 21)
    silent, after = current(quick)[7:9]
    stalled = slow(without(quick, silent), after, 1400.0)
    seen = go_tpc(stalled, 5, 5, 12)
    assert [value == 0 for value in seen.series] == [False, False, True, False, False]
    for unknown in (without(quick, silent), slow(stalled, current(stalled)[2], 1400.0)):
        with pytest.raises(ValueError, match="10 seconds of 12, and not which the others were"):
            go_tpc(unknown, 5, 5, 12)


def test_a_silent_second_behind_the_measured_part_changes_nothing_in_it() -> None:
    quick = shortened(TOUCHING, 10, 21)
    lines = current(quick)
    later = slow(without(quick, lines[9]), lines[10], 1900.0)
    assert go_tpc(later, 3, 4, 12) == go_tpc(quick, 3, 4, 12)


@pytest.mark.usefixtures("recorded_tail")
def test_failures_and_a_saturated_client_are_told() -> None:
    failing = GO_TPC + "[2026-11-21 12:00:00] execute run failed, err deadlock\n" * 90
    reading = WORKLOAD.read(said(failing, client=0.99), given(WORKLOAD, lead="1s", duration="1s"))
    assert set(reading.of_time) & set(reading.marks) == {reading.marks[-1]}
    assert reading.marks == (
        "90 transactions failed in the client's whole run: deadlock",
        "the client was saturated: it used all of its CPU time",
    )
    silent = GO_TPC.replace("NEW_ORDER", "NEW_ORDER_ERR", 2).replace('"NEW_ORDER_ERR","Prefix":"[Summary]', "X")
    assert "no new order was made" in (
        WORKLOAD.read(said(silent), given(WORKLOAD, lead="1s", duration="1s")).problem or ""
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "summary has no NEW_ORDER"),
        ("[{broken", "summary has no NEW_ORDER"),
        (GO_TPC, "2 seconds of 10, and not"),
        ("".join(line for line in SILENT.splitlines(True) if '"[Current] "' not in line), "go-tpc told of no second"),
    ],
)
def test_other_output_is_an_error(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        go_tpc(text, 1, 5, 10)


def test_a_missing_client_says_how_it_is_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tpcc, "go_tpc_path", lambda: None)
    values = given(WORKLOAD, server="mariadb")
    assert [each.reason for each in WORKLOAD.missing(values)] == [
        "go-tpc: not beside hugewise and not on PATH; build it with `make go-tpc` (needs go)"
    ]


WORK = {"server": "mariadb", "connections": 4, "transactions": 1002}


def test_work_is_given_in_place_of_a_time_after_a_tenth_of_it_to_warm_up() -> None:
    procedure = WORKLOAD.procedure(BASE, given(WORKLOAD, **WORK), PLACES)
    assert procedure.window is None
    assert {"--count=1004", "--time=24h"} < {*procedure.timed.argv}
    (warm_up,) = (step for step in procedure.warm if step.name == "warm-up")
    assert "--count=104" in warm_up.argv
    timed = WORKLOAD.procedure(BASE, given(WORKLOAD, server="mariadb"), PLACES).timed.argv
    assert not [word for word in timed if word.startswith("--count")]


def test_writers_take_turns_by_work_and_where_their_pages_can_be_proven() -> None:
    workload: object = WORKLOAD
    assert isinstance(workload, TakingTurns)
    assert workload.turns_refused(given(WORKLOAD, **WORK)) is None
    assert "transactions = N" in (workload.turns_refused(given(WORKLOAD, server="mariadb")) or "")
    values = given(WORKLOAD, **{**WORK, "server": "postgres"})
    assert "backends with it" in (workload.turns_refused(values) or "")
    assert "backends with it" in (WORKLOAD.refuses(BASE, values) or "")


def test_of_a_given_work_all_of_the_run_counts_by_the_time_in_which_it_went_on() -> None:
    seen = go_tpc_whole(GO_TPC, 2.0)
    assert (seen.new_orders, seen.seconds, seen.series) == (1396, 2.0, ())
    assert seen.quantiles_ms == {"p50": 4.2, "p90": 7.9, "p95": 11.0, "p99": 15.7}
    outputs = said(GO_TPC)
    outputs.steps |= {
        "begun": "1000\nInnodb_os_log_written\t50\n", "ended": "3000\nInnodb_os_log_written\t950\n",
    }  # fmt: skip
    outputs.begin, outputs.end = 1000.0, 1010.0
    values = given(WORKLOAD, server="mariadb", transactions=seen.transactions, connections=1)
    alone = WORKLOAD.read(outputs, values)
    assert alone.metrics["tpmc"] == pytest.approx(1396 * 60 / 10)
    assert alone.metrics["latency_p50_ms"] == 4.2
    outputs.turns = (Part(1000.5, 1001.5, 1000.5), Part(1004.0, 1005.0, 1004.0))
    turned = WORKLOAD.read(outputs, values)
    assert turned.metrics["tpmc"] == pytest.approx(1396 * 60 / 2)
    assert turned.metrics["server_cpu_us"] == pytest.approx(0.5e6 / seen.transactions)
    assert turned.metrics["latency_p50_ms"] is None and "goes on while it is frozen" in turned.absent["latency_p50_ms"]
    grown = {name: turned.facts[name] for name in ("database_bytes", "database_grew_bytes", "redo_grew_bytes")}
    assert grown == {"database_bytes": 1000, "database_grew_bytes": 2000, "redo_grew_bytes": 900}
    assert turned.problem is None
    refused = "execute run failed, err Error 1213: Deadlock found\n"
    for count, why in ((10, None), (seen.transactions // 10, "so that it did other work: Error 1213: Deadlock found")):
        outputs.steps["timed"] = f"{GO_TPC}{refused * count}"
        failing = WORKLOAD.read(outputs, {**values, "transactions": seen.transactions + count})
        assert (failing.problem or "").endswith(why or "") and bool(failing.problem) == bool(why)
    outputs.steps["timed"] = GO_TPC
    more = WORKLOAD.read(outputs, {**values, "transactions": seen.transactions + 5})
    assert more.problem == f"{seen.transactions} transactions were made of {seen.transactions + 5}"
