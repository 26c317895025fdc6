"""This host as a machine, with folders of attempts and copies of data; machine/test_machines.py has what all share."""

import os
import re
import select
import signal
import subprocess
from pathlib import Path

import pytest

from hugewise import reading
from hugewise.beneath import DirFd
from hugewise.errors import StorageError, UserError
from hugewise.host import scratch
from hugewise.host.local_machine import LocalLauncher, LocalMachine
from hugewise.model.procedure import Data
from hugewise.store import dataset
from tests.requirements import need_program, need_root


def test_a_launcher_can_be_waited_for_by_its_descriptor() -> None:
    running = LocalLauncher(subprocess.Popen(["/bin/sleep", "60"]))
    assert running.poll() is None
    with pytest.raises(TimeoutError):
        running.wait(0.01)
    running.terminate()
    assert select.select([running.fileno()], [], [], 60)[0]
    assert running.wait() == running.poll() == -signal.SIGTERM
    running.terminate()
    running.kill()  # nothing happens to what has ended
    running.close()
    running.close()


def test_many_large_outputs_are_too_much_together(tmp_path: Path) -> None:
    for number in range(5):
        with (tmp_path / f"{number}.log").open("wb") as file:
            file.truncate(reading.MOST)
    found = LocalMachine().files(str(tmp_path), re.compile(r".*\.log"))
    for _ in range(4):
        assert len(next(found)) == reading.MOST
    with pytest.raises(reading.UnreadableError, match="they have more than 1073741824 bytes in all"):
        next(found)


def a_tree(folder: Path) -> Path:
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "deep" / "er" / "two").write_bytes(b"2" * 3_000_000)
    (folder / "one").write_text("1")
    (folder / "one").chmod(0o640)
    (folder / "link").symlink_to("deep/er/two")
    os.utime(folder / "one", (1000, 1000))
    return folder


def copied_tree(source: Path, target: Path) -> scratch.Copied:
    with DirFd.open(target) as held:
        return scratch.copy(source, held)


def test_a_copy_has_the_bytes_the_modes_the_links_and_the_times(tmp_path: Path) -> None:
    source = a_tree(tmp_path / "source")
    (tmp_path / "target").mkdir()
    copied = copied_tree(source, tmp_path / "target")
    names = sorted(str(path.relative_to(tmp_path / "target")) for path in (tmp_path / "target").rglob("*"))
    assert names == ["deep", "deep/er", "deep/er/two", "link", "one"]
    assert (tmp_path / "target" / "deep/er/two").read_bytes() == b"2" * 3_000_000
    assert (tmp_path / "target" / "link").readlink() == Path("deep/er/two")
    assert (tmp_path / "target" / "one").stat().st_mtime == 1000
    assert (tmp_path / "target" / "one").stat().st_mode & 0o777 == 0o640
    assert copied.bytes == 3_000_001


def test_data_that_were_kept_by_earlier_versions_have_the_same_digest(tmp_path: Path) -> None:
    source = a_tree(tmp_path / "source")
    for folder in ("deep", "deep/er"):
        (source / folder).chmod(0o755)
    (source / "deep/er/two").chmod(0o644)
    (tmp_path / "target").mkdir()
    assert (
        copied_tree(source, tmp_path / "target").digest
        == "554a9709923cf40c45426f59ba4d4db8a56b8c37de1121dd84a39aa280d63585"
    )


@pytest.mark.parametrize("change", ["content", "name", "mode", "link", "more"])
def test_the_digest_sees_every_change(tmp_path: Path, change: str) -> None:
    for name in ("source", "changed", "one", "two"):
        (tmp_path / name).mkdir()
    source, changed = a_tree(tmp_path / "source"), a_tree(tmp_path / "changed")
    match change:
        case "content":
            (changed / "one").write_text("2")
        case "name":
            (changed / "one").rename(changed / "oone")
        case "mode":
            (changed / "one").chmod(0o600)
        case "link":
            (changed / "link").unlink()
            (changed / "link").symlink_to("one")
        case _:
            (changed / "deep" / "empty").mkdir()
    assert copied_tree(source, tmp_path / "one").digest != copied_tree(changed, tmp_path / "two").digest


def test_a_session_finds_what_a_dead_one_left_and_removes_its_own(tmp_path: Path) -> None:
    left = tmp_path / "hugewise-999999999"
    (left / "data").mkdir(parents=True)
    noted: list[str] = []
    made = scratch.Scratch.open(tmp_path, None, None, noted.append)
    assert not left.exists()
    assert noted == [str(made.path)] == [str(tmp_path / f"hugewise-{os.getpid()}")]
    (made.folder("data") / "file").write_text("x")
    assert made.folder("data").is_dir()
    assert list(made.folder("data").iterdir()) == []
    (made.path / "a file").touch()
    made.clear()
    assert list(made.path.iterdir()) == []
    scratch.discard(str(made.path))
    scratch.discard(str(made.path))
    assert not made.path.exists()


