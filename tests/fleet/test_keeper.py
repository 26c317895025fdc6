"""A keeper with a run that is none: it is resumed, ended and killed."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import hugewise
from hugewise.errors import LockedError
from hugewise.files import write_whole
from hugewise.fleet import host_agent, keeper, protocol
from hugewise.fleet.protocol import (
    Assignment,
    AssignmentSeen,
    BeginOrder,
    Done,
    EndOrder,
    FleetQuestion,
    ForgetOrder,
    HostAnswer,
    HostContext,
    HostOrder,
    LookOrder,
    ManifestFound,
    ManifestOrder,
    Refusal,
    package_digest,
)
from hugewise.fleet.spool import (
    FINAL,
    KeeperRecord,
    SpoolEntry,
    identify,
    terminate_keeper,
)
from tests import build
from tests.fleet.fake import THIS
from tests.fleet.hosts import RECORDED
from tests.wait import until

ROOT = Path(__file__).parents[2]
ONE = Assignment("f-1", 1)
QUESTION = FleetQuestion(text=(RECORDED / "study.toml").read_text(encoding="utf-8"))


class Here:
    """A host whose keepers are real, and whose runs are `tests.fleet.fake`."""

    def __init__(self, folder: Path, *acts: dict[str, object]) -> None:
        self.spool = folder / "spool"
        self.spooled = SpoolEntry(self.spool / "f-1/1")
        (self.spool / "f-1").mkdir(parents=True)
        self.spool.chmod(0o700)
        self.acts(*acts)

    def acts(self, *acts: dict[str, object]) -> None:
        """What its runs do from their next call on."""
        (self.spool / "f-1/acts").write_text(json.dumps(acts))
        (self.spool / "f-1/acts").rename(self.spool / "f-1/fake.json")

    def start(self, folder: Path, lock: int) -> None:
        keeper.start_keeper(folder, lock, (sys.executable, "-c", _FROM, *THIS[1:]))

    def ask(self, order: HostOrder) -> HostAnswer:
        answer = host_agent.answer_order(protocol.encode(order), HostContext(self.spool, self.start))
        return protocol.decode_answer(answer)

    def begin(self, restarts: int = 3) -> HostAnswer:
        return self.ask(BeginOrder(assignment=ONE, question=QUESTION, restarts=restarts))

    def seen(self) -> AssignmentSeen:
        answer = self.ask(LookOrder(assignment=ONE))
        assert isinstance(answer, AssignmentSeen), answer
        return answer

    def kept(self) -> KeeperRecord:
        return self.spooled.kept()

    def over(self) -> AssignmentSeen:
        until(lambda: self.kept().state in FINAL and not self.spooled.has_keeper(), "the run is over", seen=self.kept)
        return self.seen()

    def closes(self, blocks: int) -> None:
        until(lambda: self.seen().closed == blocks, f"{blocks} blocks are closed", seen=self.kept)

    def lose_keeper(self, number: int) -> int:
        """Its keeper has ended by this signal: its pid."""
        pid = build.known(self.kept().keeper).pid
        os.kill(pid, number)
        until(lambda: not self.spooled.has_keeper(), "the keeper has ended")
        return pid

    @contextlib.contextmanager
    def keeper_alone(self) -> Iterator[None]:
        """What a keeper in this very process finds begun; its handlers of signals do not stay."""
        self.spooled.path.mkdir()
        self.spooled.results.mkdir()
        order = protocol.encode(BeginOrder(assignment=ONE, question=QUESTION))
        write_whole(self.spooled.path / "begin.json", order)
        handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
        try:
            yield
        finally:
            for each, handler in handlers.items():
                signal.signal(each, handler)

    def calls(self) -> list[str]:
        path = self.spooled.path / "calls.txt"
        return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []


# A keeper begins in /, and the fake one is a module of the tests.
_FROM = f"import os, sys; os.chdir({str(ROOT)!r}); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"


@pytest.fixture(autouse=True)
def found_by_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")


@pytest.fixture(autouse=True)
def reaped() -> Iterator[None]:
    """A keeper is a child of the process that starts it, here of the tests."""
    yield
    while keeper._STARTED:
        keeper._STARTED.pop().wait(60)


def test_a_run_from_its_beginning_to_its_manifest(tmp_path: Path) -> None:
    here = Here(tmp_path, {"end": "done", "blocks": 4})
    assert here.begin() == here.begin() == Done()
    seen = here.over()
    assert (seen.state, seen.closed, seen.restarts) == ("ended", 16, 0)
    assert seen.run == "20261122T125547Z-548a"
    assert "Finished" in seen.words
    assert here.calls() == ["run"]
    answer = here.ask(ManifestOrder(assignment=ONE))
    assert isinstance(answer, ManifestFound)
    assert {file.name for file in answer.files} == {path.name for path in RECORDED.iterdir()}
    assert here.ask(ForgetOrder(assignment=ONE)) == Done()
    assert not here.spooled.path.exists()


def test_a_run_that_was_killed_is_resumed_after_the_host_was_put_back(tmp_path: Path) -> None:
    here = Here(tmp_path, {"end": "kill", "blocks": 1}, {"end": "done", "blocks": 3})
    here.begin()
    seen = here.over()
    assert (seen.state, seen.restarts) == ("ended", 1)
    assert here.calls() == ["run", "resume"]
    assert "nothing to restore" in (here.spooled.path / "said.txt").read_text()


def test_it_is_not_resumed_for_ever(tmp_path: Path) -> None:
    here = Here(tmp_path, {"end": "no space left on device", "status": 1})
    here.begin(restarts=2)
    seen = here.over()
    assert (seen.state, seen.restarts) == ("failed", 2)
    assert "exit status 1" in (seen.reason or "") and "no space left on device" in (seen.reason or "")
    assert here.calls() == ["run", "resume", "resume"]
    assert isinstance(here.ask(ManifestOrder(assignment=ONE)), ManifestFound)  # what it has measured is kept


def test_ending_interrupts_the_run_and_keeps_it(tmp_path: Path) -> None:
    here = Here(tmp_path, {"end": "wait", "blocks": 2})
    here.begin()
    here.closes(2)
    assert here.ask(EndOrder(assignment=ONE)) == Done()
    seen = here.over()
    assert (seen.state, seen.reason) == ("interrupted", protocol.ENDED)
    assert "interrupted" in seen.words
    assert here.calls() == ["run"]
    assert isinstance(here.ask(ManifestOrder(assignment=ONE)), ManifestFound)


def test_what_somebody_interrupts_on_the_host_stays_interrupted(tmp_path: Path) -> None:
    here = Here(tmp_path, {"end": "the host is wanted back", "status": 130})
    here.begin()
    seen = here.over()
    assert (seen.state, seen.reason) == ("interrupted", "interrupted on its host")


def test_a_host_that_goes_down_leaves_its_run_to_be_taken_up(tmp_path: Path) -> None:
    here = Here(tmp_path, {"end": "wait", "blocks": 1}, {"end": "done"})
    here.begin()
    here.closes(1)
    here.lose_keeper(signal.SIGTERM)  # as at shutdown
    assert here.kept().state == "waiting"
    assert here.seen().keeper  # a look takes it up
    assert here.over().state == "ended"
    assert here.calls() == ["run", "resume"]


def test_a_keeper_that_is_killed_takes_its_run_with_it_and_another_goes_on(tmp_path: Path) -> None:
    here = Here(tmp_path, {"end": "wait", "blocks": 1}, {"end": "done"})
    here.begin()
    here.closes(1)
    here.lose_keeper(signal.SIGKILL)
    until(lambda: "interrupted" in (here.spooled.path / "said.txt").read_text(), "it says that it was interrupted")
    assert here.seen().keeper
    assert here.over().state == "ended"
    assert here.calls() == ["run", "resume"]


def test_what_is_kept_of_a_run_is_its_accounts_alone(tmp_path: Path) -> None:
    spooled = SpoolEntry(tmp_path)
    spooled.reserve_space()
    assert spooled.keep(KeeperRecord())
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"state.json": 0o600, "reserve": 0o600}


def test_a_full_disk_does_not_hide_that_it_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spooled = SpoolEntry(tmp_path)
    spooled.reserve_space()

    def write(path: Path, data: bytes, mode: int = 0o644) -> None:
        if (tmp_path / "reserve").exists():
            raise OSError(28, "No space left on device")
        write_whole(path, data, mode)

    monkeypatch.setattr("hugewise.fleet.spool.write_whole", write)
    assert spooled.keep(KeeperRecord(state="failed", reason="no room"))
    assert (spooled.kept().reason, (tmp_path / "reserve").exists()) == ("no room", False)


def test_a_folder_that_is_not_there_fails_and_does_not_go_on_for_ever(tmp_path: Path) -> None:
    here = Here(tmp_path, {"end": "done"})
    question = FleetQuestion(text=QUESTION.text, directory="/nonexistent")
    here.ask(BeginOrder(assignment=ONE, question=question, restarts=1))
    seen = here.over()
    assert (seen.state, seen.restarts) == ("failed", 1)
    assert "/nonexistent" in (seen.reason or "")
    assert here.calls() == []


def test_keepers_that_die_without_a_word_come_to_an_end(tmp_path: Path) -> None:
    here = Here(tmp_path, {"end": "wait", "blocks": 1})
    here.begin(restarts=2)
    killed: set[int] = set()
    for _ in range(3):
        until(lambda: here.kept().state == "running" and bool(kept_by(here.spooled.path)[-1:]), "a keeper has the run")
        assert build.known(here.kept().keeper).pid not in killed
        killed.add(here.lose_keeper(signal.SIGKILL))
        here.seen()
        until(lambda: getattr(here.kept().keeper, "pid", 0) not in killed, "another keeper has the run")
    seen = here.over()
    assert (seen.state, seen.restarts) == ("failed", 2)
    assert "its keeper died without a word, after 2 restarts" in (seen.reason or "")


def test_the_last_state_is_there_when_what_is_shipped_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose manifest takes long, or has no room yet, has not ended for who looks."""
    here = Here(tmp_path, {"end": "done"})
    here.begin()
    here.over()
    (here.spooled.path / "manifest.json").unlink()  # as when the keeper died before it was made
    assert not here.spooled.concluded()
    assert here.seen().keeper
    until(here.spooled.concluded, "the run is concluded", seen=here.kept)
    seen = here.over()
    assert seen.state == "ended"
    monkeypatch.setattr(SpoolEntry, "write_manifest", lambda *_: full())
    spooled, order = here.spooled, here.spooled.order()
    assert order is not None
    spooled.keep(KeeperRecord(state="running"))
    with pytest.raises(OSError, match="No space"):
        keeper.conclude(spooled, order, KeeperRecord(state="ended"))
    assert spooled.kept().state == "running"


