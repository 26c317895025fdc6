"""Guests that are really booted, under TCG: they come up, and they go, whatever happens to them or to hugewise."""

import os
import pwd
import re
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hugewise.errors import MachineError
from hugewise.guests import boot as last_words
from hugewise.guests import hypervisor, kernels, resources
from hugewise.guests.boot import BootedGuest, Hosting, boot, filling_s, plain_lines
from hugewise.guests.image import extended
from hugewise.machine import probe
from hugewise.machine.machine import Serving
from hugewise.model.guest import Backing
from hugewise.study.load import parse
from tests.build import known
from tests.build.guests import MIB, guest, kernel
from tests.guests.conftest import Bootable
from tests.guests.runs import FAULT
from tests.requirements import need, need_program
from tests.wait import has_ended, until

BASE = Backing(pages="base")
_PATIENCE_S = 60.0
ONE_UP = ("maxcpus=1",)
"""Whatever QEMU emulates, the kernel brings one processor up: the emulator is known to bring down those with more."""


def qemu_of(hosting: Hosting) -> int:
    """The process that the launcher said it started."""
    lines = (hosting.outputs / "qemu.jsonl").read_bytes().splitlines(keepends=True)
    return next(event.pid for event in probe.decode(lines) if isinstance(event, probe.Start))


def test_a_guest_comes_up_as_its_account_with_its_backing_and_goes(x86: Bootable, hosting: Hosting) -> None:
    with x86.spoken(hosting, backing=BASE) as (booted, agent):
        hello = agent.hello()
        assert (hello.arch, hello.release, hello.page_size) == ("x86_64", x86.kernel.release, 4096)
        status = Path(f"/proc/{booted.pid}/status").read_text()
        account = hosting.account or pwd.getpwuid(os.geteuid())
        assert f"Uid:\t{account.pw_uid}\t{account.pw_uid}\t{account.pw_uid}\t{account.pw_uid}" in status
        proof = booted.prove()
        assert proof.accepted, proof.why
        assert proof.bytes == {"base": 256 * MIB}
        assert "KernelPageSize:        4 kB" in (hosting.outputs / "smaps.txt").read_text()
        assert booted.qmp.execute("query-status")["running"] is True
        assert not booted.ended()
        # Nothing can connect any more, and nothing is there to be replaced.
        assert not {"agent", "qmp"} & {path.name for path in hosting.run.iterdir()}
        assert booted.stop()
        assert booted.ended()
    until(lambda: has_ended(booted.pid), "QEMU has ended")
    assert list(hosting.run.iterdir()) == []
    argv = msgspec.json.decode((hosting.outputs / "guest-argv.json").read_bytes())
    assert argv[0] == x86.program
    assert "tcg,thread=single,tb-size=384" in argv


@pytest.mark.soak
def test_qemu_reads_its_disk_from_where_its_account_cannot_go(x86: Bootable, hosting: Hosting, tmp_path: Path) -> None:
    """It began in root's folder of the disk, so that all processes of its account could look around there."""
    need_program("mkfs.ext4", "e2fsprogs")
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    disk = private / "root.ext4"
    disk.touch(mode=0o600)
    os.truncate(disk, 8 * MIB)
    (tmp_path / "system/bin").mkdir(parents=True)
    (tmp_path / "system/bin/sh").touch()  # by which the agent knows the root folder of a system
    subprocess.run(["mkfs.ext4", "-q", "-d", str(tmp_path / "system"), str(disk)], check=True)
    with x86.boot(hosting, backing=BASE, root=str(disk)) as booted:
        assert Path(f"/proc/{booted.pid}/cwd").readlink() == hosting.run
        assert disk in {path.readlink() for path in Path(f"/proc/{booted.pid}/fd").iterdir()}
        by_name = {path["device"]: path["inserted"] for path in booted.qmp.execute("query-block")}["disk0"]
        assert (by_name["ro"], by_name["image"]["virtual-size"]) == (False, 8 * MIB)


@pytest.mark.soak
def test_a_guest_that_powers_off_is_gone_before_it_is_stopped(x86: Bootable, hosting: Hosting) -> None:
    with x86.spoken(hosting, backing=BASE) as (booted, agent):
        agent.poweroff()
        booted.serving.stop(signal.SIGCONT, _PATIENCE_S)  # waits for its end, and does nothing to it
        assert booted.ended()
        assert booted.stop()
    ends = [event for event in booted.serving.events() if isinstance(event, probe.Exit)]
    assert [(end.code, end.killed) for end in ends] == [(0, 0)]


def test_a_pool_without_pages_is_an_error_in_qemus_words(x86: Bootable, hosting: Hosting) -> None:
    pool = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
    need(pool.exists() and int(pool.read_text()) < 128, "a short pool of hugetlb pages of 2 MiB")
    with pytest.raises(MachineError, match=r"did not say hello; QEMU failed \(exit status 1\)") as raised:
        x86.boot(hosting, backing=Backing(pages="hugetlb-2m"))
    assert "QEMU: " in raised.value.message
    assert "Cannot allocate memory" in raised.value.message