def test_attempts_at_once_have_a_folder_each_which_their_account_passes_through_and_cannot_change(
    reached: Path,
) -> None:
    need_root()
    nobody = 65534
    whole = scratch.Scratch.open(reached, nobody, nobody, lambda _: None)
    one, other = whole.within("0"), whole.within("1")
    assert (one.path, other.path) == (whole.path / "0", whole.path / "1")
    data = one.folder("data")
    (other.folder("data") / "file").touch()

    def as_account(*argv: str | Path) -> int:
        return subprocess.run(argv, user=nobody, group=nobody, extra_groups=[], check=False, stderr=-3).returncode

    assert as_account("touch", data / "own") == 0
    for attempted in (
        ("touch", one.path / "new"),
        ("mv", data, one.path / "moved"),
        ("rmdir", other.path),
        ("chmod", "777", one.path),
        ("ls", one.path),
    ):
        assert as_account(*attempted) != 0, attempted
    assert [path.name for path in one.path.iterdir()] == ["data"]
    one.clear()
    assert list(one.path.iterdir()) == []
    assert (other.path / "data" / "file").exists(), "what one removes is its own"
    (one.path / "left").touch()
    assert list(whole.within("0").path.iterdir()) == [], "it is empty when it is made"


@pytest.mark.parametrize("path", ["/etc", "hugewise-1", "/tmp/../hugewise-1", "/tmp/hugewise-1x", "/tmp/hugewise-"])
def test_only_folders_of_sessions_are_ever_removed(path: str) -> None:
    assert not scratch.is_own(path)


def test_a_link_is_no_session_folder(tmp_path: Path) -> None:
    (tmp_path / "hugewise-7").symlink_to("/etc")
    assert not scratch.is_own(str(tmp_path / "hugewise-7"))


def test_a_folder_that_is_not_there_is_named_with_the_key(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"storage = '.*absent'"):
        scratch.Scratch.open(tmp_path / "absent", None, None, lambda _: None)


def test_too_little_room_says_how_much_there_is(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="free, and an attempt needs") as error:
        scratch.need_room(tmp_path, 1 << 60)
    assert "storage" in (error.value.hint or "")


def the_data(**key: int) -> Data:
    return Data(name="clips of 480p", key=key, recipe=lambda _: ())


def test_data_are_kept_by_their_key_and_laid_out_anew(tmp_path: Path) -> None:
    results = tmp_path / "results"
    assert dataset.find(results, the_data(seed=1)) is None
    kept = dataset.keep_dataset(results, the_data(seed=1), a_tree(tmp_path / "made"))
    assert dataset.find(results, the_data(seed=1)) == kept
    assert dataset.find(results, the_data(seed=2)) is None
    place = scratch.Scratch.open(tmp_path, None, None, lambda _: None)
    first = dataset.lay_out(kept, place)
    (first / "one").write_text("grown")
    second = dataset.lay_out(kept, place)
    assert (second / "one").read_text() == "1"


def test_kept_data_that_were_changed_are_refused(tmp_path: Path) -> None:
    kept = dataset.keep_dataset(tmp_path, the_data(seed=1), a_tree(tmp_path / "made"))
    (kept.tree / "one").write_text("2")
    place = scratch.Scratch.open(tmp_path, None, None, lambda _: None)
    with pytest.raises(StorageError, match="was changed since it was made") as error:
        dataset.lay_out(kept, place)
    assert "rm -r" in (error.value.hint or "")


def test_data_of_a_broken_manifest_are_made_anew(tmp_path: Path) -> None:
    kept = dataset.keep_dataset(tmp_path, the_data(seed=1), a_tree(tmp_path / "made"))
    Path(kept.folder, "manifest.json").write_text("{")
    assert dataset.find(tmp_path, the_data(seed=1)) is None
    assert dataset.keep_dataset(tmp_path, the_data(seed=1), tmp_path / "made").digest == kept.digest


def test_files_with_holes_fill_the_disk_no_more_than_others(tmp_path: Path) -> None:
    """Each of them has room there, and all of them leave less than attempts need."""
    need_root()
    need_program("mount", "mount")
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    for name in ("one", "two"):
        with (source / name).open("wb") as file:
            file.truncate(20 << 20)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", str(target)], check=True)
    try:
        with pytest.raises(StorageError, match="two: No space left on device"):
            copied_tree(source, target)
        (source / "two").unlink()
        (target / "one").unlink()
        assert copied_tree(source, target).bytes == 20 << 20
    finally:
        subprocess.run(["umount", str(target)], check=True)
