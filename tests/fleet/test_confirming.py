"""`hugewise fleet confirm`: what a run on one more host makes of a fleet, and how the verb gets there."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from hugewise.cli.main import cli
from hugewise.errors import UserError
from hugewise.fleet import conduct, confirming
from hugewise.fleet.folder import FleetFolder
from hugewise.fleet.inventory import Inventory
from hugewise.fleet.records import FleetState
from hugewise.model.fleet import TransferredVerdict
from hugewise.report.reasons import in_words
from tests.build import known
from tests.build.fleets import FAST, SLOW, FleetHostMade, a_fleet, stratum

ASKED = SimpleNamespace(workload=[SimpleNamespace(called="chase"), SimpleNamespace(called="fault")], cells=())
FLEET = tuple(FleetHostMade(f"fast-{number}", FAST, -0.10 + 0.0015 * number) for number in range(8))


pytestmark = pytest.mark.usefixtures("read_in_process")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_fleet(tmp_path_factory.mktemp("fleet"), FLEET)


Placing = Callable[..., list[Any]]


@pytest.fixture
def placing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Placing:
    """Have `conduct.begin` bring the runs of these hosts; what it was asked is in the list."""

    def place(*hosts: FleetHostMade) -> list[Any]:
        asked: list[Any] = []

        def begin(
            wanted: conduct.AskedStudy, found: Inventory, *_: Any, begun: Callable[[Path], None], **more: Any
        ) -> tuple[FleetFolder | None, FleetState | None]:
            names = [one.name for one in found.host]
            asked.append((wanted.question, names))
            made = [host._replace(name=name) for host, name in zip(hosts, names, strict=True)]
            folder = FleetFolder(a_fleet(tmp_path, made, first=1001))
            state = FleetState.of(folder.records())
            greeted = [each.greeted for each in state.hosts.values() if each.greeted is not None]
            there = [
                SimpleNamespace(
                    host=each.host,
                    stratum=each.stratum,
                    greeting=SimpleNamespace(fingerprint={"machine": each.machine}),
                )
                for each in greeted
            ]
            asked.extend(more["remarks"](there))
            if more["dry_run"]:
                return None, None
            begun(folder.path)
            return folder, state

        monkeypatch.setattr(conduct, "begin", begin)
        monkeypatch.setattr(confirming, "study_of_question", lambda question, file: ASKED)
        return asked

    return place


def called(fleet: Path, *arguments: str) -> tuple[int, str]:
    done = CliRunner(env={"COLUMNS": "100"}).invoke(cli, ["fleet", "confirm", str(fleet), *arguments])
    return done.exit_code, " ".join(done.output.split())


def decoded(fleet: Path) -> tuple[int, TransferredVerdict]:
    done = CliRunner().invoke(cli, ["fleet", "confirm", str(fleet), "--json"])
    (found,) = msgspec.json.decode(done.output, type=list[TransferredVerdict])
    return done.exit_code, found


def test_a_host_like_them_confirms_and_both_together_are_its_effect(fleet: Path, placing: Placing) -> None:
    asked = placing(FleetHostMade("new", FAST, -0.11))
    code, verdicts = decoded(fleet)
    assert (code, verdicts.state, verdicts.stratum, verdicts.prior_hosts) == (0, "confirmed", "Fast 9", 8)
    assert known(verdicts.prior_low) < known(verdicts.prior_ratio) < known(verdicts.prior_high)
    ends = sorted((known(verdicts.own_ratio), known(verdicts.prior_ratio)))
    assert ends[0] - 0.01 < known(verdicts.ratio) < ends[1] + 0.01
    question, hosts = asked[0]
    assert (question.arms, question.only, hosts) == ("thp", "chase", ["here"])  # nothing else had a verdict


def test_it_is_told_in_words(fleet: Path, placing: Placing) -> None:
    placing(FleetHostMade("new", FAST, -0.11))
    code, text = called(fleet)
    assert code == 0
    assert "Does it hold on here?" in text and "Confirmed: thp is better than base on here" in text
    assert "(8 hosts of Fast 9); the next one was to see" in text


def test_a_host_without_the_effect_leaves_a_prior(fleet: Path, placing: Placing) -> None:
    placing(FleetHostMade("new", FAST, 0.0, sd=0.05))
    code, text = called(fleet)
    assert code == 1
    assert "A prior, no claim: thp against base on here" in text
    assert "its effect is another than those of the hosts before" in text


def test_another_size_and_another_direction_are_said_to_be_so(fleet: Path, placing: Placing) -> None:
    placing(FleetHostMade("new", FAST, -0.60))
    assert "of another size than on the hosts before" in called(fleet)[1]
    placing(FleetHostMade("new", FAST, 0.30))
    code, text = called(fleet)
    assert code == 1 and "Contradicted: thp is worse than base on here" in text


@pytest.mark.parametrize("other", [SLOW, stratum("Fast 9", kernel="5.10")])
def test_on_a_host_of_another_class_nothing_transfers(fleet: Path, placing: Placing, other: Any) -> None:
    asked = placing(FleetHostMade("new", other, -0.11))
    code, verdicts = decoded(fleet)
    (told,) = asked[1:]  # before it measures
    differs = "cpu: Fast 9 / Slow 1" if other == SLOW else "kernel: 6.18 / 5.10"
    assert f"here is of a class that was never measured ({differs})" in told
    assert (code, verdicts.state, verdicts.stratum, verdicts.own_verdict) == (1, "prior", "", "better")
    assert verdicts.prior_ratio is None and "no host of its class was measured" in in_words(verdicts.reason)


def test_one_run_is_a_prior_too(tmp_path: Path, placing: Placing) -> None:
    path = a_fleet(tmp_path / "one", [FleetHostMade("a", FAST, -0.10)])
    (run,) = (path / "hosts" / "a").iterdir()
    (run / "study.toml").write_text("format = 1\n")
    before = confirming.prior_results(run)
    ((prior, next_),) = next(iter(before.by_class.values())).values()
    assert (prior.verdict, prior.hosts, prior.tau, next_) == ("better", 1, None, None)
    assert prior.typical.centre == pytest.approx(-0.1, abs=0.03) and before.question.text == "format = 1\n"


INVENTORY = "".join(f'[[host]]\nname = "{name}"\nssh = "{name}"\n' for name in ("fast-0", "new-a", "new-b"))


def test_all_hosts_of_an_inventory_that_have_not_measured(fleet: Path, placing: Placing, tmp_path: Path) -> None:
    """Each for itself: one that confirms and one that does not are an exit status of 1."""
    path = tmp_path / "hosts.toml"
    path.write_text(INVENTORY)
    asked = placing(FleetHostMade("a", FAST, -0.11), FleetHostMade("b", FAST, 0.0, sd=0.05))
    code, text = called(fleet, "--hosts", str(path))
    assert asked[0][1] == ["new-a", "new-b"] and code == 1
    assert "Does it hold on new-a and new-b?" in text
    assert (
        "Confirmed: thp is better than base on new-a" in text and "A prior, no claim: thp against base on new-b" in text
    )
    placing(FleetHostMade("a", FAST, -0.11), FleetHostMade("b", FAST, -0.10))
    assert called(fleet, "--hosts", str(path))[0] == 0
    done = CliRunner().invoke(cli, ["fleet", "confirm", str(fleet), "--hosts", str(path), "--host", "new-c"])
    assert isinstance(done.exception, UserError) and "has no host 'new-c'" in done.exception.message
    assert "new-a" in str(done.exception.hint)
    path.write_text(INVENTORY.partition('[[host]]\nname = "new-a"')[0])
    done = CliRunner().invoke(cli, ["fleet", "confirm", str(fleet), "--hosts", str(path)])
    assert isinstance(done.exception, UserError) and "have measured already" in done.exception.message


def test_a_fleet_that_has_measured_is_held_against_it_without_a_run(
    fleet: Path, placing: Placing, tmp_path: Path
) -> None:
    """After an interrupt and a resume; of a host that is lost it is said, and another question is refused."""
    asked = placing()
    hosts = [FleetHostMade("a", FAST, -0.11), FleetHostMade("b", quarantined="its clock stands still")]
    code, text = called(fleet, "--measured", str(a_fleet(tmp_path / "more", hosts, first=1001)))
    assert not asked and code == 1
    assert "Confirmed: thp is better than base on a" in text
    assert "b: no run came back: its clock stands still" in text
    done = CliRunner().invoke(cli, ["fleet", "confirm", str(fleet), "--measured", str(fleet), "--time", "3m"])
    assert isinstance(done.exception, UserError) and "nothing is run then" in done.exception.message
    other = tmp_path / "other"
    shutil.copytree(fleet, other)
    log = (other / "log.jsonl").read_text()
    (other / "log.jsonl").write_text(log.replace('"question":{"text":"x"', '"question":{"text":"y"'))
    done = CliRunner().invoke(cli, ["fleet", "confirm", str(fleet), "--measured", str(other)])
    assert isinstance(done.exception, UserError) and "was asked another study" in done.exception.message


def test_no_run_confirms_itself(fleet: Path, placing: Placing) -> None:
    """The fleet held against itself: none of its hosts is a new one; and one that measures again is told so before."""
    code, text = called(fleet, "--measured", str(fleet))
    assert code == 1 and "Confirmed" not in text
    assert text.count("it cannot confirm itself") == len(FLEET)
    asked = placing(FleetHostMade("a", FAST, -0.11))
    before = confirming.prior_results(fleet)
    there = [each.greeted for each in FleetState.of(FleetFolder(fleet).records()).hosts.values()]
    greeting = SimpleNamespace(fingerprint={"machine": known(there[0]).machine})
    host = SimpleNamespace(host="again", stratum=FAST, greeting=greeting)
    (told,) = confirming.remarks(before, [host])  # type: ignore[list-item]
    assert "again has a part in what is known: its run is no other host's" in told and not asked


def test_a_dry_run_begins_nothing(fleet: Path, placing: Placing) -> None:
    placing(FleetHostMade("new", FAST, -0.11))
    assert called(fleet, "--dry-run") == (0, "")


def test_where_nothing_was_decided_nothing_is_begun(tmp_path: Path, placing: Placing) -> None:
    asked = placing(FleetHostMade("new"))
    path = a_fleet(tmp_path / "none", [FleetHostMade(name, FAST, 0.0, sd=0.2) for name in "abc"])
    done = CliRunner().invoke(cli, ["fleet", "confirm", str(path)])
    assert isinstance(done.exception, UserError) and "nothing was decided" in done.exception.message
    assert not asked
    done = CliRunner().invoke(cli, ["fleet", "confirm", str(path), "--host", "there"])
    assert isinstance(done.exception, UserError) and "no inventory" in done.exception.message


STUDY = """
format = 1
name = "slept"
policies = ["as-is", { name = "slow", from = "as-is", environment = { NAP = "0.3" } }]
method = "sequential"
confidence = 0.9
budget = { blocks = 60 }

