"""Guests for tests that boot one: Debian's kernels, and the agent alone as their user space."""

import os
import pwd
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hugewise.errors import HugewiseError
from hugewise.guests import hypervisor, image, kernels
from hugewise.guests.boot import BootedGuest, Hosting, boot
from hugewise.host import journal
from hugewise.machine.agent import Agent
from hugewise.model.guest import Architecture, Guest, Kernel
from hugewise.model.workload import Missing
from hugewise.study.guest import KernelUse
from tests.build.guests import guest
from tests.guests import boarded, runs
from tests.requirements import need, need_root
from tests.state import page_state

_SUITE = "trixie"


@dataclass(frozen=True)
class Bootable:
    """A kernel with its initramfs, and the QEMU for it."""

    kernel: Kernel
    initramfs: Path
    program: str

    def guest(self, **other: Any) -> Guest:
        """A guest of 256 MiB with base pages (which no setting of the host can take away), or what is named instead."""
        return guest(self.kernel.arch, **{"kernel": self.kernel, **other})

    def boot(self, hosting: Hosting, timeout: float | None = None, **other: Any) -> BootedGuest:
        """Boot such a guest."""
        return boot(self.guest(**other), self.initramfs, hosting, program=self.program, timeout=timeout)

    @contextmanager
    def spoken(self, hosting: Hosting, **other: Any) -> Iterator[tuple[BootedGuest, Agent]]:
        """Boot such a guest, and hear its agent say hello."""
        with self.boot(hosting, **other) as booted:
            agent = Agent(booted.agent, "guest a test's", booted.error)
            agent.hello()
            yield booted, agent
            agent.close()


def bootable(package: str, arch: Architecture) -> Bootable:
    """Debian's kernel of that package, fetched if need be. Nothing is installed."""
    lacking = hypervisor.missing(arch)
    need(lacking is None, "" if lacking is None else f"{lacking.reason} (apt install {lacking.package})")
    agent = image.guest_probe(arch)
    need(not isinstance(agent, Missing), agent.reason if isinstance(agent, Missing) else "")
    try:
        kernel = kernels.provide(KernelUse(name=package, package=package), arch, _SUITE, lambda _: None)
    except HugewiseError as error:
        need(condition=False, requirement=f"Debian's package {package} ({error.message})")
        raise
    return Bootable(kernel, image.build(kernel), hypervisor.find_qemu(arch))


@pytest.fixture(scope="session")
def x86() -> Bootable:
    """Debian's kernel for x86-64 clouds."""
    return bootable("linux-image-cloud-amd64", "x86-64")


@pytest.fixture(scope="session")
def arm64() -> Bootable:
    """Debian's kernel for arm64, with base pages of 4 KiB."""
    return bootable("linux-image-arm64", "arm64")


@pytest.fixture(scope="session")
def arm64_16k() -> Bootable:
    """Debian's kernel for arm64, with base pages of 16 KiB."""
    return bootable("linux-image-arm64-16k", "arm64")


@pytest.fixture
def hosting(tmp_path: Path) -> Iterator[Hosting]:
    """Folders for one guest; under root QEMU runs as nobody."""
    account = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
    # pytest's own folder has too long a name for a socket.
    with tempfile.TemporaryDirectory(prefix="hw-", dir="/tmp") as folder:
        Path(folder).chmod(0o711)
        yield Hosting(outputs=tmp_path, run=Path(folder), account=account)


@pytest.fixture
def yard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[boarded.Yard]:
    """Guests that are not booted, and what would be."""
    with boarded.yard(tmp_path, monkeypatch) as made:
        yield made


@pytest.fixture
def nothing_left(x86: Bootable) -> Iterator[set[str]]:
    """Root, and Debian's kernel in the cache; what was there before, and nothing else is there afterwards."""
    need_root()
    assert x86.kernel.arch == "x86-64"
    state, before = page_state(), runs.left()
    yield before
    journal.restore()
    assert runs.not_as(state) == {}
    assert runs.left() - before == set()
