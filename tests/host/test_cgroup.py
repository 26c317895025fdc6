import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hugewise.errors import HugewiseError
from hugewise.host import cgroup
from hugewise.host.cgroup import Hierarchy, Leaf
from hugewise.host.journal import Journal, recover
from hugewise.host.ledger import FoldersMade
from hugewise.host.local_host import LocalHost
from tests.build import known
from tests.build.hosts import FakeHost
from tests.requirements import need
from tests.wait import until

pytestmark = pytest.mark.looks

_V1 = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
35 31 0:32 {root} {top}/memory rw,relatime shared:5 - cgroup cgroup rw,memory
36 31 0:33 / {top}/cpu\\040set rw,relatime - cgroup cgroup rw,cpuset
37 31 0:34 / {top}/freezer rw,relatime - cgroup cgroup rw,freezer
39 31 0:36 / {top}/pids rw,relatime - cgroup cgroup rw,pids
41 31 0:38 / {top}/unified rw,relatime - cgroup2 cgroup2 rw
"""


def described(tmp_path: Path, mounts: str, own: str) -> Path:
    """A /proc/self that says so; the mounted folders lie below tmp_path."""
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "mountinfo").write_text(mounts)
    (proc / "cgroup").write_text(own)
    return proc


def test_v1_groups_are_found_below_their_mounts(tmp_path: Path) -> None:
    for name in ("memory/here", "freezer", "pids", "unified"):
        (tmp_path / name).mkdir(parents=True)
    own = "9:pids:/\n8:freezer:/\n3:cpuset:/\n4:memory:/outer/here\n0::/\n"
    proc = described(tmp_path, _V1.format(root="/outer", top=tmp_path), own)
    assert cgroup.find(proc) == {
        "memory": tmp_path / "memory/here",
        "freezer": tmp_path / "freezer",
        "pids": tmp_path / "pids",
        "2": tmp_path / "unified",
    }


def test_a_group_outside_of_what_is_mounted_falls_back_to_the_top(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    proc = described(tmp_path, _V1.format(root="/container", top=tmp_path), "4:memory:/elsewhere\n")
    assert cgroup.find(proc) == {"memory": tmp_path / "memory"}


def fake_v2(top: Path, *, own: str, given: str, busy: bool) -> dict[str, Path]:
    """Folders with the files of cgroup v2; writes change nothing, as the files are plain ones."""
    folder = top
    for part in ("", *own.split("/")):
        folder = folder / part
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.controllers").write_text("cpu memory pids\n")
        (folder / "cgroup.subtree_control").write_text(f"{given}\n")
        (folder / "cgroup.procs").write_text("1\n" if busy else "")
    return {"2": folder}


def test_v2_goes_up_to_the_group_that_can_count_memory(tmp_path: Path) -> None:
    own = fake_v2(tmp_path / "root", own="user/session", given="", busy=True)
    notes: list[FoldersMade] = []
    hierarchy = Hierarchy.open(notes.append, own)
    root = tmp_path / "root"
    assert hierarchy.parents == {"2": root / f"hugewise-{os.getpid()}"}
    control = str(root / "cgroup.subtree_control")
    assert notes == [FoldersMade((str(hierarchy.parents["2"]),), ((control, "memory"), (control, "pids")))]


def test_v2_passes_over_a_threaded_group(tmp_path: Path) -> None:
    """It cannot say which processes it holds (EOPNOTSUPP), and gives its children no memory."""
    own = fake_v2(tmp_path / "root", own="user/session", given="", busy=False)
    processes = own["2"] / "cgroup.procs"
    processes.unlink()
    processes.mkdir()  # read like that, it is an error too
    assert Hierarchy.open(own=own).parents["2"].parent == own["2"].parent


def test_v2_stays_in_the_own_group_where_it_gives_memory(tmp_path: Path) -> None:
    own = fake_v2(tmp_path / "root", own="user/session", given="memory pids", busy=False)
    hierarchy = Hierarchy.open(own=own)
    assert hierarchy.parents["2"].parent == own["2"]
    assert hierarchy.made.enabled == ()
    leaf = hierarchy.create("attempt")
    assert leaf.procs_files == (leaf.folders[0] / "cgroup.procs",)
    assert (leaf.peak_bytes(), leaf.used().faults) == (None, None)  # nothing is counted in a plain folder


def test_a_login_on_a_host_with_v2_alone_has_its_groups_beside_it(tmp_path: Path) -> None:
    """As Debian 12 (Linux 6.1, systemd 252) has it: the session holds processes, and gives no memory."""
    mount = f"31 23 0:26 / {tmp_path}/cgroup rw,nosuid,nodev,noexec,relatime shared:8 - cgroup2 cgroup2 rw,nsdelegate\n"
    session = "user.slice/user-0.slice/session-1.scope"
    own = fake_v2(tmp_path / "cgroup", own=session, given="cpu memory pids", busy=False)
    (own["2"] / "cgroup.subtree_control").write_text("")
    (own["2"] / "cgroup.procs").write_text("1\n")
    found = cgroup.find(described(tmp_path, mount, f"0::/{session}\n"))
    assert found == own
    hierarchy = Hierarchy.open(own=found)
    assert hierarchy.parents == {"2": own["2"].parent / f"hugewise-{os.getpid()}"}
    assert hierarchy.made.enabled == ()


def test_figures_of_v2_and_v1(tmp_path: Path) -> None:
    leaf = Leaf((tmp_path,), tmp_path)
    (tmp_path / "memory.peak").write_text("4096\n")
    (tmp_path / "memory.stat").write_text("anon 5\npgfault 12\npgmajfault 3\n")
    assert (leaf.peak_bytes(), leaf.used().faults) == (4096, 12)
    (tmp_path / "memory.peak").unlink()
    (tmp_path / "memory.max_usage_in_bytes").write_text("8192\n")
    (tmp_path / "memory.stat").write_text("pgfault 12\ntotal_pgfault 40\n")
    assert (leaf.peak_bytes(), leaf.used().faults) == (8192, 40)


@pytest.mark.parametrize(
    ("files", "swapping", "limited"),
    [
        (("memory.max", "memory.high"), False, "memory.max"),
        (("memory.max", "memory.high"), True, "memory.high"),
        (("memory.limit_in_bytes",), False, "memory.limit_in_bytes"),
        (("memory.limit_in_bytes",), True, "memory.limit_in_bytes"),
    ],
)
def test_memory_is_limited_at_the_one_limit_that_does_it(
    tmp_path: Path, files: tuple[str, ...], swapping: bool, limited: str
) -> None:
    for name in files:
        (tmp_path / name).write_text("max\n")
    Leaf((tmp_path,), tmp_path).limit_memory(5 << 20, swapping=swapping)
    assert {name: (tmp_path / name).read_text() for name in files} == {
        name: "5242880" if name == limited else "max\n" for name in files
    }


def test_memory_that_cannot_be_limited_says_why(tmp_path: Path) -> None:
    with pytest.raises(HugewiseError, match="needs a memory cgroup, and there is none") as caught:
        Leaf((tmp_path,), None).limit_memory(1 << 20)
    assert (caught.value.hint or "").startswith("sudo hugewise")
    (tmp_path / "memory.max").mkdir()
    with pytest.raises(HugewiseError, match=f"^cannot limit the memory of {tmp_path}: Is a directory$"):
        Leaf((tmp_path,), tmp_path).limit_memory(1 << 20)


def test_errors_say_the_cure(tmp_path: Path) -> None:
    with pytest.raises(HugewiseError, match="no cgroup file system") as caught:
        Hierarchy.open(own={})
    assert "mount -t cgroup2" in (caught.value.hint or "")
    hierarchy = Hierarchy.open(own={"memory": tmp_path})
    hierarchy.create("twice")
    with pytest.raises(HugewiseError, match="File exists") as caught:
        hierarchy.create("twice")
    assert "hugewise restore" in (caught.value.hint or "")
    missing = known(cgroup.unavailable({}))
    assert missing.message == "no cgroup file system is mounted"
    assert (missing.hint or "").startswith("mount")


def test_only_a_runs_folder_in_a_cgroup_file_system_is_our_own() -> None:
    mounts = [point for point, _, _ in cgroup._mounts(Path("/proc/self"))]
    need(bool(mounts), "a mounted cgroup file system")
    assert cgroup.is_own(f"{mounts[0]}/some/group/hugewise-12")
    for path in ("/tmp/hugewise-12", f"{mounts[0]}/hugewise-x", f"{mounts[0]}/../../hugewise-1", f"{mounts[0]}/a"):
        assert not cgroup.is_own(path)


@pytest.fixture
def hierarchy() -> Iterator[Hierarchy]:
    """Real groups of this machine, gone afterwards."""
    reason = cgroup.unavailable()
    need(reason is None, f"cgroups that can be made: {reason}")
    opened = Hierarchy.open()
    yield opened
    opened.remove()
    assert not any(path.exists() for path in opened.parents.values())


@contextmanager
def entered(leaf: Leaf, script: str) -> Iterator[subprocess.Popen[bytes]]:
    """A shell inside the group that has said `ready` and runs `script`; it does not outlive the test."""
    joins = "; ".join(f"echo $$ > {file}" for file in leaf.procs_files)
    with subprocess.Popen(["/bin/sh", "-c", f"{joins}; echo ready; {script}"], stdout=subprocess.PIPE) as child:
        try:
            assert known(child.stdout).readline() == b"ready\n"
            yield child
        finally:
            child.kill()


def command_of(pid: str) -> str | None:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return None


def test_a_whole_tree_is_killed_and_the_group_removed(hierarchy: Hierarchy) -> None:
    leaf = hierarchy.create("tree")
    with entered(leaf, "trap '' TERM INT HUP; (setsid sleep 60 &); sleep 61 & exec sleep 62"):
        # Subshells come and go: the tree stands when all three are asleep.
        until(
            lambda: [command_of(pid) for pid in leaf.procs_files[0].read_text().split()].count("sleep") == 3,
            "all three are asleep",
        )
        assert leaf.kill() >= 3
        assert all(file.read_text() == "" for file in leaf.procs_files)
    leaf.remove()
    assert not any(folder.exists() for folder in leaf.folders)
    assert leaf.kill() == 0
    leaf.remove()


def test_without_cgroup_kill_processes_are_killed_one_by_one(hierarchy: Hierarchy) -> None:
    leaf = hierarchy.create("old-kernel")
    with entered(leaf, "sleep 60 & exec sleep 61") as child:
        older = Leaf(tuple(folder for folder in leaf.folders if not (folder / "cgroup.kill").exists()), None)
        need(bool(older.folders), "a cgroup v1 hierarchy")
        assert older.kill() >= 1
        assert child.wait(timeout=60) == -signal.SIGKILL
    leaf.kill()
    leaf.remove()


def test_groups_that_a_workload_made_inside_go_too(hierarchy: Hierarchy) -> None:
    leaf = hierarchy.create("nested")
    for folder in leaf.folders:
        (folder / "inner" / "most").mkdir(parents=True)
    inner = Leaf(tuple(folder / "inner" / "most" for folder in leaf.folders), None)
    with entered(inner, "exec sleep 60") as child:
        assert leaf.kill() == 1
        assert child.wait(timeout=60) == -signal.SIGKILL
    leaf.remove()
    assert not any(folder.exists() for folder in leaf.folders)


def test_memory_and_faults_of_the_group_are_counted(hierarchy: Hierarchy) -> None:
    leaf = hierarchy.create("counted")
    need(leaf.memory is not None, "a cgroup memory controller")
    with entered(leaf, "head -c 33554432 /dev/zero | tail -c 33554432 > /dev/null") as child:
        assert child.wait(timeout=60) == 0
    assert 32 << 20 <= known(leaf.peak_bytes()) < 256 << 20
    assert known(leaf.used().faults) > 100
    leaf.remove()


def test_an_empty_group_is_made_and_removed_without_waiting(
    hierarchy: Hierarchy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slept(seconds: float) -> None:
        raise AssertionError(f"waited {seconds} s for a group in which nothing is")

    monkeypatch.setattr(time, "sleep", slept)
    for number in range(20):
        leaf = hierarchy.create(f"a{number}")
        assert leaf.kill() == 0
        leaf.remove()
        assert not any(folder.exists() for folder in leaf.folders)


def test_recovery_kills_what_a_dead_run_left_in_its_groups(tmp_path: Path) -> None:
    reason = cgroup.unavailable()
    need(reason is None, f"cgroups that can be made: {reason}")
    host = FakeHost()
    host.fixed["/proc/sys/kernel/random/boot_id"] = LocalHost().read("/proc/sys/kernel/random/boot_id")
    path = tmp_path / "journal.jsonl"
    journal = Journal.begin(host, path, "killed")
    hierarchy = Hierarchy.open(journal.append)
    try:
        with entered(hierarchy.create("b1"), "exec sleep 60") as child:
            journal.abandon()
            found = recover(host, path)
            assert found.killed == 1
            assert child.wait(timeout=60) == -signal.SIGKILL
    finally:
        hierarchy.remove()
    assert not any(folder.exists() for folder in hierarchy.parents.values())
