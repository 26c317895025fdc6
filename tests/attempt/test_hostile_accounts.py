"""What a recipe or a workload leaves in its folders, as an account of its own, and what root does there afterwards.

Each test is an attack that went through before root worked below descriptors. Of the races each ran for seconds.
"""

from __future__ import annotations

import os
import pwd
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from hugewise.attempt.service import prepared
from hugewise.beneath import DirFd
from hugewise.errors import StorageError, UserError
from hugewise.host.local_machine import LocalMachine
from hugewise.host.scratch import Scratch, discard
from hugewise.machine import machine, probe
from hugewise.machine.machine import Contained
from hugewise.model.procedure import Act, Data, Places, Step, Write
from hugewise.report.write import write
from hugewise.store import dataset
from tests.build.results import example
from tests.build.trials import attempt, begun
from tests.requirements import need, need_root

NOBODY = 65534
SENTENCE = "of root alone"


class Place:
    """A session's folder, a results folder and a secret, all of root's, where `nobody` can be."""

    def __init__(self, top: Path) -> None:
        self.results, self.secret = top / "results", top / "secret"
        self.results.mkdir()
        self.secret.write_text(SENTENCE)
        self.secret.chmod(0o600)
        who = pwd.getpwuid(NOBODY)
        self.account = who
        self.scratch = Scratch.open(top, who.pw_uid, who.pw_gid, lambda _: None)

    def make(self, recipe: Callable[[Places], Iterable[Act]]) -> dataset.Kept:
        """Play the recipe as `nobody`, and keep what it made."""
        data = Data(name="made", key={}, recipe=recipe)

        class Making:
            ports = 0

        made: Any = Making()
        return prepared(
            made, data, LocalMachine(), self.results, self.scratch, self.account, lambda _: Contained(), lambda _: None
        )

    def untouched(self) -> None:
        """The secret is root's, and nowhere else."""
        found = self.secret.stat()
        assert (self.secret.read_text(), found.st_uid, stat.S_IMODE(found.st_mode)) == (SENTENCE, 0, 0o600)
        for path in self.results.rglob("*"):
            if path.is_file() and not path.is_symlink():
                assert SENTENCE not in path.read_bytes().decode(errors="replace"), f"{path} holds the secret"


@pytest.fixture
def place() -> Iterator[Place]:
    need_root()
    top = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="hostile-"))
    top.chmod(0o755)
    yield Place(top)
    discard(str(top))


def shell(script: str, *words: str) -> Callable[[Places], Iterable[Act]]:
    return lambda places: (Step(name="configure", argv=("/bin/sh", "-ec", script, "sh", *words), cwd=places.data),)


def special(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if not path.is_symlink() and path.lstat().st_mode & 0o7000]


def test_a_recipe_leaves_no_setuid_file(place: Place) -> None:
    """Root copied what the account had made, and restored the whole mode: euid 0 for whoever ran it."""
    kept = place.make(shell("cp /usr/bin/id id; chmod 6755 id; mkdir d; chmod 3777 d"))
    assert stat.S_IMODE((kept.tree / "id").stat().st_mode) == 0o755
    laid = dataset.lay_out(kept, place.scratch)
    assert special(place.results) + special(place.scratch.path) == []
    for path in (laid, laid / "id", laid / "d"):
        assert path.stat().st_uid == NOBODY
    assert stat.S_IMODE((laid / "d").stat().st_mode) == 0o777


def test_a_write_of_a_recipe_follows_no_link(place: Place) -> None:
    """`ln -s VICTIM ../data/warm.c`: root truncated the victim, and gave it to the account."""

    def recipe(places: Places) -> Iterable[Act]:
        yield from shell('ln -s "$1" warm.c', str(place.secret))(places)
        yield Write("warm.c", "int main(void) { return 0; }\n")

    kept = place.make(recipe)
    place.untouched()
    assert (kept.tree / "warm.c").read_text().startswith("int main")


