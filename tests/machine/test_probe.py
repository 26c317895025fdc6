"""The contract between Python and Rust: what the probe can say is what Python can read."""

import json
import os
import pwd
import subprocess
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from hugewise.errors import ProbeError, UserError
from hugewise.machine import probe
from hugewise.model.metric import COUNTERS
from tests.requirements import need_root


def examples() -> list[probe.Event]:
    done = subprocess.run([probe.find(), "describe", "--examples"], capture_output=True, check=True)
    return list(probe.decode(done.stdout.splitlines(keepends=True)))


def test_every_event_of_the_probe_is_read_and_none_is_unknown_to_it() -> None:
    assert {type(event) for event in examples()} == set(get_args(probe.Event))


def test_no_field_of_what_the_load_generator_says_is_passed_over() -> None:
    done = subprocess.run([probe.find(), "describe", "--examples"], capture_output=True, check=True)
    said = next(line for line in done.stdout.splitlines(keepends=True) if b'"ev":"load"' in line)
    (load,) = probe.decode([said])
    assert json.loads(msgspec.json.encode(load)) == json.loads(said)


def test_both_sides_speak_the_same_version() -> None:
    start = next(event for event in examples() if isinstance(event, probe.Start))
    assert start.v == probe.VERSION


def test_every_counter_of_an_attempt_is_known_to_the_probe() -> None:
    known = probe.ask("counters")
    assert isinstance(known, probe.Available)
    assert {counter.event for counter in COUNTERS} <= known.counters.keys()


def test_a_torn_last_line_ends_the_events() -> None:
    lines = [b'{"ev":"phase","t_ns":1,"name":"timed"}\n', b'{"ev":"pha']
    assert list(probe.decode(lines)) == [probe.Phase(t_ns=1, name="timed")]


def test_unknown_fields_are_ignored_and_unknown_events_refused() -> None:
    assert list(probe.decode([b'{"ev":"phase","t_ns":1,"name":"timed","new":3}\n']))
    with pytest.raises(ProbeError, match="unknown"):
        list(probe.decode([b'{"ev":"later"}\n']))


def test_a_line_that_is_no_json_is_an_error_with_a_cure() -> None:
    with pytest.raises(ProbeError, match="something unknown"):
        list(probe.decode([b"garbage\n"]))


def test_a_probe_that_does_not_end_is_an_error_with_a_cure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o755)
    monkeypatch.setenv("HUGEWISE_PROBE", str(slow))
    monkeypatch.setattr(probe, "_PATIENCE_S", 0.05)
    with pytest.raises(ProbeError, match="has not ended"):
        probe.ask("touch")


def test_a_missing_probe_says_where_it_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUGEWISE_PROBE", "/nonexistent/probe")
    with pytest.raises(ProbeError, match="/nonexistent/probe") as caught:
        probe.find()
    assert caught.value.hint == "build it: make setup"


def test_ask_reports_what_the_probe_said() -> None:
    with pytest.raises(ProbeError, match="nosuch"):
        probe.ask("nosuch")


def test_root_runs_no_probe_that_another_account_can_change(reached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_root()
    monkeypatch.delenv("SUDO_UID", raising=False)
    other = reached / "hugewise-probe"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    monkeypatch.setenv("HUGEWISE_PROBE", str(other))
    assert probe.find() == str(other)
    os.chown(other, pwd.getpwnam("nobody").pw_uid, -1)
    with pytest.raises(UserError, match=f"the probe {other}: {other} belongs to the account"):
        probe.find()
