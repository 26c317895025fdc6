"""What a machine can be seen to offer only by doing: asking the probe, trying privileges, watching for a moment."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from hugewise import reading
from hugewise.audit.facts import HostFacts
from hugewise.audit.machines import of_host
from hugewise.audit.root import Root
from hugewise.errors import HugewiseError
from hugewise.host import cgroup
from hugewise.host.journal import JOURNAL
from hugewise.host.ledger import JournalClosed, JournalOpened, JournalRecord
from hugewise.machine import noise, probe
from hugewise.machine.proc import start_time
from hugewise.model.host import Host
from hugewise.model.pages import page_flags_readable
from hugewise.study import shipped

__all__ = ["PROGRAMS", "Facts", "gather", "leftover"]

# What the programs are for, and the command that brings each.
PROGRAMS = {
    "cargo": (
        "builds the probe",
        "sudo apt install cargo-web (Debian 12 with its security updates), or https://rustup.rs",
    ),
    "cc": ("links the probe, and the floor of `make bench`", "sudo apt install gcc"),
    "perf": ("tries by hand what a counter says", "sudo apt install linux-perf"),
    "hyperfine": ("the comparison of `make bench`", "sudo apt install hyperfine"),
}
_OF_SOURCE = ("cargo", "cc", "hyperfine")  # of no use to what a wheel installed
_OBSERVE_S = 0.25
_JOURNAL: msgspec.json.Decoder[JournalRecord] = msgspec.json.Decoder(JournalRecord)


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen by doing rather than by reading files.

    cpu, counters   the probe's answers, or the error that it gave instead
    programs        name -> path, or None
    apt             whether packages are installed with apt here
    page_flags      whether physical page numbers and flags can be read, tried on a page of our own
    hierarchies     cgroup hierarchies: `2`, `memory`, `pids`, `freezer`
    cgroup_problem  why no cgroup can be made (tried), or None
    journal         what a run under way or a killed one left, with its cure, or None
    before, after   two snapshots, a quarter of a second apart
    machines        the host's virtual machines, with what the rules of the audit ask about them
    """

    cpu: probe.Cpu | HugewiseError
    counters: Mapping[str, str | None] | HugewiseError
    programs: Mapping[str, str | None]
    page_flags: bool
    hierarchies: tuple[str, ...]
    cgroup_problem: HugewiseError | None
    journal: tuple[str, str] | None
    before: noise.Snapshot
    after: noise.Snapshot
    apt: bool = False
    machines: HostFacts = HostFacts()


def gather(host: Host) -> Facts:
    """Ask the probe, look for programs, try the privileges, and watch the host for a quarter of a second."""
    before = noise.snapshot(host)
    time.sleep(_OBSERVE_S)
    return Facts(
        before=before,
        after=noise.snapshot(host),
        cpu=_cpu(),
        counters=_counters(),
        programs={name: shutil.which(name) for name in PROGRAMS if name not in _OF_SOURCE or shipped.checkout()},
        apt=shutil.which("apt-get") is not None,
        page_flags=page_flags_readable(),
        hierarchies=tuple(sorted(cgroup.find())),
        cgroup_problem=cgroup.unavailable(),
        journal=leftover(host, JOURNAL),
        machines=of_host(Root(Path("/"))),
    )


def _cpu() -> probe.Cpu | HugewiseError:
    try:
        found = probe.ask("cpu")
    except HugewiseError as error:
        return error
    return found if isinstance(found, probe.Cpu) else HugewiseError(f"the probe answered {type(found).__name__}")


def _counters() -> Mapping[str, str | None] | HugewiseError:
    try:
        found = probe.ask("counters")
    except HugewiseError as error:
        return error
    if isinstance(found, probe.Available):
        return found.counters
    return HugewiseError(f"the probe answered {type(found).__name__}")


def leftover(host: Host, path: Path) -> tuple[str, str] | None:
    """What the journal at `path` says is still turned on this host, and the cure; None when nothing is."""
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}", "sudo hugewise restore"
    try:
        records = [reading.decoded(_JOURNAL, line) for line in lines]
    except reading.UnreadableError as error:
        return f"{path} is not a journal of this version ({error})", f"compare your settings, then: sudo rm {path}"
    owner = next((record for record in records if isinstance(record, JournalOpened)), None)
    if owner is None or any(isinstance(record, JournalClosed) for record in records):
        return None
    if start_time(host, owner.pid) == owner.pid_start:
        return f"a run is under way (pid {owner.pid}): {owner.run}", f"wait for it, or: kill {owner.pid}"
    return f"a run was killed and left settings turned: {owner.run}", "sudo hugewise restore"