def test_nor_one_in_the_middle_of_its_path(place: Place) -> None:
    victim = place.secret.parent / "victim"
    victim.mkdir(mode=0o700)

    def recipe(places: Places) -> Iterable[Act]:
        yield from shell('ln -s "$1" sub', str(victim))(places)
        yield Write("sub/file", "theirs")

    with pytest.raises(StorageError, match=r"cannot write .*/data/sub/file"):
        place.make(recipe)
    assert (list(victim.iterdir()), victim.stat().st_uid) == ([], 0)


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("ln -s $1 f", None),  # a link is kept as a link
        ("mkfifo f; mkfifo g", None),  # a pipe is left out, and never waited for
        ("truncate -s 8E f || truncate -s 4T f", "No space left"),
        ("i=0; while [ $i -lt 300 ]; do mkdir d; cd d; i=$((i+1)); done", "folders in folders"),
    ],
)
def test_what_is_kept_is_files_of_the_account(place: Place, script: str, told: str | None) -> None:
    if told is None:
        kept = place.make(shell(script, str(place.secret)))
        assert dataset.lay_out(kept, place.scratch).is_dir()
    else:
        with pytest.raises(StorageError, match=told):
            place.make(shell(script, str(place.secret)))
    place.untouched()


def test_a_hard_link_to_a_file_of_roots_is_not_kept(place: Place) -> None:
    """Where fs.protected_hardlinks is off an account makes it by itself."""
    data = place.scratch.folder("data")
    (data / "own").touch()
    os.chown(data / "own", NOBODY, NOBODY)
    os.link(place.secret, data / "theirs")
    with pytest.raises(StorageError, match="data/theirs is not touched: it belongs to the account 0, not to 65534"):
        dataset.keep_dataset(place.results, Data(name="made", key={}, recipe=lambda _: ()), data)
    place.untouched()


@contextmanager
def racing(script: str, *words: str | Path) -> Iterator[None]:
    """A program of nobody's that goes on until the end."""
    code = "import os, sys\nos.setgroups([]); os.setgid(65534); os.setuid(65534)\n" + script
    command = [sys.executable, "-S", "-c", code, *map(str, words)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.PIPE) as racer:
        assert racer.stdout is not None
        assert racer.stdout.readline() == b"ready\n"
        try:
            yield
        finally:
            racer.kill()


# It swaps a file and a folder of its own for links to what root alone may read, as fast as it can.
SWAPPING = """
top, secret, folder = sys.argv[1:]
print("ready", flush=True)
while True:
    for name, target in (("f", secret), ("d", folder)):
        here, aside = f"{top}/{name}", f"{top}/real-{name}"
        try:
            os.rename(here, aside); os.symlink(target, here); os.unlink(here); os.rename(aside, here)
        except OSError:
            pass
"""


@pytest.mark.parametrize("seconds", [4])
def test_what_is_swapped_while_it_is_kept_never_leads_root_elsewhere(place: Place, seconds: float) -> None:
    """90 of 4,791 copies held the secret."""
    data = place.scratch.folder("data")
    private = place.secret.parent / "private"
    private.mkdir(mode=0o700)
    (private / "inner").write_text(SENTENCE)
    (data / "d").mkdir()
    for path in (data / "f", data / "d/inner"):
        path.write_text("theirs")
    for path in (data / "f", data / "d", data / "d/inner"):
        os.chown(path, NOBODY, NOBODY)
    tried = kept = 0
    with racing(SWAPPING, data, place.secret, private):
        end = time.monotonic() + seconds
        while (now := time.monotonic()) < end or ((tried <= 20 or not kept) and now < end + 120):
            tried += 1
            try:
                found = dataset.keep_dataset(place.results, Data(name="made", key={}, recipe=lambda _: ()), data)
            except StorageError:
                continue
            kept += 1
            for name in ("f", "d/inner", "real-f", "real-d/inner"):
                path = found.tree / name
                if not any(each.is_symlink() for each in (path, path.parent)) and path.exists():
                    assert path.read_text() == "theirs"
    assert tried > 20
    assert kept > 0, "some are kept, else nothing was tried"


# It puts names into a folder that is being laid out, as soon as it may enter it.
ENTERING = """
top = sys.argv[1]
print("ready", flush=True)
number = 0
while True:
    number += 1
    for where in (top, top + "/d", top + "/d/e"):
        try:
            os.symlink("/etc/passwd", f"{where}/0")
            os.mkdir(f"{where}/planted")
        except OSError:
            pass
"""


