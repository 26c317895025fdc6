"""The contract between Python and Rust: what the probe can say is what Python can read."""

from __future__ import annotations

import subprocess
from typing import get_args

import pytest

from hugewise import probe
from hugewise.errors import ProbeError


def examples() -> list[probe.Event]:
    done = subprocess.run([probe.find(), "describe", "--examples"], capture_output=True, check=True)
    return list(probe.decode(done.stdout.splitlines(keepends=True)))


def test_every_event_of_the_probe_is_read_and_none_is_unknown_to_it() -> None:
    assert {type(event) for event in examples()} == set(get_args(probe.Event))


def test_both_sides_speak_the_same_version() -> None:
    start = next(event for event in examples() if isinstance(event, probe.Start))
    assert start.v == probe.VERSION


def test_a_torn_last_line_ends_the_events() -> None:
    lines = [b'{"ev":"phase","t_ns":1,"name":"timed"}\n', b'{"ev":"pha']
    assert list(probe.decode(lines)) == [probe.Phase(t_ns=1, name="timed")]


def test_unknown_fields_are_ignored_and_unknown_events_refused() -> None:
    assert list(probe.decode([b'{"ev":"phase","t_ns":1,"name":"timed","new":3}\n']))
    with pytest.raises(ProbeError, match="unknown"):
        list(probe.decode([b'{"ev":"later"}\n']))


def test_a_missing_probe_says_where_it_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUGEWISE_PROBE", "/nonexistent/probe")
    with pytest.raises(ProbeError, match="/nonexistent/probe") as caught:
        probe.find()
    assert caught.value.hint == "build it: make setup"


def test_ask_reports_what_the_probe_said() -> None:
    with pytest.raises(ProbeError, match="nosuch"):
        probe.ask("nosuch")
