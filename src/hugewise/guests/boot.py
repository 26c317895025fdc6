"""Starts a guest below the probe's launcher, and sees that it ends.

The launcher gives QEMU its account, cgroup, CPUs and THP setting, and ends it when this process dies. QEMU connects to
two sockets on which this process listens: to one its monitor, to the other the guest's agent. Whatever connects is
looked at: it must be that very QEMU.
"""

from __future__ import annotations

import os
import pwd
import re
import select
import socket
import stat
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from hugewise.beneath import Folder
from hugewise.errors import MachineError, ProbeError
from hugewise.files import storing
from hugewise.guests import backing, qemu
from hugewise.guests.qmp import Qmp
from hugewise.host.local_machine import LocalMachine
from hugewise.host.lock import peer
from hugewise.machine import probe
from hugewise.machine.foreign import heard, plain
from hugewise.machine.machine import Contained, Machine
from hugewise.machine.serving import Serving
from hugewise.model.guest import Guest

__all__ = ["PATIENCE_S", "Booted", "Hosting", "boot", "plain_lines"]

# How long a guest may take to say hello.
PATIENCE_S: Mapping[str, float] = {"tcg": 120.0, "kvm": 30.0}
_TO_LEAVE_S = 10.0
_LAST_LINES = 8
_MOST_LINES = 1000
_MOST_OF_CONSOLE = 16 << 20  # bytes: QEMU is ended when its guest's console has more
_CAUSE = re.compile(r"Kernel panic|Out of memory|Oops|BUG:")
_TAIL_BYTES = 1 << 16
_HELLO_BYTES = 1 << 16
_PAUSE_S = 0.01
_MOST_PATH = 107  # bytes of a unix socket's path, sun_path less its end

# What terminals obey: CSI sequences, OSC sequences, other escapes; then what is left of controls.
_ESCAPE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-~]")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


class Hosting(msgspec.Struct, frozen=True, kw_only=True):
    """Where and as whom a guest's QEMU runs on this host.

    outputs    folder of the attempt: guest-argv.json, console.txt, qemu.stderr, smaps.txt, the launcher's files
    run        private folder with a short path, which `account` can enter, for sockets and copies
    account    None: as the caller
    leaf       its cgroup
    cpus       CPUs of the host that it is pinned to; as many as vCPUs: one each
    hugetlbfs  folder of a mounted hugetlbfs that `account` may write, for the backing `file`
    tap        the interface of the network `tap`
    temporary  folder for what the guest writes to its disk
    """

    outputs: Path
    run: Path
    account: pwd.struct_passwd | None = None
    leaf: Contained = Contained()
    cpus: tuple[int, ...] | None = None
    hugetlbfs: str | None = None
    tap: str | None = None
    temporary: str = "/var/tmp"  # noqa: S108  (QEMU makes an unnamed file there)