[between]
settle = "0ms"

[[workload]]
name = "command"
timeout = "30s"
parameters = { argv = ["sh", "-c", "sleep ${NAP:-0.01}"] }
"""


@pytest.mark.whole
@pytest.mark.usefixtures("unchanged")
@pytest.mark.soak
def test_the_verdict_of_a_run_is_confirmed_by_another_run_on_this_host(tmp_path: Path) -> None:
    """Nothing played: a run, and its verdict held against a run of a fleet of this machine alone."""
    study, hosts = tmp_path / "slept.toml", tmp_path / "hosts.toml"
    study.write_text(STUDY)
    hosts.write_text(
        f'[fleet]\nengine = "local"\nlook = "0.3s"\ncheck = 0\nspool = "{tmp_path}/spool"\n[[host]]\nname = "me"\n'
    )
    results = ["--results", str(tmp_path / "results")]
    assert CliRunner().invoke(cli, ["run", str(study), *results]).exit_code == 0
    (run,) = (tmp_path / "results" / "slept").iterdir()
    code, text = called(run, "--hosts", str(hosts), *results)
    assert code == 0, text
    assert "Confirmed: slow is worse than as-is on me (command, wall_s)" in text
    assert not [*(tmp_path / "spool").rglob("run.jsonl")]
    (fleet,) = (tmp_path / "results" / "fleets" / "slept").iterdir()
    again = CliRunner().invoke(cli, ["fleet", "confirm", str(run), "--measured", str(fleet), "--json"])
    (found,) = msgspec.json.decode(again.stdout, type=list[TransferredVerdict])
    # Two short runs on a machine that does other things may differ in size, and that is said; never in the verdict.
    assert found.state in ("confirmed", "confirmed, other size")
    assert (found.own_verdict, found.prior_verdict) == ("worse", "worse")
    assert known(found.ratio) > 2


def test_the_prior_of_a_fleet_is_its_classes(fleet: Path) -> None:
    before = confirming.prior_results(fleet)
    assert before.names == {FAST.key: "Fast 9"}
    ((prior, next_),) = before.by_class[FAST.key].values()
    assert prior.verdict == "better" and prior.hosts == 8
    low, high = known(next_)
    assert low < prior.typical.centre < high and math.isfinite(prior.typical.error)


@pytest.mark.parametrize(
    ("asked", "decided", "only"),
    [
        ((), {"tpcb-clients=1"}, ["tpcb"]),
        ((), {"other"}, []),
        (("tpcb-clients=1", "tpcb-clients=9"), {"tpcb-clients=1"}, ["tpcb-clients=1"]),
        (("other-x=1",), {"tpcb-clients=1"}, ["tpcb"]),
        (("tpcb-long-clients=9",), {"tpcb-clients=1", "tpcb-long-clients=9"}, ["tpcb"]),
        ((), {"tpcb-long-clients=9"}, []),
    ],
)
def test_no_more_cells_are_confirmed_than_were_asked_for(
    asked: tuple[str, ...], decided: set[str], only: list[str]
) -> None:
    assert confirming._decided_of("tpcb", ["tpcb", "tpcb-long", "other"], asked, decided) == only
