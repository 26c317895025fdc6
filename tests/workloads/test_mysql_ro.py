"""MariaDB under sysbench: what is run under each treatment, and what its outputs mean. The recorded report is real."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hugewise.model.design import TakingTurns
from hugewise.model.policy import Treatment
from hugewise.model.procedure import Part, Server, Step, Window, Write
from hugewise.model.workload import Missing
from hugewise.workloads import _mariadb
from hugewise.workloads.mysql_ro import WORKLOAD, data_bytes
from tests.build.workloads import BASE, GIB, MIB, PLACES, POOL, Said, given, treatment, use

SAID = (Path(__file__).parent.parent / "golden" / "mysql-ro" / "sysbench.txt").read_text()
INSTALLATION = _mariadb.MariadbPrograms(
    "/usr/sbin/mariadbd", "/usr/bin/mariadb-install-db", "/usr/bin/mariadb", "10.11.19"
)
BEGUN = "Innodb_buffer_pool_bytes_data\t52000000\nInnodb_buffer_pool_read_ahead\t5\nInnodb_buffer_pool_reads\t9\n"


@pytest.fixture(autouse=True)
def there(monkeypatch: pytest.MonkeyPatch) -> None:
    """MariaDB seems to be installed, here or not."""
    monkeypatch.setattr(_mariadb, "find", lambda folder="": INSTALLATION)
    monkeypatch.setattr("hugewise.machine.probe.find", lambda: "/bin/hugewise-probe")


def served(arm: Treatment, **parameters: Any) -> Server:
    (server,) = WORKLOAD.procedure(arm, given(WORKLOAD, **parameters), PLACES).servers
    return server


def test_a_pool_reaches_the_server_as_large_pages_and_not_its_malloc() -> None:
    assert "--large-pages" in served(POOL).argv
    assert served(POOL).environment == {"GLIBC_TUNABLES": ""}
    assert "--large-pages" not in served(BASE).argv
    assert served(BASE).environment == {}
    assert served(BASE).named == "large"


def test_the_pool_holds_all_that_is_mapped_in_large_pages() -> None:
    values = given(WORKLOAD, buffer_pool="1536m")
    # Measured on a disk: 792 pages, of which 768 are the buffer pool.
    assert WORKLOAD.pool(POOL, values) == 792 * 2 * MIB
    assert WORKLOAD.pool(treatment("hugetlb", GIB, map_hugetlb=GIB), values) == 2 * GIB
    assert WORKLOAD.pool(BASE, values) == 0


def test_the_server_can_be_kept_from_switching_thp_off() -> None:
    kept = served(BASE, keep_thp=True).argv
    assert kept[:3] == ("/bin/hugewise-probe", "keep-thp", "/usr/sbin/mariadbd")
    assert kept[2:] == served(BASE).argv
    assert kept[3] == "--no-defaults", "the server takes it only as the first"


def test_nothing_listens_on_a_network_and_nothing_is_carried_over() -> None:
    argv = served(BASE).argv
    assert {"--skip-networking", "--innodb-buffer-pool-dump-at-shutdown=0", "--innodb-fast-shutdown=2"} <= set(argv)
    assert not any(word.startswith("--init-file") for word in argv)


def test_data_are_made_from_the_seed_by_a_server_that_ends_with_all_settled() -> None:
    values = given(WORKLOAD, tables=2, table_size=10, seed=7)
    data = WORKLOAD.data(values)
    install, first, server, prepare, analyze = data.recipe(PLACES)
    assert isinstance(install, Step) and "--no-defaults" in install.argv
    assert isinstance(first, Write) and "CREATE DATABASE sbtest" in first.text
    assert isinstance(server, Server) and "--innodb-fast-shutdown=0" in server.argv
    assert f"--init-file=/d/{first.path}" in server.argv
    assert isinstance(prepare, Step) and {"--rand-seed=7", "--threads=2", "prepare"} <= set(prepare.argv)
    assert isinstance(analyze, Step) and analyze.argv[-1] == "--execute=ANALYZE TABLE sbtest.sbtest1, sbtest.sbtest2"
    assert data.key != WORKLOAD.data(given(WORKLOAD, tables=2, table_size=10, seed=8)).key
    assert data_bytes(given(WORKLOAD)) > GIB, "small is hot over more than a GiB"


def test_every_index_is_read_before_the_measured_part() -> None:
    procedure = WORKLOAD.procedure(BASE, given(WORKLOAD, tables=2), PLACES)
    assert [step.name for step in procedure.warm] == ["warm", "warm-queries", "cpus", "begun"]
    assert procedure.warm[0].argv[-1] == "--execute=CHECK TABLE sbtest.sbtest1, sbtest.sbtest2"
    assert procedure.warm[0].expects == "status\tOK"
    assert procedure.window is None


@pytest.mark.parametrize(
    ("test", "words"),
    [
        ("read-only", {"oltp_read_only"}),
        ("point-select", {"oltp_point_select"}),
        ("range", {"oltp_read_only", "--point_selects=0"}),
    ],
)
def test_the_client_asks_evenly_over_all_rows(test: str, words: set[str]) -> None:
    argv = WORKLOAD.procedure(BASE, given(WORKLOAD, test=test, threads=3, duration="7s"), PLACES).timed.argv
    assert argv[0] == "sysbench"
    common = {"--rand-type=uniform", "--rand-seed=1", "--threads=3", "--time=7", "--report-interval=1", "run"}
    assert common | words <= set(argv)
    assert ("--point_selects=0" in argv) == (test == "range")


def said(timed: str = SAID, *, reads: int = 0, client: float = 0.5) -> Said:
    steps = {"timed": timed, "begun": BEGUN, "ended": BEGUN.replace("reads\t9", f"reads\t{9 + reads}"), "cpus": "1\n"}
    return Said(steps, sut=use(0.804), client=use(client), seconds=2.0)


def test_the_whole_run_is_measured() -> None:
    reading = WORKLOAD.read(said(), given(WORKLOAD))
    assert reading.metrics == pytest.approx(
        {
            "tps": 804 / 2.0056,
            "qps": 12864 / 2.0056,
            "latency_avg_ms": 9.95,
            "latency_p95_ms": 14.73,
            "server_cpu_us": 1000,
        }
    )
    assert set(reading.metrics) == {metric.name for metric in WORKLOAD.metrics}
    assert reading.series == (377.17, 421.12)
    assert reading.facts["transactions"] == 804
    assert (reading.problem, reading.marks) == (None, ())


def test_in_turns_a_script_before_the_test_logs_every_transaction() -> None:
    workload: object = WORKLOAD
    assert isinstance(workload, TakingTurns)
    values = given(WORKLOAD, test="range", duration="7s")
    assert workload.turns_refused(values) is None
    alone, procedure = (
        WORKLOAD.procedure(BASE, values, each) for each in (PLACES, msgspec.structs.replace(PLACES, idle=30.0))
    )
    (written,) = procedure.before
    assert isinstance(written, Write)
    assert procedure.timed.argv[:2] == ("sysbench", f"{PLACES.data}/{written.path}")
    assert isinstance(procedure.enough, Write)
    assert procedure.timed.environment == {
        "HUGEWISE_TEST": "oltp_read_only",
        "HUGEWISE_LOG": "/r/transactions",
        "HUGEWISE_ENOUGH": f"{PLACES.data}/{procedure.enough.path}",
    }
    assert procedure.window == Window(1.0, 7.0)
    assert "--time=43" in procedure.timed.argv
    assert set(alone.timed.argv) - set(procedure.timed.argv) == {"oltp_read_only", "--time=7", "--report-interval=1"}
    assert (alone.before, alone.window, alone.enough, alone.timed.environment) == ((), None, None, {})


# Two turns of 0.5 s, of which 0.1 s are wash-out; the fourth of the first thread was frozen on its way.
FROZEN = {
    "transactions.0": b"0 1 5000 0 999 0\n0 2 50000 0 1000 50000\n0 3 20000 0 1000 200000\n0 4 1500000 0 1001 700000\n",
    "transactions.1": b"1 1 5000 0 999 0\n1 2 40000 0 1000 300000\n1 3 60000 0 1001 800000\n",
}


def turned(files: Mapping[str, bytes], transactions: int = 7) -> Said:
    report = SAID.replace("transactions:                        804 ", f"transactions: {transactions} ")
    outputs = Said(said(report).steps, files=files, sut=use(0.804), client=use(0.5))
    outputs.begin, outputs.end = 1000.0, 1002.0
    outputs.turns = (Part(1000.1, 1000.5, 1000.0), Part(1001.6, 1002.0, 1001.5))
    return outputs


def test_in_turns_the_log_is_measured_and_errors_are_those_of_the_report() -> None:
    outputs = turned(FROZEN)
    reading = WORKLOAD.read(outputs, given(WORKLOAD, threads=2))
    assert reading.metrics == pytest.approx(
        {
            "tps": 4 / 0.8,
            "qps": 4 / 0.8 * 12864 / 7,
            "latency_avg_ms": 40.0,
            "latency_p95_ms": 58.0,
            "server_cpu_us": 0.804e6 / 5,
        }
    )
    assert (reading.series, reading.facts["transactions"], reading.problem) == ((), 4, None)
    assert WORKLOAD.read(outputs, given(WORKLOAD)).problem == "2 of 4 threads made any transaction"
    short = WORKLOAD.read(turned(FROZEN, 8), given(WORKLOAD, threads=2))
    assert short.problem == "the log holds 7 of 8 transactions"
    outputs.steps["timed"] = SAID.replace("reconnects:                          0", "reconnects: 3")
    assert "3 new connections" in (WORKLOAD.read(outputs, given(WORKLOAD, threads=2)).problem or "")


def test_turns_without_a_log_are_an_error_and_not_the_whole_run() -> None:
    with pytest.raises(ValueError, match="left no log"):
        WORKLOAD.read(turned({}), given(WORKLOAD))


def test_a_cold_pool_a_saturated_client_and_errors_are_told() -> None:
    reading = WORKLOAD.read(said(reads=1000, client=1.99), given(WORKLOAD))
    assert ["buffer pool is too small" in reading.marks[0], "saturated" in reading.marks[1]] == [True, True]
    wrong = WORKLOAD.read(
        said(SAID.replace("reconnects:                          0", "reconnects: 3")), given(WORKLOAD)
    )
    assert wrong.problem == "0 errors and 3 new connections in the measured part"


def test_other_output_is_an_error_that_shows_it() -> None:
    with pytest.raises(ValueError, match="sysbench's report has no .*'FATAL: unable to connect'"):
        WORKLOAD.read(said("FATAL: unable to connect"), given(WORKLOAD))
    with pytest.raises(ValueError, match="MariaDB's status has no Innodb_buffer_pool_reads"):
        _mariadb.counters("ERROR")


def test_a_missing_program_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_mariadb, "find", lambda folder="": Missing("mariadbd: no such program", "mariadb-server"))
    monkeypatch.setenv("PATH", "/nowhere")
    assert [each.package for each in WORKLOAD.missing(given(WORKLOAD))] == ["mariadb-server", "sysbench"]
