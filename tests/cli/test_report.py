"""Reports of a finished run, and of one that was damaged."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from hugewise.audit import systemd
from hugewise.audit.root import Root
from hugewise.cli.request import start_of
from hugewise.errors import UserError
from hugewise.host.local_host import LocalHost
from hugewise.host.lock import boot_id
from tests.build.logs import lines, of_before, rewritten, write_lines
from tests.cli.conftest import HUGEWISE, Call, tiny
from tests.host.test_lock import NOBODY, as_nobody, bound
from tests.requirements import need, need_root


def test_a_report_can_be_made_again_and_is_the_same(call: Call, copy: Path) -> None:
    written = {path.name: path.read_bytes() for path in copy.iterdir() if path.suffix == ".csv"}
    first = call("report", copy)
    assert first[0] == 0
    assert first == call("report", copy)
    assert len(written) == 2
    assert {name: (copy / name).read_bytes() for name in written} == written


def test_verdicts_are_shown_where_the_report_cannot_be_written(call: Call, copy: Path) -> None:
    shutil.rmtree(copy / "figures")
    (copy / "figures").write_text("in the way")
    status, out, err = call("report", copy)
    assert status == 1
    assert "1 comparison decided in " in out
    assert "Report: " not in out
    assert "the report cannot be written" in err


def test_root_is_shown_the_verdicts_of_another_accounts_run(call: Call, copy: Path) -> None:
    need_root()
    os.chown(copy, NOBODY, NOBODY)
    before = (copy / "report.html").stat().st_mtime_ns
    status, out, err = call("report", copy)
    assert status == 2
    assert "1 comparison decided in " in out
    assert "Report: " not in out
    assert f"the report is not written to {copy}" in flat(err)
    assert f"belongs to the account {NOBODY}" in flat(err)
    assert (copy / "report.html").stat().st_mtime_ns == before


def test_a_terminal_of_ascii_is_told_as_much_as_it_can_show(finished: Path) -> None:
    plain = {**os.environ, "PYTHONIOENCODING": "ascii", "LANG": "C", "COLUMNS": "80"}
    for verb in (
        ["report", str(finished)],
        ["combine", str(finished), str(finished)],
        ["list", "policies"],
        ["doctor"],
    ):
        done = subprocess.run([*HUGEWISE, *verb], capture_output=True, env=plain, check=False, timeout=120)
        assert b"Traceback" not in done.stderr + done.stdout, verb
        assert (done.stdout + done.stderr).isascii()
        assert verb[0] != "report" or (done.returncode == 0 and b" comparison decided in " in done.stdout)


def test_a_torn_last_line_is_passed_over(call: Call, copy: Path) -> None:
    lines = (copy / "run.jsonl").read_bytes().splitlines(keepends=True)
    (copy / "run.jsonl").write_bytes(b"".join(lines[:-1]) + lines[-1][:20])
    status, out, _ = call("report", copy)
    assert status == 0
    assert "(interrupted)" in out.splitlines()[0]
    assert "Interrupted: 2 blocks complete" in (copy / "report.md").read_text(encoding="utf-8")


def flat(text: str) -> str:
    """Without line breaks and what a terminal indents."""
    return " ".join(text.split())


def test_a_damaged_record_is_refused(call: Call, copy: Path) -> None:
    kept = lines(copy)
    place = next(number for number, line in enumerate(kept) if b'"block_closed"' in line)
    write_lines(copy, [*kept[:place], kept[place][:30] + b"\n", *kept[place + 1 :]])
    for verb in ("report", "resume"):
        status, out, err = call(verb, copy)
        assert (status, out) == (2, "")
        assert f"run.jsonl, line {place + 1}: it is not a record" in err
        assert "cure: put a copy of it back" in err


def test_the_last_hash_is_printed_when_a_run_ends_and_can_be_held_against_it(
    call: Call, finished: Path, copy: Path
) -> None:
    noted = json.loads(lines(copy)[-1])["chain"]
    said = f"Last hash: {noted}"
    assert said in (finished.parents[2] / "shown.txt").read_text(encoding="utf-8").splitlines()
    status, out, _ = call("report", copy)
    assert said in out.splitlines()
    whole = f"The records are consistent; the last hash is {noted}."
    assert whole in (copy / "report.md").read_text(encoding="utf-8")
    status, out, _ = call("report", "--expect", noted, copy)
    assert status == 0
    assert f"The records are unaltered: the last hash is the expected {noted}." in flat(out)
    rewritten(copy, lambda records: [records[0] | {"study": "another"}, *records[1:]])
    status, out, err = call("report", "--expect", noted, copy)
    assert (status, out) == (2, "")
    assert "it is not the one that was expected" in err
    out = call("report", copy)[1]
    assert "Last hash: " in out and noted not in out


def test_a_run_of_before_there_was_a_running_hash_says_so(call: Call, copy: Path) -> None:
    of_before(copy)
    status, out, _ = call("report", copy)
    assert status == 0
    assert "the hugewise that wrote them stored nothing to check them by" in flat(out)
    status, _, err = call("report", "--expect", "ab" * 32, copy)
    assert status == 2
    assert "was not kept by its version" in err


@pytest.mark.usefixtures("unchanged")
def test_root_goes_on_beside_an_accounts_socket_only_when_it_says_so(call: Call, tmp_path: Path) -> None:
    need_root()
    study, name = tiny(tmp_path), boot_id(LocalHost())
    with as_nobody(lambda: bound(name, queue=16)) as pid:
        status, out, err = call("run", study, "--results", tmp_path / "r")
        assert (status, out) == (2, "")
        assert f"nobody holds the lock of this host (pid {pid})" in err
        cure = f"wait for it (run and advise: --wait), or end it with: kill {pid}, or go on beside it with: --anyway"
        assert f"cure: {cure}" in flat(err)
        status, out, _ = call("run", study, "--results", tmp_path / "r", "--anyway")
    assert status == 0
    said = f"session 1: root went on (--anyway) beside nobody (pid {pid}), who has the lock that accounts share"
    assert said in flat(out)
    run = next(path for path in (tmp_path / "r" / "tiny").iterdir() if (path / "run.jsonl").exists())
    for form in ("report.md", "report.html", "report.json"):
        assert said in (run / form).read_text(encoding="utf-8").replace("\\", "")


def test_a_service_of_this_host_is_found_by_its_name() -> None:
    names = [name for name in systemd.service_files(Root()) if "@" not in name]
    need(bool(names), "services of systemd")
    found = next(one for name in names if (one := start_of(name.removesuffix(".service"))) is not None and one.starts)
    assert found.name in names
    place, text = found.starts[0]
    path, _, line = place.rpartition(":")
    assert text.split()[0] in Root().read(path).split("\n")[int(line) - 1]


def test_a_service_that_is_not_there_is_none() -> None:
    assert start_of("nobody-has-this") is None
    with pytest.raises(UserError, match="not the name of a unit"):
        start_of("../x")
