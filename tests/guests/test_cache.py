"""The cache, made once and whole, and as root refused where another account could change it; and its sandboxes."""

import os
import pwd
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from hugewise import unprivileged
from hugewise.errors import StorageError, UserError
from hugewise.guests import cache
from hugewise.guests.cache import open_sandbox
from tests.requirements import need_root
from tests.wait import has_ended, until


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HUGEWISE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_an_entry_is_made_once_and_everybody_may_read_it(place: Path) -> None:
    made: list[Path] = []

    def make(path: Path) -> None:
        made.append(path)
        path.mkdir(mode=0o700)
        (path / "one").write_text("1")
        (path / "one").chmod(0o600)

    found = cache.cached("images", {"a": 1, "b": [2]}, make)
    assert cache.cached("images", {"b": [2], "a": 1}, make) == found
    assert found == cache.entry_path("images", {"a": 1, "b": [2]})
    assert len(made) == 1
    assert made[0].name.startswith(".")
    assert (found / "one").stat().st_mode & 0o777 == 0o644
    assert [each.stat().st_mode & 0o777 for each in (place, place / "images", found)] == [0o755] * 3


def test_what_fails_leaves_no_entry_and_the_next_one_begins_anew(place: Path) -> None:
    def fail(path: Path) -> None:
        path.mkdir()
        (path / "half").touch()
        raise ValueError("no room")

    with pytest.raises(ValueError, match="no room"):
        cache.cached("kernels", b"key", fail)
    assert not cache.entry_path("kernels", b"key").exists()
    # A process that was killed could not tidy up.
    left = cache.entry_path("kernels", b"key")
    left.with_name(f".{left.name}.new").mkdir()

    def make(path: Path) -> None:
        path.write_bytes(b"whole")

    assert cache.cached("kernels", b"key", make).read_bytes() == b"whole"
    assert sorted(each.name for each in (place / "kernels").iterdir()) == [f".{left.name}.lock", left.name]


def test_a_damaged_file_is_replaced_only_by_a_whole_one(place: Path) -> None:
    damaged = cache.cached("surveys", b"key", lambda path: path.touch())

    def fail(path: Path) -> None:
        path.write_bytes(b"half")
        raise ValueError("no room")

    with pytest.raises(ValueError, match="no room"):
        cache.replace_entry("surveys", b"key", fail)
    assert damaged.read_bytes() == b""

    def make(path: Path) -> None:
        path.write_bytes(b"whole")

    assert cache.replace_entry("surveys", b"key", make) == damaged
    assert damaged.read_bytes() == b"whole"
    assert [each.name for each in (place / "surveys").glob(".*.new")] == []


def test_two_that_want_the_same_wait_for_one(place: Path) -> None:
    begun, go_on, made = threading.Event(), threading.Event(), list[int]()

    def slow(path: Path) -> None:
        begun.set()
        assert go_on.wait(120)
        made.append(1)
        path.write_bytes(b"1")

    def other(path: Path) -> None:
        made.append(2)
        path.write_bytes(b"2")

    first = threading.Thread(target=cache.cached, args=("images", b"key", slow))
    first.start()
    assert begun.wait(120)
    second = threading.Thread(target=cache.cached, args=("images", b"key", other))
    second.start()
    go_on.set()
    first.join(120)
    second.join(120)
    assert made == [1]
    assert cache.entry_path("images", b"key").read_bytes() == b"1"


def test_whose_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HUGEWISE_CACHE", "SUDO_UID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.folder() == tmp_path / "xdg" / "hugewise"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.folder("kernels") == tmp_path / ".cache" / "hugewise" / "kernels"
    monkeypatch.setenv("SUDO_UID", "1000")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: pwd.struct_passwd(("root", "x", uid, 0, "", f"{tmp_path}/r", "")))
    assert cache.folder() == tmp_path / "r" / ".cache" / "hugewise"


def handed_to_nobody(folder: Path) -> Path:
    folder.mkdir(parents=True)
    os.chown(folder, pwd.getpwnam("nobody").pw_uid, -1)
    return folder


