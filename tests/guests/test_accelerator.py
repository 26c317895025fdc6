"""Which accelerator is chosen, and why."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hugewise.errors import MachineError, UserError
from hugewise.guests import hypervisor
from hugewise.guests.boot import Hosting
from hugewise.guests.hypervisor import TRIAL_S, Choice, NoKvm, choose, qemu_account, refusal
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
    found = known(refusal("arm64", host(tmp_path), "x86_64"))
    assert "this host is x86_64 and the guest arm64" in found.why
    assert found.cure == "measure on a KVM host of arm64"
    assert refusal("arm64", tmp_path, "aarch64") is None  # it has no such flags


def test_a_processor_without_virtualisation_is_refused_though_the_device_is_there(tmp_path: Path) -> None:
    found = known(refusal("x86-64", host(tmp_path, "fpu svm_lock novmx"), "x86_64"))
    assert found.why.startswith("/dev/kvm is there, but this processor shows neither vmx nor svm")
    assert "measure on a KVM host" in found.cure


def test_a_device_of_a_module_that_does_without_the_processor_is_named(tmp_path: Path) -> None:
    """It opens; to turn virtualisation on in the firmware is no cure of it."""
    here = host(tmp_path, "fpu hypervisor")
    for module in ("kvm", "kvm_amd", "kvm_pvm"):  # kvm_amd may be built in, and is no module of such a device
        (here / "sys/module" / module).mkdir(parents=True)
    found = known(refusal("x86-64", here, "x86_64"))
    assert found.why == (
        "/dev/kvm is there by kvm_pvm, but this processor shows neither vmx nor svm, which a guest with a stock kernel"
        " needs to boot with it"
    )
    assert "firmware" not in found.cure
    assert "nested" in found.cure


def test_without_a_device_virtualisation_is_to_be_turned_on(tmp_path: Path) -> None:
    found = known(refusal("x86-64", host(tmp_path, "fpu", device=False), "x86_64"))
    assert "the firmware hides them" in found.why
    assert "turn virtualisation on" in found.cure


@pytest.mark.parametrize(("flags", "module"), [("vmx", "kvm_intel"), ("svm", "kvm_amd")])
def test_a_device_that_is_not_there_is_cured_by_its_module(tmp_path: Path, flags: str, module: str) -> None:
    found = known(refusal("x86-64", host(tmp_path, flags, device=False), "x86_64"))
    assert found.why == "there is no /dev/kvm"
    assert found.cure.startswith(f"sudo modprobe {module}")


@pytest.mark.parametrize(("mode", "group", "cure"), [(0o660, 12345, "usermod -aG 12345 "), (0o600, 0, "chgrp kvm ")])
def test_a_device_that_may_not_be_opened_is_cured_by_its_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, group: int, cure: str
) -> None:
    """Root opens anything: what the kernel says to anybody else is put in its place."""
    need_root()
    device = host(tmp_path) / "dev/kvm"
    os.chown(device, 0, group)
    device.chmod(mode)

    def opened(path: Path, flags: int) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "open", opened)
    found = known(refusal("arm64", tmp_path, "aarch64"))
    assert found.why == "/dev/kvm may not be opened by root"
    assert cure in found.cure


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
        found = choose(kernel(), Path("i"), attempt=trial)
        assert found.accelerator == "tcg"
        assert found.why.endswith("within 10 s: the guest did not say hello; QEMU: failed to set MSR 0x10a")
        assert "dmesg" in known(found.cure)
    assert len(trial.asked) == 1


@pytest.mark.usefixtures("installed")
def test_an_account_that_is_not_let_in_is_told_so_by_the_trial(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Root may open the device, and its QEMU, which is nobody's, may not."""
    device = tmp_path / "kvm"
    device.touch()
    monkeypatch.setattr(hypervisor, "refusal", lambda _: None)
    monkeypatch.setattr(hypervisor, "_DEVICE", device)
    trial = Trial("QEMU did not start\n  QEMU: Could not access KVM kernel module: Permission denied")
    assert "chgrp kvm" in known(choose(kernel(), Path("i"), attempt=trial).cure)


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
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    assert hypervisor.qemu_version(path) in said
    assert hypervisor.qemu_version(path)[0].isdigit()
    assert hypervisor.missing("x86-64") is None


def test_what_is_no_qemu_has_no_version() -> None:
    with pytest.raises(MachineError, match=r"/bin/true --version failed: true \(GNU coreutils\)"):
        hypervisor.qemu_version("/bin/true")
    with pytest.raises(MachineError, match="No such file"):
        hypervisor.qemu_version("/nowhere/qemu")
