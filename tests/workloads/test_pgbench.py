"""pgbench and PostgreSQL: what is run under each treatment, and what outputs mean."""

import os
import pwd
import subprocess
from pathlib import Path

import msgspec
import pytest

from hugewise.errors import UserError
from hugewise.model.design import TakingTurns
from hugewise.model.procedure import Part, Step, Window, Write
from hugewise.session import feasibility
from hugewise.study.load import parse
from hugewise.workloads import _outputs, _postgres
from hugewise.workloads._outputs import measured
from hugewise.workloads.pgbench import WORKLOAD, database_bytes, lead, quota
from tests.build import known
from tests.build.workloads import BASE, GIGANTIC, MIB, PLACES, Said, given, use
from tests.requirements import need, need_root

GOLDEN = Path(__file__).parent.parent / "golden" / "pgbench"

# client_id transaction_no time script_no time_epoch time_us: two clients, each with a warm-up first.
LOG = b"""\
0 1 900000 0 1000 0
1 1 900000 0 1000 500000
0 2 4000 0 1001 900000
0 3 1000 0 1002 100000
1 2 2000 0 1002 200000
0 4 3000 0 1003 50000
1 3 9000 0 1004 1
"""


BEGIN = 1795263458.8055  # of the recorded logs: after both warm-ups


FILES = {path.name: path.read_bytes() for path in sorted(GOLDEN.iterdir())}


def recorded(
    seconds: float = 0.005, *, begin: float = BEGIN, said: str = "", cpu: float | None = 0.5, client: float = 0.001
) -> Said:
    """Outputs of the recorded attempt."""
    bare = {"begun": "760708455|1000\n", "ended": "760708455|6900\n"}
    texts = {"timed": said or (GOLDEN / "stdout.txt").read_text(), **bare}
    found = Said(texts, files=FILES, sut=use(cpu), client=use(client))
    found.begin, found.end = begin, begin + seconds
    return found


def test_only_what_ended_in_the_measured_part_counts_and_no_warm_up() -> None:
    seen = measured([LOG], 1002.0, 1004.0)
    assert (seen.transactions, seen.regular, seen.clients) == (3, 5, 2)
    assert seen.latency_ms == pytest.approx((2.0, 2.9, 2.98))
    assert seen.series == (2.0, 1.0)
    assert seen.warmed_s == pytest.approx(1.5)
    assert measured([LOG], 1000.2, 1004.0).warmed_s == pytest.approx(-0.3), "a client warms up in the measured part"
    lines = LOG.splitlines(keepends=True)  # every thread has a log of its own
    assert measured([b"".join(lines[::2]), b"", b"".join(lines[1::2])], 1002.0, 1004.0).transactions == 3


# Two turns, of which 10.2 to 11 and 20.2 to 21 count: 0.2 s each are wash-out.
TURNS = (Part(10.2, 11.0, 10.0), Part(20.2, 21.0, 20.0))
SLICED = b"""\
0 1 900000 0 9 0
0 2 50000 0 9 950000
0 3 100000 0 10 150000
0 4 100000 0 10 250000
0 5 300000 0 10 550000
0 6 9650000 0 20 210000
0 7 700000 0 20 910000
0 8 100000 0 21 10000
0 9 50000 0 22 0
"""


def test_what_counts_in_turns_is_what_ended_in_one_and_times_are_of_whole_transactions() -> None:
    """Two in the first turn; in the second one that was frozen on its way, and one that was not."""
    seen = measured([SLICED], 10.0, 21.2, TURNS)
    assert (seen.transactions, seen.between, seen.regular) == (4, 6, 8)
    assert seen.latency_ms[0] == pytest.approx(300.0)
    assert max(seen.latency_ms) < 701
    assert seen.series == ()


def test_ends_of_a_turn_count_and_the_order_of_the_log_does_not() -> None:
    lines = b"".join(reversed(SLICED.splitlines(keepends=True)))
    assert measured([lines], 10.0, 21.2, TURNS) == measured([SLICED], 10.0, 21.2, TURNS)
    exact = (Part(10.25, 10.55, 10.0), Part(20.91, 21.0, 20.0))
    assert measured([SLICED], 10.0, 21.2, exact).transactions == 3
    frozen = measured([SLICED], 10.0, 21.2, (Part(20.2, 20.5, 20.0),))
    assert (frozen.transactions, frozen.latency_ms) == (1, ()), "all were frozen on their way: a rate, and no time"


