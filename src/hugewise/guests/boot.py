"""Start of a guest below the probe's launcher, and its end.

The launcher gives QEMU its account, cgroup, CPUs and THP setting, and ends it when this process dies. QEMU connects its
monitor and the guest's agent to two sockets on which this process listens, which checks that the peer is that very
QEMU. The last words of guest and QEMU, and how QEMU ended, are the reason of an attempt that was lost with it
(`exit_error`).
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

from hugewise.beneath import DirFd
from hugewise.errors import MachineError, ProbeError
from hugewise.files import storing
from hugewise.guests import backing, qemu
from hugewise.guests.qemu import Qmp
from hugewise.host.local_machine import LocalMachine
from hugewise.host.lock import peer
from hugewise.machine import probe
from hugewise.machine.machine import Contained, Serving
from hugewise.machine.messages import parse_foreign, plain
from hugewise.model.guest import Guest
from hugewise.quantity import format_duration, format_size

_LAST_LINES = 8
_MOST_LINES = 1000
_TAIL_BYTES = 1 << 16
_TO_EXIT_S = 1.0
_KILLED = 9
_HALF_PATCHED = re.compile(r"\bint3: 0000 \[#")  # follows "Oops: " since Linux 6.10
_CAUSE = re.compile(rf"Kernel panic|Out of memory|Oops|BUG:|{_HALF_PATCHED.pattern}")

# Sequences that terminals obey: CSI, OSC, other escapes; then the remaining controls.
_ESCAPE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-~]")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def exit_status(serving: Serving) -> str | None:
    """Return how QEMU ended, empty where as it should; None where it lives, or the end is unknown."""
    select.select([serving.launcher], [], [], _TO_EXIT_S)
    end = next((event for event in serving.events() if isinstance(event, probe.Exit)), None)
    if end is None:
        return None
    if end.exceeded is not None:
        return f"was ended: {end.exceeded}"
    if end.signal == _KILLED:
        return "was killed (signal 9): if dmesg says for want of memory, give the guests less"
    if end.signal is not None:
        return f"ended by signal {end.signal}"
    return "" if end.code == 0 else f"failed (exit status {end.code})"


def emulator_at_fault(outputs: Path) -> bool:
    """Return whether the emulator brought down an emulated guest with several processors.

    Linux patches its own instructions by way of a breakpoint (arch/x86/kernel/alternative.c, text_poke_bp_batch). A
    processor that TCG lets run into the breakpoint after all have acknowledged its removal finds no handler, and
    reports "Oops: int3"; seen once in some hundred boots. Only a panic of that cause counts.
    """
    console = _last_lines(outputs / "console.txt", _MOST_LINES)
    causes = [line for line in console if _CAUSE.search(line)]
    panic = next((line for line in causes if "Kernel panic" in line), "")
    return bool(causes) and _HALF_PATCHED.search(causes[0]) is not None and "Fatal exception" in panic


def exit_error(message: str, outputs: Path, end: str | None = None) -> MachineError:
    """Return the message, how QEMU ended, its own last words and the console's. `outputs`: the folder that has them."""
    lines = [f"QEMU: {line}" for line in _last_lines(outputs / "qemu.stderr", 3)]
    console = _last_lines(outputs / "console.txt", _MOST_LINES)
    # A panic is followed by more lines than are told.
    causes = [line for line in console[:-_LAST_LINES] if _CAUSE.search(line)]
    lines += [f"console: {line}" for line in (*causes[-2:], *console[-_LAST_LINES:])]
    if end:
        message += f"; QEMU {end}"
    return MachineError("\n  ".join([message, *(lines or ["it said nothing"])]))


def plain_lines(text: str) -> list[str]:
    """Return the lines of a console, without escape codes, controls and empty lines."""
    cleaned = _ESCAPE.sub("", text.replace("\r\n", "\n")).replace("\r", "\n")
    return [line for line in (plain(_CONTROL.sub("", line)).rstrip() for line in cleaned.split("\n")) if line]


def _last_lines(file: Path, count: int) -> list[str]:
    with suppress(OSError), file.open("rb") as opened:
        opened.seek(max(0, opened.seek(0, os.SEEK_END) - _TAIL_BYTES))
        return plain_lines(opened.read().decode(errors="replace"))[-count:]
    return []


# Limit on the time until a guest says hello, beside the time that its memory takes.
PATIENCE_S: Mapping[str, float] = {"tcg": 120.0, "kvm": 30.0}
# A thread clears 2 to 10 GiB a second. This is patience, not a forecast: pages may have to be made free first.
_FILLED_PER_S = 256 << 20  # bytes
_TO_LEAVE_S = 10.0
_MOST_OF_CONSOLE = 16 << 20  # bytes: QEMU is ended when its guest's console has more
_HELLO_BYTES = 1 << 16
_MOST_THREADS = 16  # that preallocate: more are no faster
_PAUSE_S = 0.01
_TEMPORARY = "/var/tmp"  # noqa: S108  (what the guest writes to its disk: QEMU makes an unnamed file there)
_LONGER = 'if it was still at work: boot = "10m" in [guest]'
_MOST_PATH = 107  # bytes of a unix socket's path, sun_path less its end


