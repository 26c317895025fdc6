"""Which QEMU guests have, which accelerator and why, and whom QEMU runs as."""

import os
import pwd
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hugewise.errors import MachineError, UserError
from hugewise.guests import hypervisor
from hugewise.guests.boot import Hosting
from hugewise.guests.hypervisor import TRIAL_S, Choice, NoKvm, choose, qemu_account, refusal
from hugewise.model.guest import HARDWARE, Architecture
from tests.build import known
from tests.build.guests import kernel
from tests.requirements import need_program, need_root


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """No answer of one test reaches another."""
    hypervisor._known.clear()
    yield
    hypervisor._known.clear()


def host(folder: Path, flags: str = "fpu vmx sse2", *, device: bool = True) -> Path:
    (folder / "proc").mkdir()
    (folder / "dev").mkdir()
    (folder / "proc/cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t: none\n")
    if device:
        (folder / "dev/kvm").touch()
    return folder


@pytest.mark.parametrize("flags", ["fpu vmx", "svm", "a svm b"])
def test_a_host_that_may_have_it_is_tried(tmp_path: Path, flags: str) -> None:
    assert refusal("x86-64", host(tmp_path, flags), "x86_64") is None


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    no_kvm = known(refusal("arm64", host(tmp_path), "x86_64"))
    assert "this host is x86_64 and the guest arm64" in no_kvm.why
    assert no_kvm.cure == "measure on a KVM host of arm64"
    assert refusal("arm64", tmp_path, "aarch64") is None  # it has no such flags


def test_a_processor_without_virtualisation_is_refused_though_the_device_is_there(tmp_path: Path) -> None:
    no_kvm = known(refusal("x86-64", host(tmp_path, "fpu svm_lock novmx"), "x86_64"))
    assert no_kvm.why.startswith("this processor shows neither vmx nor svm")
    assert "measure on a KVM host" in no_kvm.cure


@pytest.mark.parametrize(("flags", "module"), [("vmx", "kvm_intel"), ("svm", "kvm_amd")])
def test_a_device_that_is_not_there_is_cured_by_its_module(tmp_path: Path, flags: str, module: str) -> None:
    no_kvm = known(refusal("x86-64", host(tmp_path, flags, device=False), "x86_64"))
    assert no_kvm.why == "there is no /dev/kvm"
    assert no_kvm.cure.startswith(f"sudo modprobe {module}")


class Trial:
    """Stands in for `boot`: what it was asked, and what becomes of it."""

    def __init__(self, error: str | None = None) -> None:
        self.error = error
        self.asked: list[Any] = []
        self.stopped = 0

    def __call__(self, guest: Any, _: Path, hosting: Hosting, *, program: str, timeout: float) -> Any:
        self.asked.append((guest.accelerator, timeout))
        assert program == "/usr/bin/qemu"
        assert hosting.account == qemu_account(privileged=os.geteuid() == 0)
        assert hosting.run.is_dir()
        if self.error is not None:
            raise MachineError(self.error)
        return self

    def stop(self) -> bool:
        self.stopped += 1
        return True


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hypervisor, "find_qemu", lambda *_: "/usr/bin/qemu")
    monkeypatch.setattr(hypervisor, "qemu_version", lambda _: "7.2.22")


@pytest.mark.usefixtures("installed")
def test_kvm_is_taken_when_a_guest_boots_with_it_and_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hypervisor, "refusal", lambda _: None)
    trial = Trial()
    for _ in range(2):
        assert choose(kernel(), Path("i"), attempt=trial).accelerator == "kvm"
    assert trial.asked == [("kvm", TRIAL_S)]
    assert trial.stopped == 1


@pytest.mark.usefixtures("installed")
def test_a_device_that_opens_and_boots_nothing_is_no_kvm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hypervisor, "refusal", lambda _: None)
    trial = Trial("the guest did not say hello\n  QEMU: failed to set MSR 0x10a")
    for _ in range(2):
        choice = choose(kernel(), Path("i"), attempt=trial)
        assert choice.accelerator == "tcg"
        assert choice.why.endswith("within 10 s: the guest did not say hello; QEMU: failed to set MSR 0x10a")
        assert "dmesg" in known(choice.cure)
    assert len(trial.asked) == 1


@pytest.mark.usefixtures("installed")
def test_an_account_that_is_not_let_in_is_told_so_by_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may open the device, and its QEMU, which is nobody's, may not."""
    monkeypatch.setattr(hypervisor, "refusal", lambda _: None)
    trial = Trial("QEMU did not start\n  QEMU: Could not access KVM kernel module: Permission denied")
    assert "usermod -aG kvm" in known(choose(kernel(), Path("i"), attempt=trial).cure)


@pytest.mark.usefixtures("installed")
def test_nothing_is_booted_where_it_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hypervisor, "refusal", lambda _: NoKvm("no device", "modprobe kvm"))
    trial = Trial()
    assert choose(kernel(), Path("i"), attempt=trial) == Choice("tcg", "no KVM: no device", "modprobe kvm")
    assert trial.asked == []