def test_nothing_is_put_into_data_before_they_are_whole(place: Place) -> None:
    """In 8 of 20 layouts there were names of the account's choosing in a folder that was still root's."""
    many = "mkdir -p d/e; i=0; while [ $i -lt 100 ]; do echo > d/$i; echo > d/e/$i; i=$((i+1)); done"
    kept = place.make(shell(many))
    before = sorted(str(path.relative_to(kept.tree)) for path in kept.tree.rglob("*"))
    with racing(ENTERING, place.scratch.path / "data"):
        for _ in range(20):
            entered: list[bool] = []

            def checked(target: DirFd, entered: list[bool] = entered) -> None:
                dataset._fill(target, kept, place.scratch)
                found = sorted(str(path.relative_to(target.path)) for path in target.path.rglob("*"))
                entered.append(found != before)

            laid = place.scratch.folder("data", checked)
            assert entered == [False]
            assert all(path.lstat().st_uid in (NOBODY, 0) for path in laid.rglob("*"))


def test_a_removal_never_leads_elsewhere(place: Place) -> None:
    """A folder is swapped for a link while root removes what is in it."""
    victim = place.secret.parent / "victim"
    (victim / "d").mkdir(parents=True)
    (victim / "d/kept").touch()

    def filled(run: DirFd) -> None:
        run.put("f", b"", uid=NOBODY, gid=NOBODY)
        with run.make("d") as below:
            for number in range(20):
                below.put(str(number), b"", uid=NOBODY, gid=NOBODY)
            below.hand_over(NOBODY, NOBODY)

    with racing(SWAPPING, place.scratch.path / "run", place.secret, victim / "d"):
        end = time.monotonic() + 2
        while time.monotonic() < end:
            place.scratch.folder("run", filled)
    place.scratch.clear()
    assert (victim / "d/kept").exists()
    place.untouched()


def test_a_name_that_somebody_else_took_keeps_no_session_from_its_folder(place: Place) -> None:
    """Any account can make /dev/shm/hugewise-PID for every PID there will be."""
    top = place.secret.parent / "shared"
    top.mkdir()
    top.chmod(0o1777)
    taken = top / f"hugewise-{os.getpid()}"
    taken.mkdir()
    (taken / "theirs").touch()
    os.chown(taken, NOBODY, NOBODY)
    noted: list[str] = []
    made = Scratch.open(top, NOBODY, NOBODY, noted.append)
    assert made.path.name.startswith(f"{taken.name}-")
    assert noted == [str(taken), str(made.path)], "each is journalled before it is made"
    assert made.path.stat().st_uid == 0
    assert (taken / "theirs").exists()
    again = Scratch.open(top, NOBODY, NOBODY, noted.append)
    assert not made.path.exists()
    assert again.path.exists()