@pytest.mark.soak
def test_a_guest_that_panics_before_it_says_hello(x86: Bootable, hosting: Hosting) -> None:
    with pytest.raises(MachineError, match="the guest ended before it said hello") as raised:
        x86.boot(hosting, backing=BASE, append=("rdinit=/nothing",))
    assert "Kernel panic - not syncing" in raised.value.message
    until(lambda: has_ended(qemu_of(hosting)), "QEMU has ended")


@pytest.mark.soak
def test_a_guest_without_room_to_boot(x86: Bootable, hosting: Hosting) -> None:
    with pytest.raises(MachineError, match="the guest ended before it said hello") as raised:
        x86.boot(hosting, backing=BASE, memory=32 * MIB)
    assert "too little memory" in known(raised.value.hint)
    until(lambda: has_ended(qemu_of(hosting)), "QEMU has ended")


FATAL = "Kernel panic - not syncing: Fatal exception in interrupt"
HALF_PATCHED = "Oops: int3: 0000 [#1] PREEMPT SMP NOPTI"
PANIC = Path(__file__).parent / "panic.txt"


@pytest.mark.soak
def test_a_panic_that_the_emulator_is_known_for_is_told_from_the_console(x86: Bootable, hosting: Hosting) -> None:
    """HUGEWISE_WRITE_GOLDEN=1 records the console for the test below."""
    with (
        x86.spoken(hosting, backing=BASE, cpus=2, append=ONE_UP) as (_, agent),
        pytest.raises(MachineError, match="sysrq triggered crash") as raised,
    ):
        for line in (HALF_PATCHED, FATAL):
            agent.write("/dev/kmsg", f"<0>{line}")
        agent.write("/proc/sysrq-trigger", "c")
    assert raised.value.emulator
    if os.environ.get("HUGEWISE_WRITE_GOLDEN") == "1":
        text = plain_lines((hosting.outputs / "console.txt").read_text(errors="replace"))
        first = next(number for number, line in enumerate(text) if HALF_PATCHED in line)
        PANIC.write_text("".join(f"{line}\n" for line in text[first:]))


@pytest.mark.parametrize(
    ("cpus", "words", "emulator"),
    [
        (2, (HALF_PATCHED, FATAL), True),
        (2, (HALF_PATCHED.removeprefix("Oops: "), FATAL), True),  # before Linux 6.10
        (2, ("Oops: Oops: 0000 [#1] PREEMPT SMP NOPTI", "Oops: int3: 0000 [#2] PREEMPT SMP NOPTI", FATAL), False),
        (2, (HALF_PATCHED,), False),  # the guest went on, and panicked of something else
        (1, (HALF_PATCHED, FATAL), False),  # nobody else patches its instructions
    ],
)
def test_a_panic_is_told_from_one_that_the_emulator_is_known_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpus: int, words: tuple[str, ...], emulator: bool
) -> None:
    """By the recorded console of a guest, with other words in the place of its own."""
    recorded = PANIC.read_text()
    assert (recorded.count(HALF_PATCHED), recorded.count(FATAL)) == (1, 1)
    begun, _, rest = recorded.partition(HALF_PATCHED)
    (tmp_path / "console.txt").write_text(begun + "\n".join(words) + rest.partition(FATAL)[2])
    monkeypatch.setattr(last_words, "exit_status", lambda *_: None)
    asked: Any = None  # neither its QEMU nor its sockets are looked at
    booted = BootedGuest(guest(cpus=cpus), Hosting(outputs=tmp_path, run=tmp_path), asked, asked, asked)
    found = booted.error("it is gone")
    assert "sysrq triggered crash" in found.message
    assert found.emulator is emulator


@pytest.mark.soak
def test_a_qemu_that_is_killed_beneath_its_guest_says_so(x86: Bootable, hosting: Hosting) -> None:
    with (
        x86.spoken(hosting, backing=BASE) as (booted, agent),
        pytest.raises(MachineError, match=r"QEMU was killed \(signal 9\)"),
    ):
        os.kill(booted.pid, signal.SIGKILL)
        agent.read("/proc/uptime")


def test_a_guest_that_says_nothing_is_ended(x86: Bootable, hosting: Hosting) -> None:
    with pytest.raises(MachineError, match="did not"):
        x86.boot(hosting, timeout=0.3, backing=BASE)
    until(lambda: has_ended(qemu_of(hosting)), "QEMU has ended")
    assert list(hosting.run.iterdir()) == []


