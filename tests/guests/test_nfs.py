"""The NFS server on the host: its configuration, its life, and a guest that writes and reads there."""

import os
import pwd
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec
import pytest

from hugewise.errors import MachineError, UserError
from hugewise.guests import nfs
from hugewise.guests.boot import Hosting
from hugewise.host import network
from hugewise.host.network import USER, Bridge
from hugewise.host.scratch import Scratch
from tests.guests.conftest import Bootable
from tests.requirements import need, need_root

NOBODY = pwd.getpwnam("nobody")


@pytest.fixture
def place() -> Iterator[Scratch]:
    """A session's folder, on the tmpfs that sessions use."""
    with tempfile.TemporaryDirectory(prefix="hw-", dir="/dev/shm") as folder:
        Path(folder).chmod(0o711)
        yield Scratch(Path(folder), NOBODY.pw_uid, NOBODY.pw_gid)


def _need_server() -> None:
    need_root()
    lacking = nfs.missing()
    need(not lacking, f"{lacking[0].reason} (apt install {lacking[0].package})" if lacking else "")


def test_the_configuration_names_one_folder_one_address_and_one_account() -> None:
    text = nfs.configuration("/dev/shm/hugewise-1/nfs", "/usr/lib/x/ganesha", ("127.0.0.1", 4711), (65534, 65533))
    for line in (
        "Bind_Addr = 127.0.0.1;",
        "NFS_Port = 4711;",
        "Protocols = 4;",
        "Enable_NLM = false;",
        'Path = "/dev/shm/hugewise-1/nfs/export";',
        "Squash = All_Squash;",
        "Anonymous_uid = 65534;",
        "Anonymous_gid = 65533;",
    ):
        assert f"  {line}\n" in text
    assert text.count("{") == text.count("}")


@pytest.mark.parametrize("path", ['/a";Squash=None;"', "/a\nb", "relative", "/a{b}", "/ä"])
def test_a_path_that_means_something_in_it_is_refused(path: str) -> None:
    with pytest.raises(UserError, match="cannot be exported"):
        nfs.configuration(path, "/usr/lib", ("127.0.0.1", 1), (1, 1))


def test_what_is_missing_is_named_with_its_packages(monkeypatch: pytest.MonkeyPatch, place: Scratch) -> None:
    monkeypatch.setattr(nfs, "_PROGRAM", "ganesha.none")
    (lacking,) = nfs.missing()
    assert lacking.package == "nfs-ganesha nfs-ganesha-vfs"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(UserError, match="no such program") as caught:
        nfs.serve(place, USER, NOBODY)
    assert caught.value.hint == "apt install nfs-ganesha nfs-ganesha-vfs"


def test_without_root_it_is_refused(monkeypatch: pytest.MonkeyPatch, place: Scratch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UserError, match="needs root"):
        nfs.serve(place, USER, NOBODY)


# -- the real server


def test_the_export_is_there_and_then_gone(place: Scratch) -> None:
    _need_server()
    with nfs.serve(place, USER, NOBODY) as export:
        socket.create_connection(("127.0.0.1", export.port), 5).close()
        assert (export.folder.stat().st_mode & 0o7777, export.folder.stat().st_uid) == (0o700, 0)
        assert export.path.stat().st_uid == NOBODY.pw_uid
        export.check()
    assert list(place.path.iterdir()) == []
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", export.port), 5)
    with pytest.raises(MachineError, match="the NFS server ended"):
        export.check()
    assert export.stop()


@pytest.mark.host
def test_nothing_of_a_server_stays_below_run(place: Scratch) -> None:
    """It makes /run/ganesha whatever it is told, and asks libblkid, which keeps /run/blkid."""
    _need_server()

    def found() -> list[tuple[bool, list[int]]]:
        folders = [Path("/run/ganesha"), Path("/run/blkid")]
        return [
            (folder.exists(), [below.stat().st_mtime_ns for below in sorted(folder.glob("*"))]) for folder in folders
        ]

    with suppress(OSError):
        Path("/run/ganesha").rmdir()  # of an earlier one
    before = found()
    with nfs.serve(place, USER, NOBODY):
        assert found() == before  # so that a run that is killed leaves none either
    assert found() == before


def test_a_server_that_was_killed_is_told(place: Scratch) -> None:
    _need_server()
    with nfs.serve(place, USER, NOBODY) as export:
        os.kill(int((export.folder / "pid").read_text()), signal.SIGKILL)
        with pytest.raises(MachineError, match="the NFS server ended"):
            while True:
                export.check()
    assert list(place.path.iterdir()) == []


def test_one_that_does_not_come_up_says_why(place: Scratch, monkeypatch: pytest.MonkeyPatch) -> None:
    _need_server()
    real = nfs.configuration
    monkeypatch.setattr(nfs, "configuration", lambda *words: real(*words).replace("Name = VFS", "Name = NONE"))
    with pytest.raises(MachineError, match="does not have the export"):
        nfs.serve(place, USER, NOBODY)
    assert list(place.path.iterdir()) == []


def test_an_address_that_is_not_the_hosts_is_told(place: Scratch) -> None:
    _need_server()
    with pytest.raises(MachineError, match=r"cannot listen on 203\.0\.113\.1"):
        nfs.serve(place, msgspec.structs.replace(USER, bind="203.0.113.1"), NOBODY)


@pytest.mark.parametrize("kind", [pytest.param("user", marks=pytest.mark.soak), "tap"])
def test_a_guest_writes_and_reads_on_it(kind: str, x86: Bootable, hosting: Hosting, place: Scratch) -> None:
    _need_server()
    lacking = network.missing(NOBODY.pw_uid) if kind == "tap" else ()
    need(not lacking, lacking[0].reason if lacking else "")
    content = bytes(range(256)) * 4096
    with ExitStack() as closing:
        link = USER
        if kind == "tap":
            link = closing.enter_context(Bridge.open(1, NOBODY.pw_uid, lambda _: None)).link(0)
        export = closing.enter_context(nfs.serve(place, link, NOBODY))
        here = msgspec.structs.replace(hosting, tap=link.tap)
        _, agent = closing.enter_context(x86.spoken(here, network=kind))
        agent.network(link.interface, link.address, link.prefix)
        export.mount(agent, link, "guest", "/nfs")
        assert "nfs4" in agent.read("/proc/mounts")
        agent.make("/nfs/folder", 0o700, NOBODY.pw_uid, NOBODY.pw_gid)
        agent.put("/nfs/folder/theirs", content, 0o4755)
        written = export.path / "folder" / "theirs"
        assert written.read_bytes() == content
        # Whatever root in the guest does, on this host it is a file of nobody's that gives nobody a right.
        assert (written.stat().st_uid, written.stat().st_mode & 0o4000) == (NOBODY.pw_uid, 0)
        ours = export.path / "folder" / "ours"
        ours.write_bytes(content)
        ours.chmod(0o644)
        assert b"".join(agent.get("/nfs/folder/ours")) == content
        # Another account it cannot have either: that is refused, or (an owner that the server does not know) its own.
        with suppress(OSError):
            agent.make("/nfs/other", 0o700, 1000, 1000)
        assert {path.stat().st_uid for path in export.path.rglob("*")} == {NOBODY.pw_uid, os.geteuid()}
        assert agent.poweroff(30)