@pytest.mark.parametrize(
    ("variable", "below", "cure"),
    [
        ("XDG_CACHE_HOME", "", "unset XDG_CACHE_HOME"),
        ("HUGEWISE_CACHE", "a/b", "unset HUGEWISE_CACHE"),
        ("HOME", "", "HOME"),
    ],
)
def test_root_refuses_a_cache_that_another_account_can_change(
    reached: Path, monkeypatch: pytest.MonkeyPatch, variable: str, below: str, cure: str
) -> None:
    """As `su` keeps the variables of who called it."""
    need_root()
    for name in ("HUGEWISE_CACHE", "XDG_CACHE_HOME", "SUDO_UID"):
        monkeypatch.delenv(name, raising=False)
    home = handed_to_nobody(reached / "home")
    monkeypatch.setenv(variable, str(home / below))
    with pytest.raises(
        UserError, match=f"as root, hugewise does not use the cache {home}.*: {home} .*nobody"
    ) as raised:
        cache.folder("kernels")
    assert cure in str(raised.value.hint)
    assert list(home.iterdir()) == []
    # Nor that of who called sudo, named by them: root's files would be in it.
    monkeypatch.setenv("SUDO_UID", str(pwd.getpwnam("nobody").pw_uid))
    if variable == "HUGEWISE_CACHE":
        with pytest.raises(UserError, match="as root, hugewise does not use the cache"):
            cache.folder()