@dataclass
class Booted:
    """A guest whose agent has said hello.

    agent  connected to the agent; the hello has not been read
    qmp    QEMU's monitor
    pid    QEMU's, as this process sees it
    """

    guest: Guest
    hosting: Hosting
    serving: Serving
    agent: socket.socket
    qmp: Qmp
    copies: tuple[Path, ...] = field(default=(), repr=False)
    _closed: bool = field(default=False, repr=False)

    @property
    def pid(self) -> int:
        """QEMU's process."""
        return self.serving.pid

    @property
    def launcher(self) -> int:
        """A descriptor that is readable as soon as QEMU has ended."""
        return self.serving.launcher

    def ended(self) -> bool:
        """Whether QEMU is gone."""
        return self._closed or self.serving.ended()

    def error(self, message: str) -> MachineError:
        """An error about this guest, with what it said last."""
        return _error(_why(message, self.serving), self.hosting.outputs)

    def prove(self, share: float = backing.SHARE) -> backing.Proof:
        """What the guest's memory is made of now; the mappings that were looked at are kept. Raises MachineError."""
        try:
            text = backing.smaps(self.pid)
            numa = backing.numa_maps(self.pid) if self.guest.backing.nodes is not None else None
        except OSError as error:
            raise self.error(f"QEMU's smaps cannot be read: {error.strerror}") from None
        if not text:  # a process that has ended and was not reaped yet has no mappings
            raise self.error("QEMU has ended: its memory cannot be looked at any more")
        with storing("smaps.txt"):
            (self.hosting.outputs / "smaps.txt").write_text(backing.large(text))
        return backing.judge(text, self.guest, share, numa)

    def stop(self, patience: float = _TO_LEAVE_S) -> bool:
        """End QEMU and see that it is gone; what it needed is removed. False when it had to be killed.

        A guest that is to write its disk or to end by itself is told so before, through its agent.
        """
        if self._closed:
            return True
        obeyed = True
        try:
            if not self.serving.ended():
                with suppress(MachineError):
                    self.qmp.execute("quit", patience)
                obeyed = bool(select.select([self.serving.launcher], [], [], patience)[0])
        finally:
            self.serving.close()
            self.qmp.close()
            self.agent.close()
            self._closed = True
            _discard(self.copies)
        return obeyed

    def __enter__(self) -> Booted:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def boot(
    guest: Guest,
    initramfs: Path,
    hosting: Hosting,
    *,
    program: str,
    timeout: float | None = None,
    machine: Machine | None = None,
) -> Booted:
    """Boot `guest` with `initramfs` and wait until its agent says hello, at most `timeout` seconds (None: PATIENCE_S).

    Raises MachineError, with the last lines of the console or of QEMU, when it does not start, panics, ends or says
    nothing; QEMU is gone then. Raises ValueError for a guest that cannot be (`qemu.argv`), ProbeError, StorageError.
    """
    end = time.monotonic() + (PATIENCE_S[guest.accelerator] if timeout is None else timeout)
    with ExitStack() as undo:
        places, copies = _places(guest, initramfs, hosting, undo)
        listening = {name: _listen(hosting, name, undo) for name in ("agent", "qmp")}
        argv = qemu.argv(guest, program=program, places=places)
        with storing("guest-argv.json"):
            (hosting.outputs / "guest-argv.json").write_bytes(msgspec.json.format(msgspec.json.encode(argv), indent=1))
        try:
            serving = Serving(machine or LocalMachine(), _job(guest, argv, hosting))
        except ProbeError as error:
            raise _error(f"QEMU did not start: {error.message}", hosting.outputs) from None
        undo.callback(serving.close)
        waiting = _Waiting(serving, hosting.outputs, end)
        monitor = undo.enter_context(waiting.connected(listening["qmp"]))
        agent = undo.enter_context(waiting.connected(listening["agent"]))
        waiting.hello(agent)
        # The monitor answers from here on: before, QEMU may be busy with getting its memory.
        qmp = Qmp(monitor)
        undo.callback(qmp.close)
        _pin(qmp, serving.pid, guest, hosting)
        for listener in listening.values():
            listener.close()
        _discard([hosting.run / name for name in listening])
        undo.pop_all()
    return Booted(guest, hosting, serving, agent, qmp, copies)


def plain_lines(text: str) -> list[str]:
    """The lines of what a console was sent, without escape codes, controls and empty lines."""
    cleaned = _ESCAPE.sub("", text.replace("\r\n", "\n")).replace("\r", "\n")
    return [line for line in (plain(_CONTROL.sub("", line)).rstrip() for line in cleaned.split("\n")) if line]


