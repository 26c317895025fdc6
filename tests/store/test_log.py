"""A log that is not what was written is an error that names its line; a kill leaves nothing but a torn end."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest

from hugewise import open_results
from hugewise.analysis import analysis
from hugewise.errors import RunError, StorageError, UserError
from hugewise.model import guest
from hugewise.model.guest import GuestsRecord
from hugewise.model.results import Integrity
from hugewise.report.sentences import records
from hugewise.store import folder as folders
from hugewise.store.folder import RunFolder
from hugewise.store.log import going_on, sealed
from hugewise.store.records import AttemptStored, BlockClosed, BlockOpened, Closed, Noted, Resumed
from hugewise.study.study import stored_digest
from tests.analysis.test_forecast import normal, the_study, write_run
from tests.build.growing import growing
from tests.build.logs import lines, of_before, rewritten, write_lines
from tests.build.trials import attempt, begun
from tests.requirements import need_program, need_root

BLOCKS = 11


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 11 blocks."""
    return write_run(tmp_path_factory.mktemp("whole"), the_study(), normal(0.02, BLOCKS))


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(whole, tmp_path / whole.name))


def of(run: Path, record: str, nth: int = 4) -> int:
    """The place of the nth record of that kind, counted from 0."""
    places = [place for place, line in enumerate(lines(run)) if f'"record":"{record}"'.encode() in line]
    return places[nth]


def test_a_running_hash_is_that_of_the_lines_from_the_seeds_commitment_on(run: Path) -> None:
    records = [json.loads(line) for line in lines(run)]
    head = records[0]["seed_hash"]
    for line, record in zip(lines(run), records, strict=True):
        chain = record["chain"]
        body = line.rstrip(b"\n").replace(f',"chain":"{chain}"'.encode(), b"")
        head = hashlib.sha256(head.encode() + body).hexdigest()
        assert chain == head
    found = analysis.analyze(run).integrity
    assert found is not None
    assert (found.state, found.hash) == ("consistent", head)


def _bare(line: bytes) -> bytes:
    return json.dumps({key: value for key, value in json.loads(line).items() if key != "chain"}).encode() + b"\n"


NO_RECORD, NOT_NEXT = "is not a record", "does not follow from the line before it"
COMPLETE, DISTURBED = b'"state":"complete"', b'"state":"disturbed"'


def harmed(run: Path, damage: str) -> int:
    """Do that to a run; returns the place of the record."""
    place, kept = of(run, "block_closed"), lines(run)
    assert COMPLETE in kept[place]
    write_lines(run, [*kept[: place - 1], *DAMAGES[damage][0](*kept[place - 1 : place + 1]), *kept[place + 1 :]])
    return place