@pytest.mark.parametrize(("begin", "seconds"), [(BEGIN, 0.005), (BEGIN, 0.0123), (1795263458.8035, 0.01)])
def test_one_turn_is_the_measured_part(begin: float, seconds: float) -> None:
    logs = [FILES[name] for name in FILES if name.startswith("transactions")]
    whole = measured(logs, begin, begin + seconds)
    assert measured(logs, begin, begin + seconds, (Part(begin, begin + seconds),)) == whole
    assert whole.between == whole.transactions


def test_in_turns_rates_are_of_what_counts_and_cpu_time_is_of_all() -> None:
    outputs = recorded(0.008)
    parts = tuple(Part(BEGIN + at + 0.0005, BEGIN + at + 0.002, BEGIN + at) for at in (0.0, 0.004))
    outputs.turns = parts
    reading, seen = (
        WORKLOAD.read(outputs, given(WORKLOAD, clients=2)),
        measured([FILES[name] for name in FILES if name.startswith("transactions")], outputs.begin, outputs.end, parts),
    )
    assert 0 < seen.transactions < seen.between
    assert reading.metrics["tps"] == pytest.approx(seen.transactions / 0.003, rel=1e-3)
    assert reading.metrics["server_cpu_us"] == pytest.approx(0.5e6 / seen.between)
    assert reading.facts["transactions"] == seen.transactions


def test_without_a_whole_transaction_in_a_turn_its_times_are_absent_with_the_reason() -> None:
    outputs = recorded(0.008)
    outputs.turns = (Part(BEGIN + 0.0015, BEGIN + 0.0016, BEGIN + 0.0012),)  # one that took 1.7 ms ends in it
    reading = WORKLOAD.read(outputs, given(WORKLOAD, clients=2))
    assert reading.metrics["tps"] == pytest.approx(1e4, rel=1e-2)
    assert reading.metrics["latency_p50_ms"] is None
    assert "within one turn" in reading.absent["latency_p50_ms"]


def test_a_client_is_saturated_by_the_time_in_which_it_was_not_frozen() -> None:
    outputs = Said({}, client=use(0.97), seconds=10.0)
    assert not _outputs.saturated(outputs, 1)
    outputs.turns = (Part(1000.2, 1000.5, 999.9), Part(1005.1, 1005.5, 1005.0))
    assert _outputs.saturated(outputs, 1)
    assert not _outputs.saturated(outputs, 2)
    outputs.client = use(0.9)  # it has worked while wash-out was dropped, too
    assert not _outputs.saturated(outputs, 1)


def test_data_that_grow_take_turns_by_work_and_not_by_time() -> None:
    workload: object = WORKLOAD
    assert isinstance(workload, TakingTurns)
    assert WORKLOAD.turns_refused(given(WORKLOAD, mode="select-only")) is None
    assert "transactions = N" in (WORKLOAD.turns_refused(given(WORKLOAD)) or "")
    assert WORKLOAD.turns_refused(given(WORKLOAD, transactions=1000)) is None


# Two clients with three transactions each: a warm-up, one in which it waits, its work, and idling until it is ended.
SHARES = b"""\
0 1 900000 0 1000 0
1 1 900000 0 1000 500000
0 2 900000 0 1001 0
1 2 900000 0 1001 0
0 3 100000 0 1001 100000
1 3 150000 0 1001 150000
0 4 100000 0 1001 200000
1 4 150000 0 1001 300000
0 5 100000 0 1001 400000
0 6 1000 0 1001 410000
0 7 10000 0 1001 420000
1 5 300000 0 1001 600000
1 6 1000 0 1001 610000
"""


def test_of_a_share_of_work_counts_what_was_done_while_all_were_at_it() -> None:
    seen = measured([SHARES], 1000.9, 1002.0, share=3)
    assert (seen.transactions, seen.between, seen.regular) == (5, 6, 6)
    assert seen.seconds == pytest.approx(0.5)
    assert seen.warmed_s == pytest.approx(0.4)
    assert max(seen.latency_ms) < 151
    turns = (Part(1001.05, 1001.12, 1001.0), Part(1001.25, 1001.45, 1001.2), Part(1001.5, 1001.7, 1001.5))
    some = measured([SHARES], 1000.9, 1002.0, turns, share=3)
    assert (some.transactions, some.regular) == (3, 6)
    assert some.seconds == pytest.approx(0.22)


