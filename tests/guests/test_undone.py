"""A boot that fails half-way, a guest and a server of files that end leave nothing, with their programs played."""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hugewise.errors import MachineError
from hugewise.guests import boot as booting
from hugewise.guests import nfs, qemu
from hugewise.guests.boot import BootedGuest, Hosting
from tests.build.guests import guest, kernel


class Played:
    """QEMU with its launcher, monitor and agent: `left` names what has not been closed, `fails` the step that does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails: str = "") -> None:
        self.left, self.fails = set[str](), fails
        self.pairs: list[tuple[socket.socket, socket.socket]] = []
        self.launcher, self.held = os.pipe()
        for name in ("Serving", "_Waiting", "Qmp"):
            monkeypatch.setattr(booting, name, lambda *_, name=name: self.made(name))
        monkeypatch.setattr(booting, "_pin", lambda *_: self.step("pin"))
        monkeypatch.setattr(qemu, "argv", lambda *_, **__: ("qemu",))

    pid = 4711

    def made(self, name: str) -> Any:
        if name != "_Waiting":
            self.left.add(name)
        one = Part(self, name)
        self.step(name)
        return one

    def step(self, name: str) -> None:
        if name == self.fails:
            raise MachineError(f"{name} fails")


class Part:
    """One of its parts."""

    def __init__(self, of: Played, name: str) -> None:
        self.of, self.name, self.pid, self.launcher = of, name, of.pid, of.launcher

    def close(self) -> None:
        self.of.left.discard(self.name)

    def ended(self) -> bool:
        return False

    def connected(self, _: socket.socket) -> socket.socket:
        self.of.step("connected")
        self.of.pairs.append(socket.socketpair())
        return self.of.pairs[-1][0]

    def hello(self, _: socket.socket) -> None:
        self.of.step("hello")

    def execute(self, _: str, __: float) -> None:
        os.write(self.of.held, b"it has ended")


@pytest.fixture
def hosting(reached: Path) -> Iterator[Hosting]:
    run, outputs = reached / "run", reached / "outputs"
    run.mkdir()
    outputs.mkdir()
    (reached / "vmlinuz").touch()
    (reached / "initramfs").touch()
    yield Hosting(outputs=outputs, run=run, account=pwd.getpwuid(os.geteuid()))


def booted(hosting: Hosting) -> BootedGuest:
    above = hosting.run.parent
    found = guest(kernel=kernel(image=str(above / "vmlinuz")))
    return booting.boot(found, above / "initramfs", hosting, program="qemu")


@pytest.mark.parametrize("fails", ["Serving", "connected", "hello", "Qmp", "pin"])
def test_a_boot_that_fails_at_any_step_leaves_nothing(
    hosting: Hosting, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    played = Played(monkeypatch, fails)
    with pytest.raises(MachineError, match=f"{fails} fails"):
        booted(hosting)
    assert played.left - {fails} == set(), "what was made before the failing step"
    assert all(one.fileno() == -1 for one, _ in played.pairs)
    assert list(hosting.run.iterdir()) == []
    for _, peer in played.pairs:
        peer.close()


def test_a_guest_that_ends_leaves_nothing(hosting: Hosting, monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch)
    with booted(hosting) as found:
        assert played.left == {"Serving", "Qmp"}
        assert sorted(path.name for path in hosting.run.iterdir()) == ["initramfs", "kernel"]
    assert played.left == set()
    assert found.agent.fileno() == -1
    assert list(hosting.run.iterdir()) == []
    assert found.ended() and found.stop(), "once is enough"
    for own, peer in played.pairs:
        own.close()
        peer.close()


def test_the_server_of_files_and_its_folder_go_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    did: list[str] = []
    over = [False]
    serving: Any = SimpleNamespace(
        stop=lambda *_: did.append("stop"), close=lambda: did.append("close"), ended=lambda: over[0]
    )
    monkeypatch.setattr(nfs, "discard", did.append)
    with nfs.Export(tmp_path, "127.0.0.1", 2049, serving) as export:
        export.check()
        over[0] = True
        with pytest.raises(MachineError):
            export.check()
        over[0] = False
        assert did == []
    assert did == ["stop", "close", str(tmp_path)]
    with pytest.raises(MachineError):
        export.check()
    assert export.stop() and len(did) == 3, "once is enough"