class Hosting(msgspec.Struct, frozen=True, kw_only=True):
    """Place and account of a guest's QEMU on this host.

    outputs    folder of the attempt: guest-argv.json, console.txt, qemu.stderr, smaps.txt, the launcher's files
    run        private folder with a short path, which `account` can enter, for sockets and copies
    account    None: as the caller
    leaf       its cgroup
    cpus       CPUs of the host that it is pinned to; as many as vCPUs: one each
    hugetlbfs  folders of mounted hugetlbfs that `account` may write, by page size in bytes, for the backing `file`
    tap        the interface of the network `tap`
    """

    outputs: Path
    run: Path
    account: pwd.struct_passwd | None = None
    leaf: Contained = Contained()
    cpus: tuple[int, ...] | None = None
    hugetlbfs: Mapping[int, str] = {}
    tap: str | None = None


@dataclass
class BootedGuest:
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
        return self.serving.pid

    def ended(self) -> bool:
        return self._closed or self.serving.ended()

    def error(self, message: str) -> MachineError:
        error = exit_error(message, self.hosting.outputs, exit_status(self.serving))
        several = self.guest.accelerator == "tcg" and self.guest.cpus > 1
        error.emulator = several and emulator_at_fault(self.hosting.outputs)
        return error

    def prove(self) -> backing.Proof:
        """Prove the guest's backing now, and keep the mappings. Raises MachineError."""
        try:
            text = backing.smaps(self.pid)
            numa = backing.numa_maps(self.pid) if self.guest.backing.bound else None
        except OSError as error:
            raise self.error(f"QEMU's smaps cannot be read: {error.strerror}") from None
        if not text:  # a process that has ended and was not reaped yet has no mappings
            raise self.error("QEMU has ended: its memory cannot be looked at any more")
        with storing("smaps.txt"):
            (self.hosting.outputs / "smaps.txt").write_text(backing.large_mappings(text))
        proof = backing.judge_backing(text, self.guest, numa=numa)
        if self.guest.accelerator != "kvm":
            return proof
        return backing.with_kvm_mapping(proof, backing.kvm_mapping(self.qmp, self.pid), self.guest.backing.kinds)

    def stop(self, patience: float = _TO_LEAVE_S) -> bool:
        """End QEMU and remove what it needed; False when it had to be killed."""
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

    def __enter__(self) -> BootedGuest:
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
) -> BootedGuest:
    """Boot `guest` and wait for its agent. Raises MachineError with the last lines, ProbeError, StorageError."""
    patience = (PATIENCE_S[guest.accelerator] if timeout is None else timeout) + filling_s(guest)
    end = time.monotonic() + patience
    with ExitStack() as undo:
        places, copies = _places(guest, initramfs, hosting, undo)
        listening = {name: _listen(hosting, name, undo) for name in ("agent", "qmp")}
        argv = qemu.argv(guest, program=program, places=places)
        with storing("guest-argv.json"):
            (hosting.outputs / "guest-argv.json").write_bytes(msgspec.json.format(msgspec.json.encode(argv), indent=1))
        try:
            serving = Serving(LocalMachine(), _job(guest, argv, hosting))
        except ProbeError as error:
            raise exit_error(f"QEMU did not start: {error.message}", hosting.outputs) from None
        undo.callback(serving.close)
        waiting = _Waiting(serving, hosting.outputs, end, patience, guest)
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
    return BootedGuest(guest, hosting, serving, agent, qmp, copies)


def filling_s(guest: Guest) -> float:
    """Return how long QEMU may take to get the guest's memory before it boots, in seconds."""
    return guest.memory / _FILLED_PER_S if guest.backing.preallocate else 0.0


def _places(
    guest: Guest, initramfs: Path, hosting: Hosting, undo: ExitStack
) -> tuple[qemu.QemuPlaces, tuple[Path, ...]]:
    # Another account may not reach the folders of kernels and images, so small files are copied to where it can; the
    # launcher opens the disk.
    kernel, initramfs = Path(guest.kernel.image).absolute(), initramfs.absolute()
    copies: list[Path] = []
    for needed in (kernel, initramfs, *map(Path, guest.opened)):
        if not (needed.is_file() or needed.is_block_device()):
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
        hugetlbfs=hosting.hugetlbfs,
        tap=hosting.tap,
        threads=min(_MOST_THREADS, len(hosting.cpus or os.sched_getaffinity(0))),
    )
    return places, tuple(copies)