def test_who_has_not_done_its_share_is_said_and_so_is_one_that_was_too_small() -> None:
    with pytest.raises(ValueError, match="client 0 has done 5 of its 7 transactions"):
        measured([SHARES], 1000.9, 1002.0, share=7)
    late = (Part(1001.5, 1001.7, 1001.5),)
    with pytest.raises(ValueError, match="before anything counted"):
        measured([SHARES], 1000.9, 1002.0, late, share=3)


def test_what_grows_is_said_and_a_checkpoint_that_came_all_the_same() -> None:
    outputs = recorded()
    outputs.steps["ended"] = "760908455|6900\n"
    grows = {name: WORKLOAD.read(outputs, given(WORKLOAD, clients=2)).facts.get(name) for name in GROWS}
    assert grows == {
        "transactions_made": 118, "database_grew_bytes": 200_000, "wal_grew_bytes": 5900, "checkpoints": 0,
    }  # fmt: skip
    reading = WORKLOAD.read(outputs, given(WORKLOAD, clients=2, mode="select-only"))
    assert not GROWS & reading.facts.keys()
    log = "2026-11-22 LOG:  checkpoint starting: wal\n2026-11-22 LOG:  checkpoint complete\n"
    outputs = Said(outputs.steps, files={"transactions.1": SHARES}, stderr={"postgres": log})
    outputs.begin, outputs.end = 1000.9, 1002.0
    reading = WORKLOAD.read(outputs, given(WORKLOAD, clients=2, transactions=6))
    assert reading.marks == ("1 checkpoints began while the server ran: raise max_wal_size (settings)",)
    assert reading.metrics["tps"] == pytest.approx(10)
    assert reading.facts["transactions_made"] == 6


GROWS = {"transactions_made", "database_grew_bytes", "wal_grew_bytes", "checkpoints"}


def test_work_is_given_in_equal_shares_and_nothing_comes_by_the_servers_clock() -> None:
    _need_postgres()
    values = given(WORKLOAD, clients=4, transactions=1001, lead="5s", shared_buffers="64m")
    procedure = WORKLOAD.procedure(BASE, values, PLACES)
    assert procedure.window == Window(5.0, 0.0, quota(251, 4))
    assert {"--define=left=252", "--define=share=251"} < {*procedure.timed.argv}
    chosen = _options(procedure.servers[0].argv)
    assert (chosen["autovacuum"], chosen["checkpoint_timeout"]) == ("off", "1d")
    assert int(chosen["max_wal_size"].removesuffix("kB")) >= 1 << 20
    timed = _options(WORKLOAD.procedure(BASE, given(WORKLOAD, shared_buffers="64m"), PLACES).servers[0].argv)
    assert "autovacuum" not in timed and timed["checkpoint_timeout"] == "10min"
    own = given(WORKLOAD, transactions=9, settings="checkpoint_timeout=5min")
    assert _options(WORKLOAD.procedure(BASE, own, PLACES).servers[0].argv)["checkpoint_timeout"] == "5min"


def test_a_part_that_no_checkpoint_falls_into_is_as_long_after_one() -> None:
    """After one the first change of every page logs it whole: the rate would rise as fewer pages are left."""
    _need_postgres()
    for values, images in (
        ({}, "off"),
        ({"transactions": 1000}, "off"),
        ({"duration": "9m"}, "off"),
        ({"duration": "10m"}, None),
        ({"settings": "full_page_writes=on"}, "on"),
    ):
        procedure = WORKLOAD.procedure(BASE, given(WORKLOAD, shared_buffers="64m", **values), PLACES)
        assert _options(procedure.servers[0].argv).get("full_page_writes") == images, values


def test_pages_have_room_for_their_first_update() -> None:
    _need_postgres()
    data = WORKLOAD.data(given(WORKLOAD, scale=7))
    (made,) = (act.argv for act in data.recipe(PLACES) if isinstance(act, Step) and act.name == "pgbench")
    assert made[made.index("-F") + 1] == "98"
    assert data.key["made"] == 2, "tables that were kept before are others"