def _places(
    guest: Guest, initramfs: Path, hosting: Hosting, undo: ExitStack
) -> tuple[qemu.QemuPlaces, tuple[Path, ...]]:
    """What QEMU opens. Another account may not reach the folders that kernels and images lie in: small files are copied
    to where it can; the disk is opened by the launcher.
    """
    kernel, initramfs = Path(guest.kernel.image).absolute(), initramfs.absolute()
    copies: list[Path] = []
    for needed in (kernel, initramfs, *([] if guest.image.root is None else [Path(guest.image.root)])):
        if not needed.is_file():
            raise MachineError(f"{needed}: there is no such file to boot the guest with")
    if hosting.account is not None:
        copies = [hosting.run / "kernel", hosting.run / "initramfs"]
        undo.callback(_discard, copies)
        for source, copy in zip((kernel, initramfs), copies, strict=True):
            _copy(source, copy)
        kernel, initramfs = copies
    places = qemu.QemuPlaces(
        kernel=str(kernel),
        initramfs=str(initramfs),
        agent=str(hosting.run / "agent"),
        qmp=str(hosting.run / "qmp"),
        root=guest.image.root is not None,
        hugetlbfs=hosting.hugetlbfs,
        tap=hosting.tap,
    )
    return places, tuple(copies)


def _copy(source: Path, copy: Path) -> None:
    """Copy for another account to read. What that account may have put into a folder of its own is not followed."""
    with (
        storing(str(copy)),
        source.open("rb") as given,
        Folder.open(copy.parent) as held,
        held.new(copy.name, 0o644) as made,
    ):
        while chunk := given.read(1 << 20):
            made.write(chunk)


def _job(guest: Guest, argv: tuple[str, ...], hosting: Hosting) -> probe.Job:
    account = hosting.account
    spec = probe.Spec(
        argv=argv,
        env={"PATH": os.environ.get("PATH", os.defpath), "TMPDIR": hosting.temporary},
        # Of nobody's business: its account's processes can look around there, through /proc.
        cwd=str(hosting.run),
        stdout=str(hosting.outputs / "console.txt"),
        stderr=str(hosting.outputs / "qemu.stderr"),
        uid=None if account is None else account.pw_uid,
        gid=None if account is None else _group(guest, account),
        thp_disable=qemu.thp_disable(guest.backing),
        cgroup_procs=tuple(str(path) for path in hosting.leaf.procs_files),
        cpus=hosting.cpus,
        announce=True,
        limits=probe.Limits(stream_bytes=_MOST_OF_CONSOLE, rooms=(hosting.temporary, str(hosting.run))),
        opens=msgspec.UNSET if guest.image.root is None else (str(Path(guest.image.root).absolute()),),
    )
    return probe.Job.below(hosting.outputs, "qemu", spec)


def _group(guest: Guest, account: pwd.struct_passwd) -> int:
    """The account's group; for KVM the one that may open its device, where there is one (Debian's `kvm`)."""
    if guest.accelerator == "kvm":
        with suppress(OSError):
            device = Path("/dev/kvm").stat()
            if device.st_gid != 0 and device.st_mode & stat.S_IRGRP and device.st_mode & stat.S_IWGRP:
                return device.st_gid
    return account.pw_gid


def _listen(hosting: Hosting, name: str, undo: ExitStack) -> socket.socket:
    """A socket in the run folder. Who may enter that may connect; `_accept` looks who did."""
    path = hosting.run / name
    if len(os.fsencode(path)) > _MOST_PATH:
        raise MachineError(
            f"{path}: longer than the {_MOST_PATH} bytes that a socket may have",
            hint="name a folder with a shorter path for the runs",
        )
    listener = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    with storing(str(path)):
        path.unlink(missing_ok=True)
        # Set as it is made: in a folder of the account's, a later chmod or chown could be led elsewhere.
        mask = os.umask(0o177 if hosting.account is None else 0o111)
        try:
            listener.bind(str(path))
        finally:
            os.umask(mask)
        undo.callback(_discard, [path])
    listener.listen()
    return listener


