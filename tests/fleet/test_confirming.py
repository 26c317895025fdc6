"""`hugewise fleet confirm`: what a run on one more host makes of a fleet, and how the verb gets there."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from hugewise.cli.main import cli
from hugewise.errors import UserError
from hugewise.fleet import conduct, confirming
from hugewise.fleet.folder import FleetFolder
from hugewise.fleet.state import FleetState
from hugewise.model.fleet import TransferredVerdict
from tests.build import known
from tests.build.fleets import FAST, SLOW, FleetHostMade, a_fleet, stratum

FLEET = tuple(FleetHostMade(f"fast-{number}", FAST, -0.10 + 0.002 * number) for number in range(6))


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_fleet(tmp_path_factory.mktemp("fleet"), FLEET)


Placing = Callable[[FleetHostMade], list[Any]]


@pytest.fixture
def placing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Placing:
    """Have `conduct.begin` bring the run of this host; what it was asked is in the list."""

    def place(host: FleetHostMade) -> list[Any]:
        asked: list[Any] = []

        def begin(wanted: conduct.Asked, hosts: Any, *_: Any, **__: Any) -> tuple[FleetFolder, FleetState]:
            asked.append((wanted.question, [one.name for one in hosts.host]))
            folder = FleetFolder(a_fleet(tmp_path, [host._replace(name=hosts.host[0].name)]))
            return folder, FleetState.of(folder.records())

        monkeypatch.setattr(conduct, "begin", begin)
        monkeypatch.setattr(confirming, "asked", lambda question, file: None)
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
    code, found = decoded(fleet)
    assert (code, found.state, found.stratum, found.prior_hosts) == (0, "confirmed", "Fast 9", 6)
    assert known(found.prior_low) < known(found.prior_ratio) < known(found.prior_high)
    ends = sorted((known(found.own_ratio), known(found.prior_ratio)))
    assert ends[0] - 0.01 < known(found.ratio) < ends[1] + 0.01
    question, hosts = asked[0]
    assert (question.arms, hosts) == ("thp", ["here"])


def test_it_is_told_in_words(fleet: Path, placing: Placing) -> None:
    placing(FleetHostMade("new", FAST, -0.11))
    code, text = called(fleet)
    assert code == 0
    assert "Does it hold on here?" in text and "Confirmed: thp is better than base on here" in text
    assert "(6 hosts of Fast 9); the next one was to see" in text


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
    placing(FleetHostMade("new", other, -0.11))
    code, found = decoded(fleet)
    assert (code, found.state, found.stratum, found.own_verdict) == (1, "prior", "", "better")
    assert found.prior_ratio is None and "no host of its class was measured" in found.reason


def test_one_run_is_a_prior_too(tmp_path: Path, placing: Placing) -> None:
    path = a_fleet(tmp_path / "one", [FleetHostMade("a", FAST, -0.10)])
    (run,) = (path / "hosts" / "a").iterdir()
    (run / "study.toml").write_text("format = 1\n")
    before = confirming.known_of(run)
    ((prior, next_),) = next(iter(before.by_class.values())).values()
    assert (prior.verdict, prior.hosts, prior.tau, next_) == ("better", 1, None, None)
    assert prior.typical.centre == pytest.approx(-0.1, abs=0.03) and before.question.text == "format = 1\n"


def test_where_nothing_was_decided_nothing_is_begun(tmp_path: Path, placing: Placing) -> None:
    asked = placing(FleetHostMade("new"))
    path = a_fleet(tmp_path / "none", [FleetHostMade(name, FAST, 0.0, sd=0.2) for name in "abc"])
    done = CliRunner().invoke(cli, ["fleet", "confirm", str(path)])
    assert isinstance(done.exception, UserError) and "nothing was decided" in done.exception.message
    assert not asked
    done = CliRunner().invoke(cli, ["fleet", "confirm", str(path), "--host", "there"])
    assert isinstance(done.exception, UserError) and "no inventory" in done.exception.message


def test_the_prior_of_a_fleet_is_its_classes(fleet: Path) -> None:
    before = confirming.known_of(fleet)
    assert before.names == {FAST.key: "Fast 9"}
    ((prior, next_),) = before.by_class[FAST.key].values()
    assert prior.verdict == "better" and prior.hosts == 6
    low, high = known(next_)
    assert low < prior.typical.centre < high and math.isfinite(prior.typical.error)
