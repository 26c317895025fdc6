"""An NFS server on this host for guests: one private folder, over NFSv4, on one address.

The server is nfs-ganesha, which needs root: it opens files by handle. It serves NFSv4 alone, so that neither rpcbind
nor a lock daemon nor DBus is needed. Whoever asks, root in a guest and any other process that reaches the address, is
the same unprivileged account there (all users are squashed), and no other account of this host can enter the folder
that the export lies in: what a guest writes gives nobody a right on this host.

The guest needs no mount helper: `Export.options` are what mount(2) wants. The version is 4.1: to a client of 4.2 that
reads by READ_PLUS (Linux 6.12 as Debian configures it) ganesha 4.3 gave zeros in place of the data (seen).

Source: ganesha-core-config(8), ganesha-export-config(8) of nfs-ganesha 4.3; nfs(5) for the options; the kernel's
Documentation/filesystems/nfs/client-identifier.rst.
"""

from __future__ import annotations

import os
import pwd
import re
import select
import signal
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from hugewise.beneath import DirFd
from hugewise.errors import MachineError, ProbeError, UserError
from hugewise.files import storing
from hugewise.host.local_machine import LocalMachine
from hugewise.host.network import Link
from hugewise.host.scratch import Scratch, discard, fresh
from hugewise.machine import programs
from hugewise.machine.agent import Agent
from hugewise.machine.machine import Serving
from hugewise.machine.probe import Job, Spec
from hugewise.model.workload import Missing

NAME = "hugewise"  # of the export in the server's root
_PROGRAM, _PACKAGES = "ganesha.nfsd", "nfs-ganesha nfs-ganesha-vfs"
_MODULE = "usr/lib/*/ganesha/libfsalvfs.so"
_FOLDER, _SAID = "nfs", "stderr"
_IDENTIFIER = "/sys/module/nfs/parameters/nfs4_unique_id"  # in a guest
_PLAIN = re.compile(r"/[\w./+:@ -]+", re.ASCII)
_READY_S, _PAUSE_S = 30.0, 0.05
_READY, _NO_EXPORT = "NFS SERVER INITIALIZED", "No export entries found"  # in its log; the exports are read first
_TO_LEAVE_S = 20.0
_TRIES = 3  # a port may be taken between the look and the start
_RUN = Path("/run/ganesha")  # made by the server at start, whatever its option for the pid file says
_LAST_LINES = 4
_NOISE = re.compile(r"DBUS|RADOS|__Register_program|principal nfs")  # messages about services that it does not need


def missing() -> tuple[Missing, ...]:
    """Return what this host lacks to serve NFS, root aside."""
    if _program() is None:
        return (Missing(f"{_PROGRAM}: no such program on PATH", _PACKAGES),)
    if _plugins() is None:
        return (Missing(f"nfs-ganesha has no module for file systems (/{_MODULE})", "nfs-ganesha-vfs"),)
    return ()


def _program() -> str | None:
    return programs.of_root(_PROGRAM)


def _plugins() -> str | None:
    return next((str(path.parent) for path in sorted(Path("/").glob(_MODULE))), None)


def configuration(folder: str, plugins: str, where: tuple[str, int], owner: tuple[int, int]) -> str:
    """Return ganesha's configuration to export FOLDER/export; whoever asks is `owner` there. Raises UserError."""
    if _PLAIN.fullmatch(folder) is None:
        raise UserError(
            f"{folder!r} cannot be exported: it has characters other than letters, digits, blanks and ./+:@_-",
            hint="name another folder for NFS",
        )
    (bind, port), (uid, gid) = where, owner
    template = resources.files(__package__).joinpath("ganesha.conf").read_text(encoding="utf-8")
    return template.format(folder=folder, plugins=plugins, bind=bind, port=port, uid=uid, gid=gid, name=NAME)


def serve(place: Scratch, link: Link, account: pwd.struct_passwd) -> Export:
    """Serve a fresh folder of `account` to guests of `link`. Raises UserError, MachineError, StorageError."""
    if os.geteuid() != 0:
        raise UserError("an NFS server needs root: it opens files by their handles", hint="leave out nfs = true")
    if lacking := missing():
        raise UserError(lacking[0].reason, hint=f"apt install {lacking[0].package}")
    folder, owner = place.path / _FOLDER, (account.pw_uid, account.pw_gid)
    run_folder = not _RUN.exists()
    for left in reversed(range(_TRIES)):
        _lay_out(folder, owner)
        where = (link.bind, _free_port(link.bind))
        try:
            serving = Serving(LocalMachine(), _job(folder, where, owner))
        except ProbeError as error:
            discard(str(folder))
            raise MachineError(f"the NFS server did not start: {error.message}") from None
        export = Export(folder, *where, serving, run_folder)
        try:
            export.await_answer()
        except BaseException:
            is_taken = "ddress already in use" in export.text()
            export.stop()
            if is_taken and left:
                continue
            raise
        return export
    raise AssertionError