@pytest.mark.parametrize(
    ("logs", "begin", "message"),
    [
        ([], 1002.0, "no log"),
        ([b"\n"], 1002.0, "no log"),
        ([b"0 1 failed 0 1000 0\n"], 1002.0, "no transaction: "),
        ([b"0 1 12\n"], 1002.0, "no transaction: "),
        ([LOG], 2000.0, r"of 7 logged, 2 are warm-ups, and they ended -1000\.0 to -996\.0 s from its begin"),
    ],
)
def test_what_cannot_be_read_is_said(logs: list[bytes], begin: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        measured(logs, begin, begin + 1)


def test_metrics_are_of_the_measured_part() -> None:
    outputs = recorded()
    length = outputs.end - outputs.begin
    reading = WORKLOAD.read(outputs, given(WORKLOAD, clients=2))
    count = reading.facts["transactions"]
    assert isinstance(count, int) and 0 < count < 118
    assert reading.metrics["tps"] == pytest.approx(count / length)
    assert reading.metrics["tps_connecting"] == pytest.approx(count / (length + 0.016254))
    assert reading.metrics["server_cpu_us"] == pytest.approx(0.5e6 / count)
    assert reading.metrics["wal_bytes"] == pytest.approx(5900 / 118)
    assert set(reading.metrics) == {metric.name for metric in WORKLOAD.metrics}
    assert reading.problem is None
    assert reading.marks == ()


def test_what_went_wrong_is_said() -> None:
    said = (GOLDEN / "stdout.txt").read_text()
    absent = WORKLOAD.read(recorded(cpu=None), given(WORKLOAD, clients=2))
    assert absent.metrics["server_cpu_us"] is None
    assert "not counted" in absent.absent["server_cpu_us"]
    assert WORKLOAD.read(recorded(), given(WORKLOAD, clients=3)).problem == ("2 of 3 clients made any transaction")
    failing = said.replace("failed transactions: 0", "failed transactions: 4")
    failed = WORKLOAD.read(recorded(said=failing), given(WORKLOAD, clients=2))
    assert failed.problem == "4 transactions failed"
    with pytest.raises(ValueError, match="summary is not as expected"):
        WORKLOAD.read(recorded(said="pgbench: error"), given(WORKLOAD, clients=2))


def test_marks_tell_of_a_late_warm_up_and_a_saturated_client() -> None:
    begin = 1795263458.8035  # one of the two warm-ups ends after it
    reading = WORKLOAD.read(recorded(0.01, begin=begin, client=0.0198), given(WORKLOAD, clients=2))
    warming, saturated = reading.marks
    assert {"warmed_up_before_s", warming, saturated} <= set(reading.of_time)
    assert "still warming up" in warming
    assert "the client was saturated" in saturated


def test_the_scale_comes_from_the_size() -> None:
    for share in (0.75, 1.5, 1.75):
        values = given(WORKLOAD, shared_buffers="1536m", database_share=share)
        assert database_bytes(values) == pytest.approx(share * 1536 * MIB, rel=0.01)
    assert database_bytes(given(WORKLOAD, scale=46)) == pytest.approx(739_540_327, rel=1e-3)  # as measured


def test_the_lead_grows_with_clients_and_size_and_can_be_given() -> None:
    assert (
        lead(given(WORKLOAD, clients=9), 1) > lead(given(WORKLOAD, clients=2), 1) > lead(given(WORKLOAD, clients=2), 2)
    )
    assert lead(given(WORKLOAD, clients=9, database_share=1.75), 1) > lead(given(WORKLOAD, clients=9), 1)
    assert lead(given(WORKLOAD, clients=9, lead="40s"), 1) == 40


def _options(argv: tuple[str, ...]) -> dict[str, str]:
    pairs = [argv[place + 1].partition("=") for place, word in enumerate(argv) if word == "-c"]
    return {name: value for name, _, value in pairs}


def _need_postgres() -> None:
    need(not WORKLOAD.missing(given(WORKLOAD)), "PostgreSQL 15 or later with pgbench (apt install postgresql)")


def test_the_treatment_reaches_the_server_in_its_own_way() -> None:
    _need_postgres()
    values = given(WORKLOAD, shared_buffers="976m", settings="wal_compression=off")
    small, large = (WORKLOAD.procedure(each, values, PLACES).servers[0] for each in (BASE, GIGANTIC))
    base, gigantic = _options(small.argv), _options(large.argv)
    assert base["huge_pages"] == "off"
    assert (gigantic.pop("huge_pages"), gigantic.pop("huge_page_size")) == ("on", "1048576kB")
    assert base == gigantic | {"huge_pages": "off"}
    assert base["listen_addresses"] == ""
    assert base["wal_compression"] == "off"
    assert base["shared_buffers"] == "999424kB"
    # malloc of every backend would take pages of the pool as well
    assert large.environment == {"GLIBC_TUNABLES": ""}
    assert small.named == "shared"


def test_the_clients_stay_for_the_proof() -> None:
    _need_postgres()
    values = given(WORKLOAD, duration="10s", lead="5s", clients=9)
    procedure = WORKLOAD.procedure(BASE, values, PLACES)
    assert procedure.window is not None
    lives = int(next(word for word in procedure.timed.argv if word.startswith("--time=")).removeprefix("--time="))
    assert lives >= procedure.window.lead + procedure.window.length + 2
    frozen = WORKLOAD.procedure(BASE, values, msgspec.structs.replace(PLACES, idle=33.0))
    assert f"--time={lives + 33}" in frozen.timed.argv
    assert frozen.window == procedure.window


def test_the_scripts_are_pgbenchs_own_behind_a_warm_up() -> None:
    _need_postgres()
    pgbench = _postgres.installed().program("pgbench")
    for mode, name in (("tpcb", "tpcb-like"), ("select-only", "select-only")):
        shown = subprocess.run([pgbench, f"--show-script={name}"], capture_output=True, text=True, check=True)
        builtin = [line for line in shown.stderr.splitlines() if line and not line.startswith("--")]
        (script,) = WORKLOAD.procedure(BASE, given(WORKLOAD, mode=mode), PLACES).before
        assert isinstance(script, Write)
        lines = script.text.splitlines()
        assert lines[lines.index("\\else") + 1 : -1] == builtin
        assert lines[0] == "\\if :warmed = 0"


def test_data_differ_by_scale_and_version_alone() -> None:
    _need_postgres()
    one, same, other = (
        WORKLOAD.data(given(WORKLOAD, **each)).key
        for each in ({"clients": 1}, {"clients": 9, "mode": "select-only"}, {"database_share": 1.75})
    )
    assert one == same != other
    assert one["postgres"] == _postgres.installed().version
    analytic = WORKLOAD.data(given(WORKLOAD, mode="analytic", scale=int(one["scale"]))).key
    assert analytic == {**one, "tables": "analytic"}


def test_analytic_queries_take_turns_and_each_client_does_all_of_them_as_often() -> None:
    _need_postgres()
    values = given(WORKLOAD, mode="analytic", clients=2, transactions=11, lead="5s", shared_buffers="64m")
    procedure = WORKLOAD.procedure(BASE, values, PLACES)
    assert procedure.window == Window(5.0, 0.0, quota(10, 2)), "11 over two clients: two rounds of five each"
    assert "--define=query=0" in procedure.timed.argv
    (script,) = procedure.before
    assert isinstance(script, Write)
    turns = [line for line in script.text.splitlines() if ":query =" in line]
    assert turns == [rf"\{'if' if number == 0 else 'elif'} :query = {number}" for number in range(5)]
    chosen = _options(procedure.servers[0].argv)
    assert (chosen["max_parallel_workers_per_gather"], chosen["jit"], chosen["work_mem"]) == ("0", "off", "65536kB")
    own = given(WORKLOAD, mode="analytic", settings="work_mem=1MB")
    assert _options(WORKLOAD.procedure(BASE, own, PLACES).servers[0].argv)["work_mem"] == "1MB"
    short = given(WORKLOAD, mode="select-only", clients=2, transactions=11, lead="5s", shared_buffers="64m")
    assert WORKLOAD.procedure(BASE, short, PLACES).window == Window(5.0, 0.0, quota(6, 2))
    assert WORKLOAD.memory(BASE, values) > WORKLOAD.memory(BASE, short), "hashes and sorts of its own"
    assert WORKLOAD.turns_refused(given(WORKLOAD, mode="analytic")) is None, "nothing grows"


GIB = 1 << 30


def _fake(folder: Path, version: str, *programs: str) -> Path:
    for name in ("postgres", *programs):
        path = folder / name
        path.write_text(f"#!/bin/sh\necho 'postgres (PostgreSQL) {version}'\n")
        path.chmod(0o755)
    return folder


def test_the_newest_is_taken(reached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for major in ("9", "15", "16"):
        (reached / major / "bin").mkdir(parents=True)
        _fake(reached / major / "bin", f"{major}.3 (Debian)")
    monkeypatch.setattr(_postgres, "_USUAL", reached)
    monkeypatch.setenv("PATH", str(reached / "15" / "bin"))
    found = known(_postgres.find())
    assert (found.major, found.version, found.folder) == (16, "16.3", str(reached / "16" / "bin"))
    named = _postgres.find(str(reached / "15" / "bin"))
    assert named is not None and named.version == "15.3"


def test_what_is_lacking_is_named_with_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_postgres, "_USUAL", tmp_path / "none")
    monkeypatch.setenv("PATH", str(tmp_path))
    (absent,) = _postgres.missing()
    assert "postgres: no such program on PATH" in absent.reason
    assert absent.package == "postgresql"
    with pytest.raises(UserError, match="no such program"):
        _postgres.installed()
    (named,) = _postgres.missing("/nowhere")
    assert named.reason == "postgres: no such program in /nowhere"
    assert named.package is None


def test_an_old_server_and_an_absent_program_are_said(reached: Path) -> None:
    old, bare = reached / "old", reached / "bare"
    old.mkdir()
    bare.mkdir()
    _fake(old, "14.9")
    _fake(bare, "17beta1", "initdb", "psql", "pg_isready")
    (early,) = _postgres.missing(str(old))
    assert early.reason == "PostgreSQL 14.9 is too old: 15 or later is needed"
    (absent,) = _postgres.missing(str(bare), ("pgbench",))
    assert absent.reason == f"pgbench: no such program in {bare}"


STUDY = """
format = 1
name = "named"
policies = ["base", "thp"]
[[workload]]
name = "pgbench"
parameters = { postgres = "FOLDER" }
user = "nobody"
"""


def test_a_server_that_a_study_names_is_never_run_by_root(reached: Path) -> None:
    """Planning asks it for its version, and its pg_config for its folders."""
    need_root()
    (reached / "told").mkdir()
    (reached / "told").chmod(0o1777)
    for name in ("postgres", "initdb", "psql", "pg_isready", "pgbench", "pg_config"):
        path = reached / name
        path.write_text(f"#!/bin/sh\nid -u >> {reached}/told/{name}\necho 'postgres (PostgreSQL) 17.1'\n")
        path.chmod(0o755)
    feasibility.make_plan(parse(STUDY.replace("FOLDER", str(reached)), "named.toml"))
    asked = {path.name: set(path.read_text().split()) for path in (reached / "told").iterdir()}
    assert "postgres" in asked
    assert set.union(*asked.values()) == {str(pwd.getpwnam("nobody").pw_uid)}


def test_a_server_that_only_root_may_read_is_said_to_be_one(reached: Path) -> None:
    need_root()
    (reached / "bin").mkdir(mode=0o700)
    (said,) = _postgres.missing(str(_fake(reached / "bin", "17.1")))
    assert said.reason == f"{reached}/bin/postgres does not say that it is PostgreSQL as nobody"


def test_settings_are_the_published_ones_at_the_published_size() -> None:
    published = _postgres.settings(64 * GIB, 32)
    assert published["work_mem"] == f"{1 << 20}kB"
    assert published["max_wal_size"] == f"{100 << 20}kB"
    assert published["checkpoint_timeout"] == "10min"
    assert published["max_connections"] == "100"
    small = _postgres.settings(16 * MIB, 256, "fsync=off 'log_line_prefix=%m [%p]'")
    assert small["min_wal_size"] == f"{32 << 10}kB"  # the server takes no less
    assert small["max_connections"] == "266"
    assert (small["fsync"], small["log_line_prefix"]) == ("off", "%m [%p]")


@pytest.mark.parametrize("given", ["fsync", "=on", "a b=c", "port=1", "shared_buffers=1GB", "'"])
def test_settings_that_cannot_be_are_refused(given: str) -> None:
    with pytest.raises(ValueError, match=r"setting|quotation"):
        _postgres.settings(GIB, 1, given)


def test_the_server_sizes_the_pool() -> None:
    need(not _postgres.missing(), "PostgreSQL 15 or later (apt install postgresql)")
    settings = _postgres.settings(976 * MIB, 9)
    assert _postgres.segment("", settings, GIB) == GIB  # exactly one page: what a small machine grants
    assert 976 * MIB < _postgres.segment("", settings, 2 * MIB) <= GIB
    with pytest.raises(UserError, match="failed"):
        _postgres.segment("", {**settings, "no_such_setting": "1"}, GIB)


def test_root_makes_no_folder_where_an_account_could_put_a_link(reached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_root()
    nobody = pwd.getpwnam("nobody")
    os.chown(reached, nobody.pw_uid, nobody.pw_gid)
    monkeypatch.setenv("TMPDIR", str(reached))
    monkeypatch.setattr("tempfile.tempdir", None)  # it is asked once
    with _postgres._private() as private:
        assert not Path(private).is_relative_to(reached)
        assert (Path(private).stat().st_uid, Path(private).stat().st_mode & 0o777) == (nobody.pw_uid, 0o700)
        assert Path(private).parent.stat().st_uid == 0
    assert not Path(private).exists()