def _copy(source: Path, copy: Path) -> None:
    # links in a folder of that account's own are not followed
    with (
        storing(str(copy)),
        source.open("rb") as given,
        DirFd.open(copy.parent) as held,
        held.new(copy.name, 0o644) as made,
    ):
        while chunk := given.read(1 << 20):
            made.write(chunk)


def _job(guest: Guest, argv: tuple[str, ...], hosting: Hosting) -> probe.Job:
    account = hosting.account
    spec = probe.Spec(
        argv=argv,
        env={"PATH": os.environ.get("PATH", os.defpath), "TMPDIR": _TEMPORARY},
        # A private folder: programs of its account can look around there, through /proc.
        cwd=str(hosting.run),
        stdout=str(hosting.outputs / "console.txt"),
        stderr=str(hosting.outputs / "qemu.stderr"),
        uid=None if account is None else account.pw_uid,
        gid=None if account is None else _group(guest, account),
        thp_disable=qemu.thp_disable(guest.backing),
        cgroup_procs=tuple(str(path) for path in hosting.leaf.procs_files),
        cpus=hosting.cpus,
        announce=True,
        limits=probe.Limits(stream_bytes=_MOST_OF_CONSOLE, rooms=(_TEMPORARY, str(hosting.run))),
        opens=guest.opened or msgspec.UNSET,
    )
    return probe.Job.below(hosting.outputs, "qemu", spec)


def _group(guest: Guest, account: pwd.struct_passwd) -> int:
    # for KVM the group that may open its device, where there is one (Debian's `kvm`)
    if guest.accelerator == "kvm":
        with suppress(OSError):
            device = Path("/dev/kvm").stat()
            if device.st_gid != 0 and device.st_mode & stat.S_IRGRP and device.st_mode & stat.S_IWGRP:
                return device.st_gid
    return account.pw_gid


def _listen(hosting: Hosting, name: str, undo: ExitStack) -> socket.socket:
    # any account that may enter the folder may connect; `_accept` checks who did
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
    serving: Serving
    outputs: Path
    end: float
    patience: float
    guest: Guest

    def connected(self, listener: socket.socket) -> socket.socket:
        while True:
            self._until(listener, self._late("QEMU did not start"), began=False)
            connected, _ = listener.accept()
            if peer(connected) == self.serving.pid:
                return connected
            connected.close()

    def hello(self, agent: socket.socket) -> None:
        silent = self._late("the guest did not say hello")
        while True:
            self._until(agent, silent, began=True)
            received = agent.recv(_HELLO_BYTES, socket.MSG_PEEK)
            if b"\n" in received:
                return
            if not received:
                raise self._over(began=True)
            if len(received) == _HELLO_BYTES or time.monotonic() > self.end:
                raise self._error(silent, _LONGER)
            time.sleep(_PAUSE_S)

    def _until(self, readable: socket.socket, late: str, *, began: bool) -> None:
        left = max(0.0, self.end - time.monotonic())
        watched: list[socket.socket | int] = [readable, self.serving.launcher]
        ready, _, _ = select.select(watched, [], [], left)
        if readable not in ready:
            raise self._over(began=began) if ready else self._error(late, _LONGER)

    def _late(self, what: str) -> str:
        return f"{what} within the {format_duration(self.patience)} that the guest may take to boot"

    def _error(self, message: str, hint: str) -> MachineError:
        error = exit_error(message, self.outputs)
        error.hint = hint
        return error

    def _over(self, *, began: bool) -> MachineError:
        select.select([self.serving.launcher], [], [], _TO_LEAVE_S)
        end = exit_status(self.serving)
        if end is None or end:
            return exit_error("the guest did not say hello", self.outputs, end)
        if began:
            hint = f"a kernel with too little memory ends so: give the guest more than {format_size(self.guest.memory)}"
            return self._error("the guest ended before it said hello", hint)
        hint = f"it takes a word as a question and answers it: see {self.outputs / 'guest-argv.json'}"
        return self._error("QEMU ended without an error, and booted no guest", hint)


def _pin(qmp: Qmp, pid: int, guest: Guest, hosting: Hosting) -> None:
    # QEMU may use all of the CPUs.
    cpus = hosting.cpus
    if not guest.pins and (cpus is None or guest.cpus == 1 or len(cpus) < guest.cpus):
        return
    wanted = guest.pins or tuple((cpu,) for cpu in cpus or ())
    threads = Path(f"/proc/{pid}/task")
    with parse_foreign("QEMU", "what its monitor says of its CPUs"):
        for vcpu in qmp.execute("query-cpus-fast"):
            thread, place = int(vcpu["thread-id"]), wanted[int(vcpu["cpu-index"])]
            # A QEMU that a guest has taken over may name any thread of this host.
            if (threads / str(thread)).is_dir():
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(thread, place)


def _discard(paths: Iterable[Path]) -> None:
    for path in paths:
        with suppress(OSError):
            path.unlink(missing_ok=True)