@dataclass
class Export:
    """A folder of this host that is being served. A context; at its end the server and the folder are gone.

    folder  the server's own, which root alone can enter; what is exported is `path` in it
    bind    the address that is listened on
    """

    folder: Path
    bind: str
    port: int
    _serving: Serving = field(repr=False)
    _makes_run: bool = field(default=False, repr=False)
    _closed: bool = field(default=False, repr=False)

    @property
    def path(self) -> Path:
        return self.folder / "export"

    def mount(self, agent: Agent, link: Link, name: str, target: str) -> None:
        """Mount it in a guest of `link`, as `name`: as one client guests would lose files. Raises MachineError."""
        self.check()
        try:
            agent.write(_IDENTIFIER, name)
            agent.mount(f"{link.host}:/{NAME}", target, "nfs4", self.options(link))
        except OSError as error:
            raise MachineError(
                f"{agent.name} cannot mount the host's NFS: {error.strerror}",
                hint="its kernel needs NFS_FS and NFS_V4_1, built in or as modules",
            ) from None

    def options(self, link: Link) -> str:
        """Return the options for mount(2). The client gives up after some minutes: a dead server ends the attempt."""
        return f"addr={link.host},port={self.port},clientaddr={link.address},vers=4.1,proto=tcp,softerr"

    def check(self) -> None:
        """Raise MachineError when the server is gone."""
        if self._closed or self._serving.ended():
            raise self._error("the NFS server ended")

    def await_answer(self) -> None:
        """Wait until the server says that it is there, with the export. Raises MachineError."""
        end = time.monotonic() + _READY_S
        while _READY not in self.text():
            if self._serving.ended():
                raise self._error("the NFS server ended before it answered")
            if time.monotonic() > end:
                raise self._error(f"the NFS server is not there after {_READY_S:g} s")
            select.select([self._serving.launcher], [], [], _PAUSE_S)
        if _NO_EXPORT in self.text():
            raise self._error("the NFS server does not have the export")
        self._leave_no_run()  # now, not at the end alone: a killed process leaves none either

    def stop(self) -> bool:
        """End the server, see that it is gone, and remove the folder; False when it had to be killed."""
        if self._closed:
            return True
        try:
            return self._serving.stop(signal.SIGTERM, _TO_LEAVE_S)
        finally:
            self._serving.close()
            self._closed = True
            discard(str(self.folder))
            self._leave_no_run()

    def _leave_no_run(self) -> None:
        if self._makes_run:
            with suppress(OSError):  # a server of somebody else's has its files in it by now
                _RUN.rmdir()

    def text(self) -> str:
        log = self.folder / _SAID
        return log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""

    def _error(self, message: str) -> MachineError:
        lines = [line for line in self.text().splitlines() if line.strip() and _NOISE.search(line) is None]
        messages = [line.rpartition("] ")[2] for line in lines[-_LAST_LINES:]] or ["it said nothing"]
        return MachineError("\n  ".join([message, *messages]))

    def __enter__(self) -> Export:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _lay_out(folder: Path, owner: tuple[int, int]) -> None:

    def fill(made: DirFd) -> None:
        with made.make("recovery"), made.make("export") as export:
            export.hand_over(*owner, 0o755)

    fresh(folder, None, None, fill)


def _free_port(bind: str) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as taken:
        try:
            taken.bind((bind, 0))
        except OSError as error:
            raise MachineError(f"the NFS server cannot listen on {bind}: {error.strerror}") from None
        return int(taken.getsockname()[1])


def _job(folder: Path, where: tuple[str, int], owner: tuple[int, int]) -> Job:
    # the server runs in the foreground, with its log on stderr, and no file outside of its folder
    configured = folder / "ganesha.conf"
    with storing(str(configured)):
        configured.write_text(configuration(str(folder), _plugins() or "", where, owner), encoding="utf-8")
    spec = Spec(
        argv=(_program() or _PROGRAM, "-F", "-L", "STDERR", "-f", str(configured), "-p", str(folder / "pid")),
        # libblkid, which the server asks about file systems, would otherwise leave its cache in /run/blkid.
        env={"PATH": os.environ.get("PATH", os.defpath), "BLKID_FILE": str(folder / "blkid.tab")},
        cwd=str(folder),
        stdout=str(folder / "stdout"),
        stderr=str(folder / _SAID),
        announce=True,
    )
    return Job.below(folder, "server", spec)
