"""PostgreSQL's programs, settings and pool, asked of the real programs where they are."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from hugewise.errors import UserError
from hugewise.session import feasibility
from hugewise.study.load import parse
from hugewise.workloads import _postgres
from tests.build import known
from tests.requirements import need, need_root

MIB, GIB = 1 << 20, 1 << 30


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
