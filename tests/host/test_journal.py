import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hugewise.errors import LockedError, SettingError, StorageError, UserError
from hugewise.host import cgroup, memory_state, network, scratch
from hugewise.host.journal import Journal, recover
from hugewise.host.knob import Settings, read, read_knobs
from hugewise.host.ledger import (
    Draining,
    FoldersMade,
    Fragmenting,
    Intent,
    JournalClosed,
    KnobTurn,
    Linked,
    Mounted,
    Scratched,
    Swapped,
)
from hugewise.host.pool import Pools
from hugewise.model.pages import HUGETLB, THP
from tests.build.hosts import MIN_FREE, FakeHost, Killed
from tests.requirements import need_root

ENABLED, M64, DEFRAG = f"{THP}/enabled", f"{THP}/hugepages-64kB/enabled", f"{THP}/defrag"
POOL = f"{HUGETLB}/hugepages-2048kB/nr_hugepages"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "hugewise" / "journal.jsonl"


def die(host: FakeHost, path: Path, at: int | None = None) -> None:
    """A run that turns knobs and fills a pool twice over, and is killed at a write or at its end."""
    journal = Journal.begin(host, path, "the dead run")
    settings = Settings(host, journal)
    host.dies_at = None if at is None else len(host.writes) + at
    try:
        Pools(settings).fill({2 << 20: 100})
        settings.apply({ENABLED: "always", DEFRAG: "never"})
        settings.apply({M64: "always", ENABLED: "never"})
    except Killed:
        pass
    finally:
        host.dies_at = None
        journal.abandon()


@pytest.fixture
def dead(path: Path) -> FakeHost:
    """A host on which a run has died."""
    host = FakeHost()
    die(host, path)
    return host


def test_a_run_that_is_still_alive_is_not_touched(path: Path) -> None:
    host = FakeHost()
    host.alive(os.getpid(), 99)
    die(host, path)
    written = len(host.writes)
    with pytest.raises(LockedError) as caught:
        recover(host, path)
    assert caught.value.pid == os.getpid()
    assert len(host.writes) == written
    host.alive(os.getpid(), 99, state="Z")
    assert recover(host, path).run == "the dead run"


@pytest.mark.parametrize("at", [*range(6), None])
def test_whatever_step_a_run_dies_at_it_is_put_back(path: Path, at: int | None) -> None:
    host = FakeHost()
    before = read_knobs(host)
    die(host, path, at)
    found = recover(host, path)
    assert read_knobs(host) == before
    assert host.read(MIN_FREE) == "30000"
    assert found.run == "the dead run"
    assert found.left == ()
    assert bool(found.put_back) == (at != 0)
    assert recover(host, path).note == "no run is left to be put back"


@pytest.mark.parametrize("at", range(4))
def test_a_recovery_that_is_killed_is_finished_by_the_next(path: Path, at: int) -> None:
    host = FakeHost()
    before = read_knobs(host)
    die(host, path)
    host.dies_at = len(host.writes) + at
    with pytest.raises(Killed):
        recover(host, path)
    host.dies_at = None
    recover(host, path)
    assert read_knobs(host) == before
    assert host.read(MIN_FREE) == "30000"


def test_what_others_turned_meanwhile_is_reported_and_left(path: Path, dead: FakeHost) -> None:
    dead.turn(M64, "madvise")
    dead.turn(POOL, "30")
    found = recover(dead, path)
    assert {(each.path.rsplit("/", 2)[1], each.found) for each in found.left} == {
        ("hugepages-64kB", "madvise"),
        ("hugepages-2048kB", "30"),
    }
    assert read(dead, M64) == "madvise"
    assert read(dead, ENABLED) == "madvise"
    assert read(dead, POOL) == "30"


UNDONE = ("end", "clear", "unmount", "in_use", "remove", "delete", "delete", "remove", "discard", "put_back", "compact")


@pytest.mark.parametrize("refused", [None, "end", "clear", "unmount", "in_use", "remove", "delete", "discard"])
def test_all_that_a_dead_run_made_is_undone_whatever_the_kernel_refuses(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str | None
) -> None:
    """Processes, groups, mounts, swap, interfaces, folders: the journal stays open until all is undone."""
    host, done, refuses = FakeHost(), list[str](), [refused]
    journal = Journal.begin(host, path, "the dead run")
    for record in (
        Fragmenting(7, 8),
        FoldersMade(("/sys/fs/cgroup/hugewise-7",)),
        Mounted("/run/hugewise-7-hugetlb-2097152"),
        Swapped(str(tmp_path / "hugewise-swap-7")),
        Linked(("hw-br-7", "hw-t0-7")),
        Scratched(str(tmp_path / "hugewise-7")),
        Draining("0"),
    ):
        journal.append(record)
    journal.abandon()

    def played(name: str, result: object) -> Callable[..., object]:
        def act(*_: object) -> object:
            done.append(name)
            if name in refuses:
                raise SettingError(f"{name} is refused")
            return result

        return act

    monkeypatch.setattr(cgroup, "is_own", lambda _: True)
    monkeypatch.setattr(cgroup, "clear", played("clear", 2))
    monkeypatch.setattr(network, "remove", played("delete", None))
    monkeypatch.setattr(scratch, "discard", played("discard", None))
    for name, result in (("end", True), ("unmount", None), ("in_use", True), ("remove", None), ("put_back", True)):
        monkeypatch.setattr(memory_state, name, played(name, result))
    monkeypatch.setattr(memory_state, "compact", played("compact", None))
    if refused is not None:
        with pytest.raises(SettingError, match=f"is not wholly put back:\n(?s:.*){refused} is refused"):
            recover(host, path)
        swap_stays = refused == "in_use"
        assert done == [each for at, each in enumerate(UNDONE) if not (swap_stays and at == 4)]
        done.clear()
        refuses.clear()
    found = recover(host, path)
    assert (tuple(done), found.killed) == (UNDONE, 2)
    assert recover(host, path).run is None, "it is closed"