# What is made of the line before the record that ends the fifth block and of that record; in which line, counted from
# the record, it is found; and what is said.
DAMAGES: dict[str, tuple[Callable[[bytes, bytes], list[bytes]], int, str]] = {
    "cut": (lambda before, line: [before, line[: len(line) // 2] + b"\n"], 0, NO_RECORD),
    "cut into the next": (lambda before, line: [before, line[:20]], 0, NO_RECORD),
    "not UTF-8": (lambda before, line: [before, line.replace(b'"record"', b'"rec\xff\xfe"')], 0, NO_RECORD),
    "deep": (lambda before, _: [before, b'{"record":"noted","x":' + b"[" * 100_000 + b"\n"], 0, NO_RECORD),
    "other": (lambda before, _: [before, b'{"record":"nothing that is known"}\n'], 0, NO_RECORD),
    "empty": (lambda before, line: [before, b"\n", line], 0, NO_RECORD),
    "gone": (lambda before, _: [before], 0, NOT_NEXT),
    "twice": (lambda before, line: [before, line, line], 1, NOT_NEXT),
    "moved": (lambda before, line: [line, before], -1, NOT_NEXT),
    "changed": (lambda before, line: [before, line.replace(COMPLETE, DISTURBED)], 0, NOT_NEXT),
    "bare": (lambda before, line: [before, _bare(line)], 0, "has no running hash"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_line_that_is_not_what_was_written_is_an_error_that_names_it(run: Path, damage: str) -> None:
    place = harmed(run, damage)
    _, offset, said = DAMAGES[damage]
    with pytest.raises(RunError, match=rf"run\.jsonl, line {place + 1 + offset}: .*{said}") as caught:
        analysis.analyze(run)
    assert caught.value.hint == "put a copy of it back"


def test_a_torn_last_line_is_normal_wherever_it_is_torn(run: Path) -> None:
    whole = lines(run)
    folder = RunFolder(run)
    complete = len(folder.read().records)
    for length in range(len(whole[-1])):
        write_lines(run, [*whole[:-1], whole[-1][:length]])
        found = RunFolder(run).read()
        assert len(found.records) == complete - (length < len(whole[-1]) - 1)
        assert found.hash == json.loads(lines(run)[len(found.records) - 1])["chain"]


@pytest.mark.parametrize("length", [1, 40, -2, -1])
def test_going_on_cuts_off_what_was_torn_and_continues_the_chain(run: Path, length: int) -> None:
    whole = lines(run)
    write_lines(run, [*whole[:-1], whole[-1][:length]])
    before = RunFolder(run).read()
    again = RunFolder(run)
    again.append(Resumed(t=2.0, session=2, boot_id="b"))
    after = RunFolder(run).read()
    assert after.records[:-1] == before.records
    assert all(line.endswith(b"\n") for line in lines(run))
    assert after.hash == again.read().hash != before.hash


def test_a_full_disk_leaves_no_half_line(tmp_path: Path) -> None:
    need_root()
    need_program("mount", "mount")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96k", "tmpfs", str(disk)], check=True)
    try:
        folder = begun(disk)
        with pytest.raises(StorageError, match="cannot write"):
            for number in range(1, 10_000):
                folder.append(BlockOpened(t=1.0, block=number, cell="c" * 500, session=1, arms=["base"]))
                folder.append(BlockClosed(t=1.0, block=number, state="incomplete"))
        assert lines(folder.path)[-1].endswith(b"\n")
        kept = folder.read()
        assert kept.hash is not None
        folder.close()
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_value_that_was_changed_in_an_attempt_is_found(run: Path) -> None:
    kept = sorted(run.glob("attempts/*/attempt.json"))[3]
    kept.write_bytes(kept.read_bytes().replace(b'"exit_code": 0', b'"exit_code": 1'))
    with pytest.raises(RunError, match=rf"attempts/{kept.parent.name}: attempt\.json is not what was stored"):
        analysis.analyze(run)


def test_a_value_that_was_changed_in_the_gathered_attempts_is_found(run: Path) -> None:
    RunFolder(run).compact()
    assert analysis.analyze(run).integrity is not None
    path = run / "attempts.parquet"
    rows = duckdb.read_parquet(str(path)).project(
        "* replace (replace(record, '\"exit_code\": 0', '\"exit_code\": 1') as record)"
    )
    rows.write_parquet(str(run / "new"))
    (run / "new").replace(path)
    with pytest.raises(RunError, match=r"attempt\.json is not what was stored"):
        analysis.analyze(run)


def test_the_file_of_the_gathered_attempts_is_named_where_it_is_gone(run: Path) -> None:
    folder = RunFolder(run)
    folder.read()
    folder.append(Closed(t=1e9, state="finished", seed=bytes(16).hex()))
    folder.compact()
    (run / "attempts.parquet").unlink()
    with pytest.raises(RunError, match=rf"{run}/attempts\.parquet, which has all attempts of the run, is gone") as told:
        analysis.analyze(run)
    assert told.value.hint is not None and told.value.hint.startswith("put a copy of it back")


def test_a_finished_run_that_lost_its_end_is_not_said_to_be_interrupted(run: Path) -> None:
    folder = RunFolder(run)
    folder.read()
    folder.append(Closed(t=1e9, state="finished", seed=bytes(16).hex()))
    folder.close()
    assert [said for said in records(analysis.analyze(run)) if "lost its last records" in said] == []
    write_lines(run, lines(run)[:-1])
    assert [said for said in records(analysis.analyze(run)) if "lost its last records" in said]


def test_an_attempt_that_was_added_or_taken_away_is_found(run: Path) -> None:
    first, *_ = sorted(run.glob("attempts/*"))
    (run / "attempts" / "b00001-more").mkdir()
    (run / "attempts" / "b00001-more" / "attempt.json").write_bytes((first / "attempt.json").read_bytes())
    with pytest.raises(RunError, match="b00001-more has no record in run.jsonl: it was added"):
        analysis.analyze(run)
    (run / "attempts" / "b00001-more").rename(run / "more")
    first.rename(run / "first")
    with pytest.raises(RunError, match=rf"attempts/{first.name} is gone"):
        analysis.analyze(run)


@pytest.mark.parametrize("name", ["a\0b", "../../seed", "a/b", "", ".", "..", "a\n"])
def test_a_log_that_names_what_is_no_folder_of_an_attempt_is_refused(run: Path, name: str) -> None:
    place = of(run, "stored")

    kept = lines(run)
    record = {key: value for key, value in json.loads(kept[place]).items() if key != "chain"}
    line, _ = sealed(json.dumps(record | {"attempt": name}).encode(), json.loads(kept[place - 1])["chain"])
    write_lines(run, [*kept[:place], line + b"\n"])
    with pytest.raises(RunError, match=rf"run\.jsonl, line {place + 1}: it is not a record"):
        RunFolder(run).read()


def test_guests_json_and_study_json_are_what_the_run_began_with(run: Path) -> None:
    kept = GuestsRecord(arch="arm64", accelerator="tcg", why="", counting=False, baseline="k", kernels=())
    guest.write(run, kept)
    with pytest.raises(RunError, match=r"guests\.json is not what the run began with"):
        analysis.analyze(run)
    rewritten(run)
    assert RunFolder(run).read().guests == kept
    guest.write(run, msgspec.structs.replace(kept, counting=True))
    with pytest.raises(RunError, match=r"guests\.json is not what the run began with"):
        analysis.analyze(run)
    guest.write(run, kept)
    study = run / "study.json"
    began = json.loads(study.read_text())
    for changed in ({"margin": 0.4}, {"file": "/other/study.toml"}):
        study.write_text(json.dumps(began | changed))
        with pytest.raises(RunError, match=r"study\.json was changed since the run began"):
            analysis.analyze(run)


def _no_baseline(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [cell | {"baseline": "nobody"} for cell in cells]


def _two_arms_of_one_name(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [cell | {"arms": [*cell["arms"], cell["arms"][-1]]} for cell in cells]


def _two_cells_of_one_name(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    (cell,) = cells
    others = [cell["arms"][0], cell["arms"][1] | {"name": "other"}]
    return [cell, cell | {"arms": others}]


@pytest.mark.parametrize(
    "change", [_no_baseline, _two_arms_of_one_name, _two_cells_of_one_name], ids=lambda each: each.__name__
)
def test_cells_whose_names_fit_no_other_are_refused(run: Path, change: Callable[..., Any]) -> None:
    rewritten(run, lambda records: [records[0] | {"cells": change(records[0]["cells"])}, *records[1:]])
    with pytest.raises(RunError, match=r"run\.jsonl has no first record: it is not a record \(.*(cell|name)"):
        analysis.analyze(run)


@pytest.mark.parametrize(
    "said",
    [
        {"margin": 7.0},
        {"margin": -1.0},
        {"confidence": 0.0},
        {"confidence": 1.5},
        {"method": "guess"},
        {"end_points": ["mood"]},
        {"budget": {"blocks": -5}},
        {"budget": {"blocks": 0}},
        {"budget": {"blocks": 2, "width": -1.0}},
        {"name": "../../x"},
    ],
    ids=str,
)
def test_a_stored_study_says_nothing_that_a_file_may_not(run: Path, said: dict[str, Any]) -> None:
    path = run / "study.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | said))
    rewritten(run, lambda records: [records[0] | {"digest": stored_digest(path.read_bytes())}, *records[1:]])
    (key,) = said
    with pytest.raises(RunError, match=rf"study\.json: {key}"):
        analysis.analyze(run)


def test_a_run_of_a_study_with_a_covariate_says_that_it_is_judged_without(run: Path) -> None:
    before = analysis.analyze(run)
    path = run / "study.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"covariate": "canary"}))
    rewritten(run, lambda records: [records[0] | {"digest": stored_digest(path.read_bytes())}, *records[1:]])
    after = analysis.analyze(run)
    assert after.cells == before.cells
    assert [line for line in after.disturbances if line not in before.disturbances] == [
        "the study's covariate canary was of an earlier version: it is not taken out any more, and verdicts and"
        " intervals may differ from those of then"
    ]


def test_all_written_anew_is_consistent_and_not_what_was_noted(run: Path) -> None:
    noted = RunFolder(run).read().hash
    assert analysis.analyze(run, expect=noted).integrity == Integrity(state="unaltered", hash=noted)
    rewritten(run, lambda records: [*records[:-1], records[-1] | {"state": "disturbed"}])
    found = analysis.analyze(run).integrity
    assert found is not None
    assert found.state == "consistent"
    with pytest.raises(RunError, match=rf"its last running hash is {found.hash}: it is not the one that was expected"):
        analysis.analyze(run, expect=noted)


def test_a_run_of_before_there_was_a_hash_is_read_and_says_so(run: Path) -> None:
    before = analysis.analyze(run)
    of_before(run)
    found = analysis.analyze(run)
    assert found.integrity == Integrity(state="no running hash", hash=None)
    assert msgspec.structs.replace(found, integrity=None) == msgspec.structs.replace(before, integrity=None)
    with pytest.raises(RunError, match="its last running hash was not kept by its version"):
        analysis.analyze(run, expect="0" * 64)
    for none in ("", "deadbeef", "g" * 64):
        with pytest.raises(UserError, match="not 64 hexadecimal digits"):
            analysis.analyze(run, expect=none)
    folder = RunFolder(run)  # and is gone on with as it was begun
    folder.append(Resumed(t=200.0, session=2, boot_id="b"))
    folder.append(BlockOpened(t=200.0, block=BLOCKS + 1, cell="chase", session=2, arms=["base", "thp"]))
    folder.accept(folder.draft("b12-thp"), attempt("thp", 1.0, block=BLOCKS + 1))
    assert b'"chain"' not in b"".join(lines(run))
    assert len(RunFolder(run).read().attempts) == 2 * BLOCKS + 1


@pytest.mark.parametrize("kept", ["format", "up", "stored", "lost"])
def test_a_run_whose_hashes_were_taken_out_is_none_of_before(run: Path, kept: str) -> None:
    """One thing that only runs with a running hash have is enough to see it."""
    whole = [json.loads(line) for line in lines(run)]
    up, stored = {"up": 5.0}, whole[of(run, "stored")]
    of_before(run)
    records = [json.loads(line) for line in lines(run)]
    if kept == "format":
        records[0] |= {"format": 2}
    elif kept == "up":
        records[3] |= up
    elif kept == "stored":
        records.append(stored)
    else:
        records.insert(2, {"record": "lost", "t": 1.0, "block": 1, "arm": "thp", "reason": "killed"})
    write_lines(run, [json.dumps(record).encode() + b"\n" for record in records])
    with pytest.raises(RunError, match=r"run\.jsonl: its lines have no running hashes, and were written with them"):
        analysis.analyze(run)


def test_what_stands_behind_the_last_newline_is_not_unaltered(run: Path) -> None:
    noted = RunFolder(run).read().hash
    whole = lines(run)
    for more in (b"{", b'{"record":"noted","t":1,"text":"', b"\0" * 100):
        write_lines(run, [*whole, more])
        assert analysis.analyze(run).integrity == Integrity(state="consistent", hash=noted)
        with pytest.raises(RunError, match=r"behind the last newline of run\.jsonl stands what is no record"):
            analysis.analyze(run, expect=noted)


@pytest.mark.parametrize("damage", ["cut", "gone", "twice", "moved", "empty"])
def test_a_damaged_run_of_before_is_refused_too(run: Path, damage: str) -> None:
    of_before(run)
    harmed(run, damage)
    with pytest.raises(RunError, match=r"run\.jsonl, line \d+: "):
        analysis.analyze(run)


def test_older_versions_left_a_torn_line_before_they_went_on(run: Path) -> None:
    of_before(run)
    records = len(RunFolder(run).read().records)
    torn = b'{"record":"block_op\n'
    resumed = msgspec.json.encode(Resumed(t=200.0, session=2, boot_id="b")) + b"\n"
    write_lines(run, [*lines(run), torn, resumed])
    assert len(RunFolder(run).read().records) == records + 1
    write_lines(run, [*lines(run)[:-1], lines(run)[3]])
    with pytest.raises(RunError, match=rf"line {records + 1}: it is not a record"):
        RunFolder(run).read()


MOMENTS = ["record", "rename", "sync"]


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_attempt_is_part_of_the_run_from_its_record_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Killed before it: no attempt. Killed after it, renamed or not: there, once, and so it is when it is gone on."""
    folder = begun(tmp_path)
    folder.append(BlockOpened(t=1.0, block=1, cell="chase", session=1, arms=["base", "thp"]))
    child = os.fork()
    if child == 0:

        def kill(*_: Any, **__: Any) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        made = RunFolder(folder.path)
        draft = made.draft("b00001-0-thp-1")
        if moment == "record":
            append = made.append
            monkeypatch.setattr(made, "append", lambda one: kill() if isinstance(one, AttemptStored) else append(one))
        elif moment == "rename":
            monkeypatch.setattr(Path, "rename", kill)
        else:
            renamed = Path.rename

            def rename(self: Path, target: Path) -> Path:
                monkeypatch.setattr(folders, "sync", kill)
                return renamed(self, target)

            monkeypatch.setattr(Path, "rename", rename)
        made.accept(draft, attempt("thp", 1.0, block=1))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    there = 0 if moment == "record" else 1
    assert len(RunFolder(folder.path).read().attempts) == there
    again = RunFolder(folder.path)
    again.discard_drafts(again.read())
    assert [path.name for path in (folder.path / "attempts").iterdir()] == ["b00001-0-thp-1"] * there
    again.append(BlockClosed(t=2.0, block=1, state="incomplete"))
    again.append(Closed(t=2.0, state="finished", seed=""))
    again.compact()
    assert len(again.read().attempts) == there
    assert again.read().hash is not None


def test_an_attempt_that_is_renamed_while_it_is_read_is_there_once(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(run)
    listed = folder.attempt_files()
    more = folder.append(BlockOpened(t=200.0, block=BLOCKS + 1, cell="chase", session=1, arms=["base", "thp"]))
    folder.accept(folder.draft("b12-thp"), attempt("thp", 1.0, block=more.block))
    monkeypatch.setattr(folder, "attempt_files", lambda: listed)  # as it was a moment ago
    assert len(folder.read().attempts) == len(listed) + 1


@pytest.fixture
def going_run(tmp_path: Path) -> Path:
    growing(tmp_path / "run")
    return tmp_path / "run"


def test_who_adds_to_a_run_has_it_until_the_folder_is_closed(going_run: Path) -> None:
    folder = RunFolder(going_run)
    assert (going_on(going_run), open_results(going_run).state) == (False, "interrupted")
    folder.append(Noted(t=1.0, text="here"))
    folder.append(Noted(t=2.0, text="still here"))
    assert (going_on(going_run), open_results(going_run).state) == (True, "running")
    folder.close()
    assert (going_on(going_run), open_results(going_run).state) == (False, "interrupted")
    folder.append(Noted(t=3.0, text="a new session"))
    assert going_on(going_run)
    del folder  # whoever forgets to close it
    assert not going_on(going_run)


def test_of_a_process_that_was_killed_the_kernel_takes_it_back(going_run: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from hugewise.store.folder import RunFolder;"
        "from hugewise.store.records import Noted; folder = RunFolder(Path(sys.argv[1]));"
        "folder.append(Noted(t=1.0, text='here')); print(flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(going_run)], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline()
            assert going_on(going_run)
        finally:
            process.send_signal(signal.SIGKILL)
    assert not going_on(going_run)


def test_what_is_no_log_goes_on_nowhere(tmp_path: Path) -> None:
    assert not going_on(tmp_path)
    os.mkfifo(tmp_path / "run.jsonl")  # which nobody waits for
    assert not going_on(tmp_path)
    (tmp_path / "run.jsonl").unlink()
    (tmp_path / "run.jsonl").symlink_to("/proc/self/status")
    assert not going_on(tmp_path)
