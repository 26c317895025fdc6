"""What a session does with guests that needs none: they go from session to session, and keep their accelerator."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from hugewise.analysis import calibration as record
from hugewise.errors import RunError
from hugewise.host.setting import Settings
from hugewise.machine import fingerprint
from hugewise.model.guest import Backing
from hugewise.plan.plan import Plan
from hugewise.session import guests as guest_session
from hugewise.session import identity, session
from hugewise.store import runlog
from hugewise.store.runlog import RunFolder
from hugewise.study.load import parse
from hugewise.study.study import Study
from tests.analysis.test_calibration import calibrated
from tests.analysis.test_calibration import record as calibration
from tests.build.hosts import FakeHost
from tests.build.studies import IN_GUESTS
from tests.build.trials import opened
from tests.guests.test_plan_guests import planned


class Guests:
    """`provided.Provided`, as far as a session's records go."""

    counting = False

    def __init__(self, accelerator: str) -> None:
        self.accelerator = accelerator

    def versions(self) -> dict[str, str]:
        return {"accelerator": self.accelerator}

    def identity(self, kernel: str, backing: Backing) -> dict[str, str]:
        return {"accelerator": self.accelerator, "kernel": kernel, "backing": backing.pages}

    def record(self, study: Study) -> Any:
        raise AssertionError("a resumed run has its record of guests already")


def resumed(tmp_path: Path, before: str, now: str) -> session._Session:
    folder = RunFolder.create(tmp_path, "s", study_json=b"{}", study_toml=None, seed=bytes(16))
    first = opened(folder.run, versions={**identity.versions(), "accelerator": before})
    folder.append(first)
    made = session._Session(
        parse(IN_GUESTS, "s.toml"),
        folder,
        bytes(16),
        Plan((), ()),
        first,
        lambda _: None,
        lambda _: None,
        Guests(now),  # type: ignore[arg-type]
    )
    host = FakeHost()
    made.host, made.settings = host, Settings(host, None)
    return made


def test_a_run_is_not_resumed_under_another_accelerator(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="its guests ran under kvm, and would run under tcg now"):
        resumed(tmp_path, "kvm: a guest booted with it", "tcg: no KVM: it took 11 s").record()


def test_under_the_same_one_it_goes_on_and_says_what_changed(tmp_path: Path) -> None:
    made = resumed(tmp_path, "tcg: no KVM: no device", "tcg: no KVM: it took 11 s")
    made.record()
    assert made.number == 2
    noted = [each.text for each in made.folder.records() if isinstance(each, runlog.Noted)]
    assert any("accelerator is tcg: no KVM: it took 11 s" in text for text in noted)


def test_the_next_session_of_a_run_has_the_same_guests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    planned: list[Any] = []

    def hold(self: session._Session) -> bool:
        seen.append(self.guests)
        return len(seen) == 3

    def make_plan(study: Study, host: object = None, guests: object = None) -> Plan:
        planned.append(guests)
        return Plan((), ())

    first = resumed(tmp_path, "tcg: x", "tcg: x")
    monkeypatch.setattr(session._Session, "hold", hold)
    monkeypatch.setattr(session, "make_plan", make_plan)
    session._hold(first)
    assert seen == [first.guests] * 3
    assert planned == [first.guests] * 2


def test_a_calibration_is_one_of_the_guests_that_it_was_made_in(tmp_path: Path) -> None:
    required = parse(IN_GUESTS + "[calibration]\nrequired = true\n", "s.toml")
    made = planned(use=["base", {"name": "again", "from": "base"}])
    (cell,) = made.cells
    host = FakeHost()
    told = {name: guest_session.machine(cell.arm("base"), Guests(name)) for name in ("kvm", "tcg")}  # type: ignore[arg-type]
    key = record.same(cell.workload.name, cell.values, cell.metric.name, told["tcg"])
    facts = fingerprint.fingerprint(host)
    record.save(
        calibration(
            calibrated(key=key),
            made=time.time(),
            host=host.name,
            machine=facts["machine"],
            kernel=facts["kernel"]["release"],
        ),
        tmp_path,
    )
    assert identity.withheld(required, made, tmp_path, host, lambda _: told["tcg"]) == {}
    for other in (told["kvm"], None):
        said = identity.withheld(required, made, tmp_path, host, lambda _, other=other: other)  # type: ignore[misc]
        assert "there is none of this workload on this host" in said[cell.id]