def test_root_refuses_a_cache_behind_a_link_or_in_a_folder_of_all(
    reached: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_root()
    (reached / "link").symlink_to(handed_to_nobody(reached / "home"))
    monkeypatch.setenv("HUGEWISE_CACHE", str(reached / "link" / "cache"))
    with pytest.raises(UserError, match="as root, hugewise does not use the cache"):
        cache.folder()
    (reached / "all").mkdir()
    (reached / "all").chmod(0o777)
    monkeypatch.setenv("HUGEWISE_CACHE", str(reached / "all" / "cache"))
    with pytest.raises(UserError, match=f"{reached}/all can be written by others"):
        cache.folder()
    (reached / "all").chmod(0o1777)  # as /tmp: nobody can rename what is root's
    assert cache.folder() == reached / "all" / "cache"


def test_an_entry_is_on_disk_before_it_has_its_name(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[str, bool]] = []
    there = place / "kernels"

    def sync(path: Path) -> None:
        synced.append((path.name, any(not each.name.startswith(".") for each in there.iterdir())))

    monkeypatch.setattr(cache, "sync", sync)

    def make(path: Path) -> None:
        path.mkdir()
        (path / "image").write_bytes(b"x")

    found = cache.cached("kernels", b"key", make)
    before = {name for name, named in synced if not named}
    assert before == {"image", f".{found.name}.new"}
    assert [name for name, named in synced if named] == ["kernels"]


def test_a_folder_that_cannot_be_made_says_the_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HUGEWISE_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(StorageError, match="cannot make the cache folder") as raised:
        cache.folder()
    assert "HUGEWISE_CACHE" in str(raised.value.hint)


def test_no_other_account_can_hold_a_lock_of_roots_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache is readable by all, and flock(2) needs no more: root would wait for ever."""
    need_root()
    monkeypatch.setenv("HUGEWISE_CACHE", str(tmp_path / "cache"))
    place = cache.folder()
    (place / ".image.lock").touch(0o644)
    with cache.locked(place / ".image.lock"):
        pass
    found = {path.name: path.stat().st_mode & 0o777 for path in place.iterdir() if path.is_file()}
    assert found == {".image.lock": 0o600}


_PATIENCE_S = 120.0


@pytest.fixture(autouse=True)
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUGEWISE_CACHE", str(tmp_path / "cache"))


def test_what_is_lent_can_be_read_what_is_made_can_be_taken(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("lent")
    (tmp_path / "secret").chmod(0o600)

    def work(say: unprivileged.Say) -> None:
        if root:
            assert not os.access(sandbox.lent / "in", os.W_OK)
            assert not os.access(sandbox.lent, os.W_OK)
        (sandbox.own / "made").write_text((sandbox.lent / "in").read_text() + " and made")
        (sandbox.own / "made").chmod(0o4777)
        say("done")

    root = os.geteuid() == 0
    lines: list[str] = []
    with open_sandbox() as sandbox:
        sandbox.lend(tmp_path / "secret", "in")
        sandbox.do(work, lines.append)
        sandbox.take("made", tmp_path / "taken")
    assert lines == ["done"]
    assert (tmp_path / "taken").read_text() == "lent and made"
    found = (tmp_path / "taken").stat()
    assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (os.geteuid(), 0o644)
    assert not sandbox.path.exists()


def test_under_root_nobody_else_reaches_it() -> None:
    need_root()
    nobody = pwd.getpwnam("nobody")
    with open_sandbox() as sandbox:
        assert sandbox.path.parent == Path("/var/tmp")
        folders = [
            (path.stat().st_uid, stat.S_IMODE(path.stat().st_mode))
            for path in (sandbox.path, sandbox.lent, sandbox.own)
        ]
        assert folders == [(0, 0o710), (0, 0o755), (nobody.pw_uid, 0o700)]
        assert sandbox.path.stat().st_gid == sandbox.group != nobody.pw_gid


def test_a_workload_of_the_same_account_can_neither_enter_it_nor_trace_who_works() -> None:
    need_root()
    with open_sandbox() as sandbox:
        began, goes_on = os.pipe(), os.pipe()

        def work(_: unprivileged.Say) -> None:
            (sandbox.own / "made").write_text("mine")
            os.write(began[1], str(os.getpid()).encode())
            os.read(goes_on[0], 1)

        def intrude(say: unprivileged.Say) -> None:
            pid = int(os.read(began[0], 20))
            for path in (
                sandbox.path / "own",
                sandbox.path / "own/made",
                Path(f"/proc/{pid}/environ"),
                Path(f"/proc/{pid}/fd"),
            ):
                say("reached" if os.access(path, os.R_OK) else "kept out")
            os.write(goes_on[1], b"x")

        lines: list[str] = []
        thread = threading.Thread(
            target=unprivileged.call, args=(intrude, lines.append), kwargs={"keep": (*began, *goes_on)}
        )
        thread.start()
        sandbox.do(work, print, keep=(*began, *goes_on))
        thread.join(_PATIENCE_S)
        sandbox.take("made", Path(os.environ["HUGEWISE_CACHE"] + "-taken"))
    assert lines == ["kept out"] * 4


def test_work_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def work(_: unprivileged.Say) -> None:
        (shop.own / "below/below").mkdir(parents=True)
        (shop.own / "below").chmod(0)
        (tmp_path / "nowhere" / "x").write_text("")

    with pytest.raises(StorageError, match="cannot work in .*/hugewise-made-"), open_sandbox() as shop:
        shop.do(work, print)
    assert not shop.path.exists()


def test_a_folder_that_another_process_tidies_away_before_it_is_locked_is_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Path] = []
    real = tempfile.mkdtemp

    def tidied_once(*args: Any, **named: Any) -> str:
        made.append(Path(real(*args, **named)))
        if len(made) == 1:
            made[0].rmdir()
        return str(made[-1])

    monkeypatch.setattr(tempfile, "mkdtemp", tidied_once)
    with open_sandbox() as sandbox:
        assert len(made) == 2 and sandbox.path == made[1]
    assert not made[1].exists()


def test_what_a_killed_process_left_the_next_one_removes_and_a_living_ones_stays(tmp_path: Path) -> None:
    script = """\
        import os, time
        from hugewise.guests.cache import open_sandbox
        with open_sandbox() as shop:
            def work(say):
                at = shop.own
                for _ in range(150):  # no recursion, however deep
                    at = at / ("d" * 20)
                    at.mkdir()
                (shop.own / "pid").write_text(str(os.getpid()))
                time.sleep(1000)
            print(shop.path, flush=True)
            shop.do(work, print)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        left = Path(running.stdout.readline().strip())
        helper = left / "own/pid"
        until(lambda: helper.exists() and helper.read_text(), "its helper is there")
        pid = int(helper.read_text())
        with open_sandbox():
            assert left.exists()  # its holder lives
        running.send_signal(signal.SIGKILL)
        running.wait()
        until(lambda: has_ended(pid), "its helper has ended with it")
    with open_sandbox() as sandbox:
        assert not left.exists()
        assert sandbox.path.parent == left.parent
