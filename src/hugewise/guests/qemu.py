"""QEMU's command line for a guest (pure), and QEMU's monitor by the optional library qemu.qmp.

Source of the options: qemu(1); docs/system of QEMU 7.2, the oldest version that this was tried with.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import logging
import socket
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any, Literal, TypeVar

import msgspec

from hugewise.errors import MachineError, UserError
from hugewise.model.guest import PAGE_OF, Architecture, Backing, BackingCell, Guest

PROGRAMS: dict[Architecture, str] = {"x86-64": "qemu-system-x86_64", "arm64": "qemu-system-aarch64"}

# The virtio-serial port through which the agent is spoken to.
PORT = "hugewise"
# The descriptor of the first file of the guest's disks, which the launcher opens in the order of `Guest.drives`.
FIRST_DISK_FD = 3

_CLOCK = "clock=vm,base=2024-01-01T00:00:00"
# The buffer of translated code, in MiB. QEMU's default is as large as a guest and would look like one in smaps; with 64
# a compiler is translated over and over (four compiles by gcc took 49 s of QEMU's CPU time, and 26 s with this).
_TRANSLATIONS_MIB = 384
_MIB = 1 << 20


class QemuPlaces(msgspec.Struct, frozen=True, kw_only=True):
    """Files that QEMU is to open, by paths that its account can reach.

    kernel, initramfs   as QEMU is to open them (they may be copies of the guest's)
    agent, qmp          unix sockets on which this process listens; QEMU connects to them when it starts
    hugetlbfs           folders of mounted hugetlbfs by page size in bytes, for the backing `file`
    tap                 a tap interface that is there, for the network `tap`
    threads             of QEMU that get the memory before the guest boots
    """

    kernel: str
    initramfs: str
    agent: str
    qmp: str
    hugetlbfs: Mapping[int, str] = {}
    tap: str | None = None
    threads: int = 1


def thp_disable(backing: Backing) -> Literal["none", "all"]:
    """Return the launcher's prctl setting for QEMU: it enforces base pages, whatever QEMU advises."""
    return "all" if "base" in backing.kinds else "none"


def argv(guest: Guest, *, program: str, places: QemuPlaces) -> tuple[str, ...]:
    """Return the words that start `guest`, which a study's rules have checked; the console is on standard output."""
    words = [program, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
    words += ["-name", "hugewise", "-machine", _machine(guest), "-accel", _accelerator(guest)]
    words += ["-cpu", cpu_model(guest), "-smp", str(guest.cpus), "-m", f"size={guest.memory // _MIB}M"]
    words += [*_all_memory(guest, places), "-seed", str(guest.seed)]
    if guest.counting:
        words += ["-icount", "shift=0,sleep=off", "-rtc", _CLOCK]
    words += ["-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console"]
    words += ["-chardev", f"socket,id=qmp,path={_plain(places.qmp)},server=off", "-mon", "chardev=qmp,mode=control"]
    words += ["-chardev", f"socket,id=agent,path={_plain(places.agent)},server=off"]
    words += ["-device", _device(guest, "virtio-serial-pci", "id=ports,max_ports=2")]
    words += ["-device", f"virtserialport,bus=ports.0,chardev=agent,name={PORT}"]
    words += _drives(guest)
    words += _network(guest, places.tap)
    return (*words, "-kernel", places.kernel, "-initrd", places.initramfs, "-append", _append(guest))


def _machine(guest: Guest) -> str:
    # The older machine has fewer devices with timers of their own.
    name = "virt" if guest.arch == "arm64" else "pc" if guest.counting else "q35"
    return name if guest.backing.cells else f"{name},memory-backend=ram"


def _accelerator(guest: Guest) -> str:
    if guest.accelerator == "kvm":
        return "kvm"
    return f"tcg,thread={'single' if guest.cpus == 1 else 'multi'},tb-size={_TRANSLATIONS_MIB}"


def cpu_model(guest: Guest) -> str:
    """Return the CPU model as QEMU is told it: that of the guest, less what emulation does badly."""
    named = guest.cpu.partition(",")[0]
    if guest.accelerator == "kvm":
        return guest.cpu
    if guest.arch == "arm64":
        # The architected algorithm of pointer authentication takes most of the time of an emulated boot (40 s against
        # 18 s), and an implementation may have any: QEMU, docs/system/arm/cpu-features.rst.
        return f"{guest.cpu},pauth-impdef=on" if named == "max" and "pauth" not in guest.cpu else guest.cpu
    # QEMU 7.2 leaves a wrong EFLAGS after cmpxchg16b: an interrupt just then, and the kernel dies of a double fault
    # (one boot in ten of Linux 6.12). Kernels do without that instruction where the processor does not have it.
    return guest.cpu if "cx16" in guest.cpu else f"{guest.cpu},-cx16"


def _all_memory(guest: Guest, places: QemuPlaces) -> list[str]:
    words: list[str] = []
    for number, part in enumerate(guest.backing.parts(guest.memory)):
        name = f"ram{number}" if guest.backing.cells else "ram"
        words += ["-object", _memory(name, part, guest.backing, places)]
        if guest.backing.cells:
            cpus = "".join(f",cpus={cpu}" for cpu in part.cpus)
            words += ["-numa", f"node,nodeid={number}{cpus},memdev={name}"]
    return words


def _memory(name: str, part: BackingCell, backing: Backing, places: QemuPlaces) -> str:
    rest = f"id={name},size={part.memory // _MIB}M,prealloc={_on(backing.preallocate)}"
    if backing.preallocate and places.threads > 1:
        rest += f",prealloc-threads={places.threads}"
    if part.nodes:
        rest += "".join(f",host-nodes={node}" for node in part.nodes) + ",policy=bind"
    page = PAGE_OF.get(part.pages)
    if page is None:
        return f"memory-backend-memfd,{rest},share=on" if backing.share else f"memory-backend-ram,{rest}"
    if backing.source == "memfd":
        return f"memory-backend-memfd,{rest},hugetlb=on,hugetlbsize={page // _MIB}M,share=on"
    return f"memory-backend-file,{rest},mem-path={_plain(places.hugetlbfs[page])},share=on"


def _drives(guest: Guest) -> list[str]:
    # disks are opened read-only; the guest's writes go to unnamed temporary files
    words: list[str] = []
    descriptor = FIRST_DISK_FD
    for number, disk in enumerate(guest.drives):
        options, layer = [f"if=none,id=disk{number},snapshot=on"], ""
        for file in disk.files:
            words += ["-add-fd", f"fd={descriptor},set={descriptor}"]
            options.append(f"{layer}driver={file.format}")
            options.append(f"{layer}file.driver=file,{layer}file.filename=/dev/fdset/{descriptor}")
            layer += "backing."
            descriptor += 1
        words += ["-drive", ",".join(options), "-device", _device(guest, "virtio-blk-pci", f"drive=disk{number}")]
    return words


def _device(guest: Guest, name: str, options: str) -> str:
    # Without ioeventfd the vCPU's own thread serves a request, always at the same instruction.
    return f"{name},{options},ioeventfd=off" if guest.counting else f"{name},{options}"


def _network(guest: Guest, tap: str | None) -> list[str]:
    if guest.network == "none":
        return []
    card = "virtio-net-pci,netdev=net,romfile="
    if guest.network == "user":
        return ["-netdev", "user,id=net", "-device", card]
    assert tap is not None
    # Guests on one bridge need addresses of their own; the same interface always gives the same.
    mac = ":".join(f"{byte:02x}" for byte in b"\x52\x54\x00" + hashlib.sha256(tap.encode()).digest()[:3])
    return ["-netdev", f"tap,id=net,ifname={_plain(tap)},script=no,downscript=no", "-device", f"{card},mac={mac}"]


def _append(guest: Guest) -> str:
    words = [f"console={'ttyAMA0' if guest.arch == 'arm64' else 'ttyS0'}", "quiet", "panic=-1"]
    if guest.arch == "x86-64":
        words.append("reboot=t")
        if guest.accelerator == "tcg":
            words.append("tsc=reliable")  # on a busy host the kernel's watchdog distrusts an emulated clock
    if guest.image.drive:
        words.append(f"hugewise.root={guest.image.place or '/dev/vda'}")
    return " ".join([*words, *guest.append])


def _plain(text: str) -> str:
    # a comma would end the option's value
    return text.replace(",", ",,")


def _on(flag: bool) -> str:
    return "on" if flag else "off"


LACKING, CURE = "guests need the Python package qemu.qmp", "pip install 'hugewise[vm]'"
_PATIENCE_S = 30.0
_T = TypeVar("_T")


def missing() -> bool:
    """Return whether the library is missing."""
    try:
        return importlib.util.find_spec("qemu.qmp") is None
    except ModuleNotFoundError:  # nor anything else of `qemu`
        return True


def must_be_there() -> None:
    """Raise UserError, with the cure, where the library is missing."""
    if missing():
        raise UserError(LACKING, hint=CURE)


class Qmp:
    """A monitor over a connected socket, which it takes over. Its event loop turns only while it is asked."""

    def __init__(self, connected: socket.socket) -> None:
        must_be_there()
        from qemu.qmp import QMPClient, QMPError  # noqa: PLC0415  (an extra)

        self._error = QMPError
        self._loop = asyncio.new_event_loop()
        self._client = QMPClient("hugewise")
        # The caller reports that QEMU went away; the library also logs it.
        self._client.logger.setLevel(logging.CRITICAL)
        try:
            self._do(self._client.connect(connected), _PATIENCE_S)
        except BaseException:
            connected.close()
            self.close()
            raise

    def execute(self, command: str, patience: float = _PATIENCE_S, **arguments: object) -> Any:
        """Give a command and return what it returns, as plain JSON values. Raises MachineError."""
        return self._do(self._client.execute(command, arguments or None), patience)

    def _do(self, work: Coroutine[Any, Any, _T], patience: float) -> _T:
        try:
            return self._loop.run_until_complete(asyncio.wait_for(work, patience))
        except TimeoutError:
            raise MachineError(f"QEMU's monitor does not answer within {patience:g} s") from None
        except (self._error, OSError, EOFError) as error:
            raise MachineError(f"QEMU's monitor: {error}") from None

    def close(self) -> None:
        if self._loop.is_closed():
            return
        with suppress(Exception):  # a connection that is lost already is told again here
            self._loop.run_until_complete(asyncio.wait_for(self._client.disconnect(), 1.0))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()