def test_a_missing_qemu_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for arch, package in (("x86-64", "qemu-system-x86"), ("arm64", "qemu-system-arm")):
        missing = known(hypervisor.missing(arch))  # type: ignore[arg-type]
        assert missing.package == package
        with pytest.raises(UserError) as raised:
            hypervisor.find_qemu(arch)  # type: ignore[arg-type]
        assert raised.value.hint == f"apt install {package}"


def test_a_qemu_says_its_version() -> None:
    path = need_program("qemu-system-x86_64", "qemu-system-x86")
    output = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    assert hypervisor.qemu_version(path) in output
    assert hypervisor.qemu_version(path)[0].isdigit()
    assert hypervisor.missing("x86-64") is None


def test_what_is_no_qemu_has_no_version() -> None:
    with pytest.raises(MachineError, match=r"/bin/true --version failed: true \(GNU coreutils\)"):
        hypervisor.qemu_version("/bin/true")
    with pytest.raises(MachineError, match="No such file"):
        hypervisor.qemu_version("/nowhere/qemu")


OWN = Path(f"/dev/shm/hugewise-{os.getpid()}")

pytestmark = pytest.mark.host  # others look there for what a run left


def test_only_root_gives_qemu_another_account() -> None:
    assert hypervisor.qemu_account(privileged=True) == pwd.getpwnam("nobody")
    assert hypervisor.qemu_account(privileged=False) is None


def test_one_boot_has_a_folder_of_its_own_and_everything_goes_with_it() -> None:
    with pytest.raises(ValueError, match="it failed"), hypervisor.single_boot() as hosting:
        assert hosting.run.parent == hosting.outputs.parent == OWN
        assert hosting.outputs.stat().st_uid == os.geteuid()
        assert hosting.outputs.stat().st_mode & 0o777 == 0o700
        (hosting.outputs / "console.txt").touch()
        (hosting.run / "agent").touch()
        raise ValueError("it failed")
    assert not OWN.exists()


def test_under_root_the_account_of_attempts_can_enter_its_folder_and_no_other() -> None:
    need_root()
    nobody = pwd.getpwnam("nobody")
    with hypervisor.single_boot() as hosting:
        assert hosting.account == nobody
        assert (hosting.run.stat().st_uid, hosting.run.stat().st_gid) == (nobody.pw_uid, nobody.pw_gid)
        for folder, may in ((hosting.run, True), (hosting.outputs, False)):
            done = subprocess.run(["/usr/bin/test", "-w", str(folder), "-a", "-x", str(folder)], user=nobody.pw_uid,
                                  group=nobody.pw_gid, extra_groups=[], check=False)  # fmt: skip
            assert (done.returncode == 0) == may, folder


def test_what_a_killed_process_left_is_removed() -> None:
    ended = subprocess.Popen(["/bin/true"])
    ended.wait()
    left = OWN.with_name(f"hugewise-{ended.pid}")
    (left / "run").mkdir(parents=True)
    (left / "run/kernel").touch()
    with hypervisor.single_boot():
        assert not left.exists()


HERE: Architecture = next(arch for arch, hardware in HARDWARE.items() if hardware == os.uname().machine)
OTHER: Architecture = next(arch for arch in HARDWARE if arch != HERE)
RHEL = "/usr/libexec/qemu-kvm"


def alone(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host where this is the one QEMU."""
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.setattr(os, "access", lambda each, _: each == path)


def test_a_qemu_by_its_path_is_taken_before_all_others(tmp_path: Path) -> None:
    own = tmp_path / "qemu"
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    assert hypervisor.find_qemu("x86-64", str(own)) == str(own)
    assert hypervisor.missing("arm64", str(own)) is None
    own.chmod(0o644)
    lacking = hypervisor.missing("arm64", str(own))
    assert lacking is not None
    assert (lacking.reason, lacking.package) == (f"{own}: no such program for guests of arm64", None)
    with pytest.raises(UserError, match=f"{own}: no such program") as raised:
        hypervisor.find_qemu("x86-64", str(own))
    assert raised.value.hint == "name QEMU's program, or remove qemu from [guest]"


@pytest.mark.parametrize("path", [RHEL, "/usr/bin/qemu-kvm"])
def test_rhels_qemu_is_taken_where_the_usual_one_is_not_there(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is for guests of the host's own architecture."""
    alone(path, monkeypatch)
    assert hypervisor.find_qemu(HERE) == path
    assert hypervisor.missing(HERE) is None
    assert hypervisor.missing(OTHER) is not None
    with pytest.raises(UserError, match=f"for guests of {OTHER}"):
        hypervisor.find_qemu(OTHER)


def test_the_usual_qemu_goes_before_rhels(monkeypatch: pytest.MonkeyPatch) -> None:
    alone(RHEL, monkeypatch)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    assert hypervisor.find_qemu("x86-64") == "/usr/bin/qemu-system-x86_64"