def full() -> None:
    raise OSError(28, "No space left on device")


def test_a_process_that_has_become_another_is_not_signalled() -> None:
    """Of the same pid and start: one that runs another file by now, or is of another boot."""
    with subprocess.Popen(["sh", "-c", "read line; exec sleep 600"], stdin=subprocess.PIPE) as running:
        try:
            before = identify(running.pid)
            assert before is not None and before.boot and before.exe
            assert running.stdin is not None
            terminate_keeper(msgspec.structs.replace(before, boot="00000000-0000-0000-0000-000000000000"))
            terminate_keeper(msgspec.structs.replace(before, start=before.start + 1))
            running.stdin.write(b"\n")
            running.stdin.flush()
            until(lambda: Path(f"/proc/{running.pid}/comm").read_text() == "sleep\n", "the shell has become sleep")
            terminate_keeper(before)
            now = identify(running.pid)
            assert now is not None
            terminate_keeper(now)
            assert running.wait(60) == -signal.SIGTERM
        finally:
            running.kill()


def kept_by(folder: Path) -> list[int]:
    """The keeper of an assignment."""
    items = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if f"\0keep\0{folder}\0" in path.read_text():
                items.append(int(path.parent.name))
    return items


def test_a_keeper_says_who_it_is_before_it_looks_whether_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who orders an end writes that down, and then tells the keeper that it finds: neither can pass the other by."""
    here = Here(tmp_path, {"end": "done"})
    known: list[object] = []
    to_end = SpoolEntry.end_ordered

    def looked(spooled: SpoolEntry) -> bool:
        known.append(spooled.kept().keeper)
        spooled.end()  # in this very moment it is ordered
        return to_end(spooled)

    monkeypatch.setattr(SpoolEntry, "end_ordered", looked)
    with here.keeper_alone():
        keeper.Keeper(here.spooled, ("false",)).keep()
    assert known[0] == identify(os.getpid()) is not None
    assert here.kept().state == "interrupted" and here.calls() == []


def test_to_end_what_was_never_begun_fences_it(tmp_path: Path) -> None:
    here = Here(tmp_path, {"end": "done"})
    assert here.ask(EndOrder(assignment=ONE)) == Done()
    refused = here.begin()
    assert isinstance(refused, Refusal) and refused.fenced
    assert here.calls() == []


def test_a_host_that_is_in_use_is_waited_for(tmp_path: Path) -> None:
    held = LockedError(123).message
    here = Here(tmp_path, {"end": held, "status": 2})
    here.begin(restarts=0)
    waits = until(lambda: kept if (kept := here.kept()).state == "waiting" else None, "the run waits", seen=here.kept)
    assert "holds this host (pid 123)" in (build.known(waits).reason or "")
    here.acts({"end": "done"})
    seen = here.over()
    assert (seen.state, seen.restarts) == ("ended", 0)
    for error in (LockedError(None), LockedError(7, account="ann", anyway=True), LockedError(None, account="uid 7")):
        assert keeper.HELD.search(error.message)


def test_a_host_that_stays_in_use_is_given_up(tmp_path: Path) -> None:
    """Anybody there can keep the lock that accounts share: who does is told."""
    here = Here(tmp_path)
    said = LockedError(7, account="ann").message
    held = ("sh", "-c", f"echo x >> {tmp_path}/tries; echo '{said}'; exit 2")
    days = itertools.count(0, 10 * 3600)
    with here.keeper_alone():
        keeper.Keeper(here.spooled, held, while_held=0.0, clock=lambda: float(next(days))).keep()
    kept = here.kept()
    assert kept.state == "failed"
    assert (kept.reason or "").startswith(
        "the host was in use for 24 h 00 min: ann holds the lock of this host (pid 7)"
    )
    assert 2 <= len((tmp_path / "tries").read_text().split()) <= 4


def test_what_cannot_be_done_as_asked_is_not_tried_again(tmp_path: Path) -> None:
    here = Here(tmp_path, {"end": "nothing of old can run here", "status": 2})
    here.begin()
    seen = here.over()
    assert (seen.state, seen.restarts) == ("failed", 0)
    assert "nothing of old can run here" in (seen.reason or "")


def test_forgetting_makes_room_for_the_fence_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Here(tmp_path, {"end": "done"})
    here.begin()
    here.over()

    def write(path: Path, data: bytes, mode: int = 0o644) -> None:
        if (here.spooled.path / "reserve").exists():
            raise OSError(28, "No space left on device")
        write_whole(path, data, mode)

    monkeypatch.setattr("hugewise.fleet.host_agent.write_whole", write)
    assert (here.spooled.path / "reserve").exists()
    assert here.ask(ForgetOrder(assignment=ONE)) == Done()
    assert not here.spooled.path.exists()


# -- fences


def test_a_lower_number_is_refused_and_one_that_is_over_never_begins_again(tmp_path: Path) -> None:
    here = Here(tmp_path, {"end": "done"})
    five = Assignment("f-1", 5)
    assert here.ask(BeginOrder(assignment=five, question=QUESTION)) == Done()
    refused = here.begin()
    assert isinstance(refused, Refusal) and refused.fenced
    until(lambda: SpoolEntry(here.spool / "f-1/5").kept().state == "ended", "the run has ended")
    until(lambda: here.ask(ForgetOrder(assignment=five)) == Done(), "the run is forgotten")
    again = here.ask(BeginOrder(assignment=five, question=QUESTION))
    assert isinstance(again, Refusal) and again.fenced
    assert here.ask(ForgetOrder(assignment=five)) == Done()  # twice is once
    answer = here.ask(LookOrder(assignment=five))
    assert isinstance(answer, AssignmentSeen) and answer.state == "unknown"


def test_another_question_under_the_same_number_is_refused(tmp_path: Path) -> None:
    here = Here(tmp_path, {"end": "done"})
    here.begin()
    other = FleetQuestion(text=QUESTION.text.replace("blocks = 8", "blocks = 9"))
    refused = here.ask(BeginOrder(assignment=ONE, question=other))
    assert isinstance(refused, Refusal) and "another question" in refused.why
    assert here.over().state == "ended"


def test_another_hugewise_than_was_greeted_is_refused(tmp_path: Path) -> None:
    here = Here(tmp_path, {"end": "done"})
    refused = here.ask(BeginOrder(assignment=ONE, question=QUESTION, package="0" * 64))
    assert isinstance(refused, Refusal) and "another hugewise is there by now" in refused.why
    known = package_digest(Path(hugewise.__file__).parent)
    assert here.ask(BeginOrder(assignment=ONE, question=QUESTION, package=known)) == Done()
    assert here.over().state == "ended"


def test_what_is_being_kept_is_not_forgotten(tmp_path: Path) -> None:
    here = Here(tmp_path, {"end": "wait", "blocks": 1})
    here.begin()
    here.closes(1)
    refused = here.ask(ForgetOrder(assignment=ONE))
    assert isinstance(refused, Refusal) and "its keeper lives" in refused.why
    here.ask(EndOrder(assignment=ONE))
    assert here.over().state == "interrupted"