@pytest.fixture
def home(place: Place, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of `nobody`, with a folder of root's in it."""
    monkeypatch.delenv("SUDO_UID", raising=False)
    path = place.secret.parent / "home"
    (path / "results").mkdir(parents=True)
    os.chown(path, NOBODY, NOBODY)
    return path


@pytest.mark.parametrize("below", ["results", "not/there/yet", "link"])
def test_root_keeps_no_results_where_another_account_decides(home: Path, below: str) -> None:
    """By a rename in its home an account would lead root's writes elsewhere. Nothing is made there; exit status 2."""
    if below == "link":
        below = "../link"
        (home.parent / "link").symlink_to("home/results")
    before = sorted(home.rglob("*"))
    command = "from hugewise.cli.main import main; main()"
    words = ["run", "--policy", "base,thp", "--results", str(home / below), "--blocks", "2", "--", "/bin/true"]
    done = subprocess.run([sys.executable, "-c", command, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert f"{home} belongs to the account {NOBODY}, and could lead root elsewhere" in done.stderr
    assert sorted(home.rglob("*")) == before


def test_nor_its_storage(home: Path) -> None:
    noted: list[str] = []
    with pytest.raises(UserError, match=f"storage = '{home}': {home} belongs to the account {NOBODY}"):
        Scratch.open(home, NOBODY, NOBODY, noted.append)
    assert noted == []


def test_nor_its_report(home: Path) -> None:
    with pytest.raises(UserError, match=f"{home} belongs to the account {NOBODY}"):
        write(example(), home / "results")
    assert list((home / "results").iterdir()) == []


def test_who_calls_root_through_sudo_may_use_their_own_folders(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_UID", str(NOBODY))
    assert write(example(), home / "results")["html"].is_file()


def test_who_called_sudo_and_renames_the_results_leads_root_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The workload is of the account that owns the folders above: it renamed `results` and put links in its place."""
    need_root()
    monkeypatch.setenv("SUDO_UID", str(NOBODY))
    monkeypatch.setenv("SUDO_GID", str(NOBODY))
    home, roots = (Path(tempfile.mkdtemp(dir="/dev/shm", prefix="hostile-")) for _ in range(2))
    try:
        os.chown(home, NOBODY, NOBODY)
        names = ("stdout", "stderr", "spec.json", "events", "probe-stderr", "attempt.json", "run.jsonl", "seed")
        with closing(begun(home / "results")) as folder:
            draft = folder.draft("b00001-1-base-1")
            there = folder.path / "attempts" / draft.name
            links = "; ".join(f"ln -s {roots}/{name} {there}/{name}" for name in names)
            links += f"; ln -s {roots}/run.jsonl {folder.path}/run.jsonl"
            script = f"cd {home}; mv results old; mkdir -p {there}; {links}"
            unprivileged = ("setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups", "sh", "-ec")
            subprocess.run([*unprivileged, script], check=True)
            stdout, stderr = str(draft / "stdout"), str(draft / "stderr")
            argv, env = ("/bin/echo", "theirs"), {"PATH": "/bin"}
            spec = probe.Spec(argv=argv, env=env, uid=NOBODY, gid=NOBODY, stdout=stdout, stderr=stderr)
            job = probe.Job(spec, told=draft / "spec.json", events=draft / "events", stderr=draft / "probe-stderr")
            assert machine.run_launchers([(LocalMachine(), job)]) == [0]
            stored = folder.accept(draft, attempt("base", 1.0))
            assert stored == folder.path / "attempts" / "b00001-1-base-1"  # as people call it
        assert list(roots.iterdir()) == []
        (kept,) = home.glob("old/*/*/attempts/b00001-1-base-1")
        assert (kept / "stdout").read_text() == "theirs\n"
        assert '"stored"' in (kept.parents[1] / "run.jsonl").read_text()
    finally:
        discard(str(home))
        discard(str(roots))


def test_root_goes_on_with_no_run_of_another_account(tmp_path: Path) -> None:
    need_root()
    with closing(begun(tmp_path)) as folder:
        os.chown(folder.path, NOBODY, NOBODY)
        with pytest.raises(UserError, match="is not root's own"):
            folder.hold()


@pytest.mark.host  # databases of others run as that account too
def test_memory_of_system_v_goes_with_the_program_that_made_it(place: Place) -> None:
    """Its segments have no end but by name, and a server that is killed removes none: some run out of them one day."""
    script = (
        "import ctypes; libc = ctypes.CDLL(None);"
        " made = [libc.shmget(0, 4096, 0o1600), libc.semget(0, 1, 0o1600), libc.msgget(0, 0o1600)];"
        " assert min(made) >= 0; print('made')"
    )

    def recipe(places: Places) -> Iterable[Act]:
        yield Step(name="leave", argv=("/usr/bin/python3", "-c", script), expects="made")

    kinds = [Path("/proc/sysvipc") / kind for kind in ("shm", "sem", "msg")]
    need(all(kind.exists() for kind in kinds) and Path("/usr/bin/python3").exists(), "System V IPC, python3 (apt)")

    def nobodys() -> int:
        return sum(str(NOBODY) in line.split() for kind in kinds for line in kind.read_text().splitlines()[1:])

    before = nobodys()
    place.make(recipe)
    assert nobodys() == before
