"""What a run makes of this host and undoes, with the kernel played: files, mounts, interfaces, groups, the lock."""

from __future__ import annotations

import os
import socket
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from hugewise.errors import LockedError, SettingError
from hugewise.host import cgroup, lock, memory_state, network
from hugewise.host.ledger import FoldersMade
from hugewise.host.lock import HostLock, LockPlace
from hugewise.host.memory_state import HugetlbMount, SwapFile
from hugewise.host.network import Bridge
from tests.build.hosts import FakeHost


def test_a_swap_file_is_out_of_use_before_it_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    did: list[tuple[str, bool]] = []
    made = SwapFile(tmp_path / "hugewise-swap-7", 1 << 20)
    made.path.touch()
    monkeypatch.setattr(memory_state, "_call", lambda name, *_: did.append((name, made.path.exists())))
    made.on()
    made.close()
    assert did == [("swapon", True), ("swapoff", True)]
    assert not made.path.exists()


@pytest.mark.parametrize("refused", [False, True])
def test_a_mount_is_noted_before_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: bool) -> None:
    did: list[str] = []

    def command(*words: str) -> None:
        did.append(words[0])
        if refused:
            raise SettingError("no such file system")

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(memory_state, "_PARENT", str(tmp_path))
    monkeypatch.setattr(memory_state, "_command", command)
    monkeypatch.setattr(memory_state, "unmount", lambda _: did.append("unmount"))
    if refused:
        with pytest.raises(SettingError, match="cannot mount a hugetlbfs with pages of 2048 kB: no such file system"):
            HugetlbMount.open(2 << 20, None, lambda _: did.append("noted"))
        assert list(tmp_path.iterdir()) == []
    else:
        with HugetlbMount.open(2 << 20, None, lambda _: did.append("noted")):
            pass
    assert did == ["noted", "unmount", "mount", *([] if refused else ["unmount"])]


class Kernel:
    """The kernel's interfaces, as files below a folder; it refuses the word `refused`."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, refused: str = "") -> None:
        self.net, self.proc, self.refused = folder / "net", folder / "proc", refused
        self.net.mkdir()
        monkeypatch.setattr(network, "_INTERFACES", self.net)
        monkeypatch.setattr(network, "Path", lambda text: folder / text.lstrip("/"))
        monkeypatch.setattr(network, "_ip", self.ip)

    def ip(self, *words: str) -> bytes:
        if self.refused and self.refused in words:
            raise SettingError(f"ip {' '.join(words)}: refused")
        match words:
            case ("link", "add", "name", name, *_) | ("tuntap", "add", "dev", name, *_):
                (self.net / name).mkdir()
                (self.net / name / ("bridge" if words[0] == "link" else "tun_flags")).touch()
                self.forwarding(name).parent.mkdir(parents=True)
                self.forwarding(name).write_text("1\n")
            case ("link", "delete", "dev", name):
                for file in (self.net / name).iterdir():
                    file.unlink()
                (self.net / name).rmdir()
        return b""

    def forwarding(self, name: str) -> Path:
        return self.proc / "sys/net/ipv4/conf" / name / "forwarding"


def bridge() -> Bridge:
    return Bridge("hw-br-7", IPv4Network("192.168.219.0/24"), ("hw-t0-7", "hw-t1-7"))


def test_the_interfaces_of_guests_forward_nothing_and_go_with_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, made = Kernel(tmp_path, monkeypatch), bridge()
    made._make(None)
    names = {"hw-br-7", "hw-t0-7", "hw-t1-7"}
    assert {each.name for each in kernel.net.iterdir()} == names
    assert {kernel.forwarding(name).read_text() for name in names} == {"0"}
    made.close()
    assert list(kernel.net.iterdir()) == []


@pytest.mark.parametrize("refused", ["isolated", "tuntap", "up"])
def test_interfaces_that_were_made_before_a_refusal_go_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    kernel = Kernel(tmp_path, monkeypatch, refused)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(network, "missing", lambda _: ())
    monkeypatch.setattr(network, "networks_in_use", lambda *_: ())
    noted: list[object] = []
    with pytest.raises(SettingError, match="refused"):
        Bridge.open(2, None, noted.append)
    assert list(kernel.net.iterdir()) == []
    assert len(noted) == 1


def test_the_groups_of_a_run_are_emptied_removed_and_controllers_disabled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top, control = tmp_path / "hugewise-7", tmp_path / "cgroup.subtree_control"
    (top / "attempt" / "inner").mkdir(parents=True)
    killed: list[tuple[Path, ...]] = []

    def kill(folders: tuple[Path, ...]) -> int:
        killed.append(folders)
        return 3

    monkeypatch.setattr(cgroup, "_kill", kill)
    assert cgroup.clear(FoldersMade((str(top), str(tmp_path / "gone")), ((str(control), "memory"),))) == 3
    assert killed == [(top,)]
    assert not top.exists()
    assert control.read_text() == "-memory"


def holding(tmp_path: Path, *, whole: bool, anyway: bool = False) -> HostLock:
    """Root's lock of a host that no other test has, on a file."""
    host = FakeHost()
    host.fixed["/proc/sys/kernel/random/boot_id"] = f"{tmp_path}"
    place = LockPlace("a file", lambda: os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT), whole)
    return HostLock(host, anyway=anyway, places=[place])


def test_the_host_is_given_back_at_the_outermost_end(tmp_path: Path) -> None:
    with holding(tmp_path, whole=True) as held:
        with held, pytest.raises(LockedError):
            holding(tmp_path, whole=True).__enter__()
        with pytest.raises(LockedError):
            holding(tmp_path, whole=True).__enter__()
    with holding(tmp_path, whole=True):
        pass


@pytest.mark.parametrize(
    ("anyway", "whole", "uid", "goes_on"),
    [
        (True, True, 0, True),
        (True, False, 0, False),
        (False, True, 0, False),
        (True, True, 65534, True),
        (True, False, 65534, True),
        (False, True, 65534, False),
    ],
)
def test_root_goes_on_beside_another_holder_only_where_no_root_can_be_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, anyway: bool, whole: bool, uid: int, goes_on: bool
) -> None:
    """A socket that says it is root's is no root's where this root's lock reaches the whole host."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(f"\0hugewise-{tmp_path}")
        monkeypatch.setattr(HostLock, "_asked", lambda _: lock._Holder(None, uid))
        taken = holding(tmp_path, whole=whole, anyway=anyway)
        if goes_on:
            with taken:
                assert any("root went on (--anyway)" in remark for remark in taken.remarks)
        else:
            with pytest.raises(LockedError):
                taken.__enter__()