@dataclass(frozen=True)
class _Waiting:
    """Waits for a QEMU that was started. Raises MachineError when that ends first, or the moment `end` is there."""

    serving: Serving
    outputs: Path
    end: float

    def connected(self, listener: socket.socket) -> socket.socket:
        """QEMU's connection; one of any other process is closed."""
        while True:
            self._until(listener, "QEMU did not start within the time that the guest may take to boot", began=False)
            connected, _ = listener.accept()
            if peer(connected) == self.serving.pid:
                return connected
            connected.close()

    def hello(self, agent: socket.socket) -> None:
        """The first whole line, which is left to be read."""
        silent = "the guest did not say hello"
        while True:
            self._until(agent, silent, began=True)
            said = agent.recv(_HELLO_BYTES, socket.MSG_PEEK)
            if b"\n" in said:
                return
            if not said:
                raise self._over(began=True)
            if len(said) == _HELLO_BYTES or time.monotonic() > self.end:
                raise _error(silent, self.outputs)
            time.sleep(_PAUSE_S)

    def _until(self, readable: socket.socket, late: str, *, began: bool) -> None:
        """There is something to read."""
        left = max(0.0, self.end - time.monotonic())
        watched: list[socket.socket | int] = [readable, self.serving.launcher]
        found, _, _ = select.select(watched, [], [], left)
        if readable not in found:
            raise self._over(began=began) if found else _error(late, self.outputs)

    def _over(self, *, began: bool) -> MachineError:
        """QEMU has ended, or is about to: its last words come first. `began`: there was a guest."""
        select.select([self.serving.launcher], [], [], _TO_LEAVE_S)
        end = _exit(self.serving)
        if end is not None and end.exceeded is not None:
            return _error(f"QEMU was ended: {end.exceeded}", self.outputs)
        if end is None or end.code != 0:
            how = "" if end is None else f" (signal {end.signal})" if end.code is None else f" (exit status {end.code})"
            return _error(f"QEMU failed before the guest said hello{how}", self.outputs)
        if began:
            error = _error("the guest ended before it said hello", self.outputs)
            error.hint = "a kernel with too little memory ends so: give the guest more"
        else:
            error = _error("QEMU ended without an error, and booted no guest", self.outputs)
            error.hint = f"it takes a word as a question and answers it: see {self.outputs / 'guest-argv.json'}"
        return error


def _pin(qmp: Qmp, pid: int, guest: Guest, hosting: Hosting) -> None:
    """Each vCPU on a CPU of its own, where there are as many; all of QEMU is on these CPUs already."""
    cpus = hosting.cpus
    if cpus is None or guest.cpus == 1 or len(cpus) < guest.cpus:
        return
    threads = Path(f"/proc/{pid}/task")
    with heard("QEMU", "what its monitor says of its CPUs"):
        for vcpu in qmp.execute("query-cpus-fast"):
            thread, place = int(vcpu["thread-id"]), cpus[int(vcpu["cpu-index"])]
            # A QEMU that a guest has taken over may name any thread of this host.
            if (threads / str(thread)).is_dir():
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(thread, {place})


def _exit(serving: Serving) -> probe.Exit | None:
    return next((event for event in serving.events() if isinstance(event, probe.Exit)), None)


def _why(message: str, serving: Serving) -> str:
    """The message, with the limit that QEMU was ended for, if it was: its stdout is the guest's console."""
    end = _exit(serving)
    return message if end is None or end.exceeded is None else f"{message}; QEMU was ended: {end.exceeded}"


def _error(message: str, outputs: Path) -> MachineError:
    """The message with QEMU's own last words and the console's."""
    said = [f"QEMU: {line}" for line in _last_lines(outputs / "qemu.stderr", 3)]
    console = _last_lines(outputs / "console.txt", _MOST_LINES)
    # A panic is followed by more lines than are told.
    causes = [line for line in console[:-_LAST_LINES] if _CAUSE.search(line)]
    said += [f"console: {line}" for line in (*causes[-2:], *console[-_LAST_LINES:])]
    return MachineError("\n  ".join([message, *(said or ["it said nothing"])]))


def _last_lines(file: Path, count: int) -> list[str]:
    with suppress(OSError), file.open("rb") as opened:
        opened.seek(max(0, opened.seek(0, os.SEEK_END) - _TAIL_BYTES))
        return plain_lines(opened.read().decode(errors="replace"))[-count:]
    return []


def _discard(paths: Iterable[Path]) -> None:
    for path in paths:
        with suppress(OSError):
            path.unlink(missing_ok=True)
