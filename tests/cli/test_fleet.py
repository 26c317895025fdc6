"""`hugewise fleet`: what is refused before any host is contacted."""

from pathlib import Path
from typing import NoReturn

import pytest

from hugewise.fleet import conduct
from tests.cli.conftest import Call

STUDY = """
format = 1
name = "tiny"
policies = ["base", "thp"]
[[workload]]
name = "chase"
parameters = { bytes = ["1m", "2m"] }
[[workload]]
name = "fault"
"""


@pytest.mark.parametrize("verb", ["run", "doctor"])
def test_a_misspelt_cell_is_refused_before_any_host_is_contacted(
    verb: str, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def contacted(*_: object, **__: object) -> NoReturn:
        raise AssertionError("a host was contacted")

    monkeypatch.setattr(conduct, "begin", contacted)
    monkeypatch.setattr(conduct, "print_examination", contacted)
    monkeypatch.chdir(tmp_path)
    Path("tiny.toml").write_text(STUDY)
    Path("hosts.toml").write_text('[[host]]\nname = "a"\nssh = "a.example"\n')
    asked = ["tiny.toml", "--only", "chase-bytes=3g"]
    before = call("run", *asked, "--dry-run")
    status, out, err = call("fleet", verb, *(["tiny.toml", "--hosts", "hosts.toml", *asked[1:]]))
    assert (status, out, err) == before
    assert (status, out) == (2, "")
    assert "tiny.toml has no cell 'chase-bytes=3g'" in err
    assert "did you mean chase-bytes=2m or chase-bytes=1m?" in err
    status, _, err = call("fleet", verb, "tiny.toml", "--hosts", "hosts.toml", "--only", "chase-zzz,fault")
    assert (status, "cells: chase-bytes=1m, chase-bytes=2m, fault" in err) == (2, True), err
    with pytest.raises(AssertionError, match="a host was contacted"):  # one that is there goes on
        call("fleet", verb, "tiny.toml", "--hosts", "hosts.toml", "--only", "chase-bytes=2m")


def test_cells_of_a_workload_that_only_hosts_have_are_theirs_to_refuse(tmp_path: Path) -> None:
    study = tmp_path / "new.toml"
    study.write_text(STUDY + '[[workload]]\nname = "of-a-newer-one"\nlabel = "newer"\n')
    for only in ("newer-4g", "chase-bytes=1m,newer", "newer"):
        found = conduct.question_of(study, scale=None, only=only, arms=None, time_=None)
        assert found.question.only == only