def test_after_a_reboot_it_is_closed_and_not_replayed(path: Path, dead: FakeHost) -> None:
    dead.fixed["/proc/sys/kernel/random/boot_id"] = "another boot"
    written = len(dead.writes)
    assert "rebooted" in (recover(dead, path).note or "")
    assert len(dead.writes) == written
    assert recover(dead, path).run is None


def test_after_a_reboot_what_lies_on_a_disk_is_removed(path: Path, dead: FakeHost, tmp_path: Path) -> None:
    left = tmp_path / "hugewise-4711"
    (left / "data").mkdir(parents=True)
    journal = Journal.reopen(path)
    journal.append(Scratched(str(left)))
    journal.abandon()
    dead.fixed["/proc/sys/kernel/random/boot_id"] = "another boot"
    recover(dead, path)
    assert not left.exists()


def test_an_ordinary_user_is_told_that_root_must_restore(path: Path, dead: FakeHost) -> None:
    dead.root = False
    with pytest.raises(UserError, match="left this host's page settings turned") as caught:
        recover(dead, path)
    assert caught.value.hint == "sudo hugewise restore"


def test_where_the_journal_cannot_be_read_nothing_is_claimed_of_it(path: Path, dead: FakeHost) -> None:
    """Its folder was made under umask 077: `a run was killed and left settings turned`, though nobody could know."""
    need_root()
    path.parent.chmod(0o700)
    os.seteuid(65534)
    try:
        with pytest.raises(UserError, match="only root can tell whether a killed run left") as caught:
            recover(dead, path)
    finally:
        os.seteuid(0)
    assert caught.value.hint == "sudo hugewise restore"


def test_a_torn_last_line_announces_nothing(path: Path) -> None:
    host = FakeHost()
    before = read_knobs(host)
    die(host, path)
    with path.open("ab") as file:
        file.write(b'{"type":"intent","turns":[{"path":"/sys')
    recover(host, path)
    assert read_knobs(host) == before
    assert path.read_bytes().count(b"\n") == len(path.read_bytes().splitlines())


def test_a_damaged_line_is_a_clear_error(path: Path, dead: FakeHost) -> None:
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([lines[0], b"garbage", *lines[2:], b""]))
    with pytest.raises(UserError, match="line 2"):
        recover(dead, path)


def test_a_new_run_does_not_begin_over_an_open_journal(path: Path, dead: FakeHost) -> None:
    with pytest.raises(UserError, match="has not been put back"):
        Journal.begin(dead, path, "another")
    recover(dead, path)
    journal = Journal.begin(dead, path, "another")
    assert path.read_bytes().count(b"\n") == 1  # the closed one is replaced: the file does not grow from run to run
    journal.close()


def test_no_journal_and_one_without_an_owner_keep_no_run_from_beginning(path: Path) -> None:
    host = FakeHost()
    assert recover(host, path).run is None
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    Journal.begin(host, path, "run").close()
    assert recover(host, path).run is None


def test_it_is_written_for_all_to_read_and_for_root_to_change(path: Path) -> None:
    before = os.umask(0o077)
    try:
        Journal.begin(FakeHost(), path, "run").close()
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o644
    assert path.parent.stat().st_mode & 0o777 == 0o755
    assert path.parent.stat().st_mode & 0o022 == 0


@pytest.mark.parametrize("damage", ["file", "folder", "knob", "cgroup"])
def test_a_journal_that_others_could_have_written_is_not_followed(path: Path, damage: str, dead: FakeHost) -> None:
    written = len(dead.writes)
    if damage == "file":
        path.chmod(0o666)
    elif damage == "folder":
        path.parent.chmod(0o777)
        recover(dead, path)
        with pytest.raises(UserError, match="can be written by others"):
            Journal.begin(dead, path, "next")
        return
    else:
        journal = Journal.reopen(path)
        turn = KnobTurn("/etc/passwd", "x", "y")
        journal.append(Intent((turn,)) if damage == "knob" else FoldersMade(("/etc/hugewise-1",)))
        journal.abandon()
    with pytest.raises(UserError, match="cannot be trusted"):
        recover(dead, path)
    assert len(dead.writes) == written


def test_a_full_disk_leaves_no_half_line(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal.begin(FakeHost(), path, "run")
    whole = path.read_bytes()
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:9]))
    with pytest.raises(StorageError, match="No space left"):
        journal.append(JournalClosed("full"))
    monkeypatch.undo()
    assert path.read_bytes() == whole
    journal.close()
    assert path.read_bytes().startswith(whole)


def test_a_journal_that_is_kept_open_is_recovered_later(path: Path) -> None:
    host = FakeHost()
    journal = Journal.begin(host, path, "run")
    settings = Settings(host, journal)
    settings.apply({ENABLED: "always"})
    journal.keep_open()
    journal.close()
    assert recover(host, path).put_back == (f"{ENABLED} = madvise", f"{MIN_FREE} = 30000")


def test_a_refused_value_keeps_the_journal_for_another_try(path: Path, dead: FakeHost) -> None:
    dead.choices[ENABLED] = (("always", "never"), "never")
    with pytest.raises(SettingError, match="the dead run is not wholly put back"):
        recover(dead, path)
    dead.choices[ENABLED] = (("always", "madvise", "never"), "never")
    assert recover(dead, path).put_back == (f"{ENABLED} = madvise", f"{MIN_FREE} = 30000")