def test_who_connects_and_is_not_the_guest_is_turned_away(
    x86: Bootable, hosting: Hosting, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:

        def intruded(*given: Any, **named: Any) -> Any:
            """It is there before QEMU is."""
            stranger.connect(str(hosting.run / "agent"))
            stranger.sendall(b'{"hello": {}}\n')
            return Serving(*given, **named)

        monkeypatch.setattr(last_words, "Serving", intruded)
        with x86.spoken(hosting, backing=BASE) as (_, agent):
            assert agent.hello().release == x86.kernel.release
        with suppress(ConnectionResetError):  # what it sent was never read
            assert stranger.recv(1) == b""


@pytest.mark.soak
def test_a_kernel_is_asked_by_the_account_of_attempts(
    x86: Bootable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot read the kernel and the initramfs where they lie: pytest's folders, and root's cache, are private."""
    uids: list[str] = []

    def watched(*arguments: Any, **named: Any) -> BootedGuest:
        booted = boot(*arguments, **named)
        uids.extend(re.findall(r"^Uid:\s+(\d+)", Path(f"/proc/{booted.pid}/status").read_text(), re.MULTILINE))
        return booted

    monkeypatch.setenv("HUGEWISE_CACHE", str(tmp_path))
    monkeypatch.setattr("hugewise.guests.hypervisor.boot", watched)
    monkeypatch.setattr(kernels, "provide", lambda *_: x86.kernel)
    had = resources.provide(parse(FAULT, "s.toml"), lambda _: resources.ImagePackages((), ()), lambda _: None)
    found = had.surveys["debian"]
    assert not isinstance(found, str)
    assert (found.release, found.page_size) == (x86.kernel.release, 4096)
    assert uids == [str(pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else os.geteuid())]
    assert not Path(f"/dev/shm/hugewise-{os.getpid()}").exists()


def test_kvm_is_taken_only_where_it_boots(x86: Bootable, hosting: Hosting) -> None:
    hypervisor._known.clear()
    choice = hypervisor.choose(x86.kernel, x86.initramfs)
    assert hypervisor.choose(x86.kernel, x86.initramfs) == choice
    if hypervisor.refusal("x86-64") is not None:
        assert choice.accelerator == "tcg"
        assert choice.why == f"no KVM: {known(hypervisor.refusal('x86-64')).why}"
    elif choice.accelerator == "kvm":
        with x86.boot(hosting, accelerator="kvm", cpu="host", backing=BASE) as booted:
            assert booted.qmp.execute("query-kvm") == {"enabled": True, "present": True}
    else:
        assert choice.why.startswith("no KVM: a guest does not boot with it within 10 s: ")


@pytest.mark.boots
@pytest.mark.parametrize(("kind", "page"), [("arm64", 4096), ("arm64_16k", 16384)])
@pytest.mark.soak
def test_guests_of_arm64_have_the_base_page_of_their_kernel(
    request: pytest.FixtureRequest, hosting: Hosting, kind: str, page: int
) -> None:
    kind_of: Bootable = request.getfixturevalue(kind)
    with kind_of.spoken(hosting, backing=BASE) as (booted, agent):
        hello = agent.hello()
        assert (hello.arch, hello.page_size) == ("aarch64", page)
        assert booted.prove().accepted


# What a counting guest is asked after a second: the time that init has run and waited, in ns (with `-icount shift=0`
# an instruction takes one), where the kernel and init lie, and random numbers of the kernel.
DRAWN = ("/proc/1/schedstat", "/proc/modules", "/proc/1/maps", "/proc/sys/kernel/random/uuid")


@pytest.mark.boots
@pytest.mark.parametrize(("kind", "cpu"), [("x86", "max,-erms,-fsrm"), ("arm64", "neoverse-n1")])
@pytest.mark.soak
def test_the_seed_alone_decides_what_a_counting_guest_does_to_the_instruction(
    request: pytest.FixtureRequest, hosting: Hosting, kind: str, cpu: str
) -> None:
    """Where the kernel and programs lie is drawn from it too: guests of another seed differ in everything.

    On one CPU, as boarding has it.
    """
    kind_of: Bootable = request.getfixturevalue(kind)
    reads = [b'{"id":%d,"do":"read","path":"%s"}\n' % (number, path.encode()) for number, path in enumerate(DRAWN, 2)]
    orders = b'{"id":1,"do":"settle","seconds":1}\n' + b"".join(reads)
    image = extended(kind_of.initramfs, {"/orders.jsonl": orders}, hosting.outputs / "initramfs")
    pinned = msgspec.structs.replace(hosting, cpus=(max(os.sched_getaffinity(0)),))

    def drawn(seed: int) -> list[str]:
        asked = kind_of.guest(counting=True, cpu=cpu, seed=seed, backing=BASE)
        with boot(asked, image, pinned, program=kind_of.program) as booted, booted.agent.makefile("rb") as lines:
            assert b'"hello"' in lines.readline()
            assert lines.readline() == b'{"id":1,"ok":{}}\n'
            return [msgspec.json.decode(lines.readline())["ok"]["text"] for _ in DRAWN]

    first, again = drawn(42), drawn(42)
    assert first == again
    for path, mine, others in zip(DRAWN, first, drawn(43), strict=True):
        assert mine, path
        assert mine != others, path
    assert re.fullmatch(r"[1-9]\d+ \d+ \d+\n", first[0])


@pytest.mark.soak
def test_each_vcpu_has_a_cpu_of_its_own_where_there_are_as_many(x86: Bootable, hosting: Hosting) -> None:
    there = sorted(os.sched_getaffinity(0))
    need(len(there) >= 2, "two CPUs")
    with x86.boot(
        msgspec.structs.replace(hosting, cpus=tuple(there[:2])), backing=BASE, cpus=2, append=ONE_UP
    ) as booted:
        threads = [vcpu["thread-id"] for vcpu in booted.qmp.execute("query-cpus-fast")]
        assert [os.sched_getaffinity(thread) for thread in threads] == [{there[0]}, {there[1]}]
        assert os.sched_getaffinity(booted.pid) == set(there[:2])


def test_consoles_are_told_as_text() -> None:
    message = "\x1b[2J\x1b[01;01HSeaBIOS\r\n\x1b]0;title\x07one\r\n\r\n\x1b(Btwo\x07\tthree \rfour\r\r\n"
    assert plain_lines(message) == ["SeaBIOS", "one", "two three", "four"]


def test_a_path_that_is_too_long_for_a_socket_is_named(tmp_path: Path) -> None:
    run = tmp_path / ("x" * 108)
    run.mkdir()
    there = tmp_path / "there"
    there.touch()
    with pytest.raises(MachineError, match="longer than the 107 bytes") as raised:
        boot(guest(kernel=kernel(image=str(there))), there, Hosting(outputs=tmp_path, run=run), program="/bin/true")
    assert raised.value.hint is not None


def test_a_qemu_that_ends_without_a_guest_says_nothing_of_memory(hosting: Hosting) -> None:
    """As with `-cpu help`: it lists its models where the console would be, and exits with 0."""
    there = hosting.run / "there"
    there.touch()
    with pytest.raises(MachineError, match="QEMU ended without an error, and booted no guest") as raised:
        boot(guest(kernel=kernel(image=str(there))), there, hosting, program="/bin/echo")
    assert "console: " in raised.value.message
    assert str(hosting.outputs / "guest-argv.json") in (raised.value.hint or "")


def test_a_console_without_end_ends_the_guest(hosting: Hosting) -> None:
    """QEMU's stdout is its guest's console; nothing bounded it."""
    there, program = hosting.run / "there", hosting.run / "qemu"
    there.touch()
    program.write_text("#!/bin/sh\nexec yes 'Kernel \033[2Jpanic'\n")
    program.chmod(0o755)
    hosting.run.chmod(0o755)
    with pytest.raises(MachineError, match=r"; QEMU was ended: its stdout has more than 16777216 bytes") as raised:
        boot(guest(kernel=kernel(image=str(there))), there, hosting, program=str(program), timeout=120)
    assert "\x1b" not in raised.value.message
    assert len(raised.value.message) < 4000
    assert (hosting.outputs / "console.txt").stat().st_size == 16 << 20


def test_a_guest_has_time_for_its_memory_and_is_told_how_to_have_more(hosting: Hosting) -> None:
    """100 GiB are no longer cleared in the 30 s of a small guest, nor by one thread."""
    large = guest(memory=100 << 30, accelerator="kvm")
    assert filling_s(large) == 400
    assert filling_s(guest(memory=100 << 30, backing=Backing(preallocate=False))) == 0
    there, program = hosting.run / "there", hosting.run / "qemu"
    there.touch()
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    hosting.run.chmod(0o755)
    small = guest(kernel=kernel(image=str(there)))
    wide = msgspec.structs.replace(hosting, cpus=tuple(sorted(os.sched_getaffinity(0))[:2]))
    with pytest.raises(MachineError, match=r"did not start within the 1\.1 s that the guest may") as raised:
        boot(small, there, wide, program=str(program), timeout=0.1)
    assert 'boot = "10m"' in known(raised.value.hint)
    text = (hosting.outputs / "guest-argv.json").read_text()
    assert (",prealloc-threads=2" in text) == (len(known(wide.cpus)) == 2)


def test_a_kernel_that_is_not_there_is_named(hosting: Hosting) -> None:
    with pytest.raises(MachineError, match="/kernels/k/vmlinuz: there is no such file"):
        boot(guest(), hosting.run / "initramfs", hosting, program="/bin/true")
    assert list(hosting.run.iterdir()) == []
