"""Studies of guests that boot fast, and what a run of one could leave behind."""

import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from hugewise.guests.boot import emulator_at_fault
from hugewise.host import cgroup
from hugewise.model.results import Results
from hugewise.model.trial import Attempt
from hugewise.model.workload import Missing
from tests.requirements import need
from tests.state import changed

# A session's folder has its process's number, and so has a group that a test of the probe makes.
_OWNER = re.compile(r"hugewise-(?:probe-test-\w+-)?(\d+)")
_PROGRAMS = re.compile(r"qemu-system-\w+$|ganesha\.nfsd$")

MEMORY = 256 << 20
BYTES = 16 << 20

# What follows the policies of every study here: the fewest blocks, and no pause.
SHORT = """
confidence = 0.9

[budget]
blocks = 2

[between]
settle = "0ms"
"""

# What its guests are, but for their memory. Emulated also where there is KVM, so that what is absent is absent.
TCG = """
[guest]
arch = "x86-64"
accelerator = "tcg"
"""

# What they boot.
KERNEL = """
[[kernel]]
name = "debian"
package = "linux-image-cloud-amd64"
"""

# Two arms that differ in the policy within and in what the guest's memory is made of: 256 MiB, of 2 MiB pages in a
# hugetlbfs of the session's own.
FAULT = f"""
format = 1
name = "guests"
policies = [
    {{ name = "small", from = "base", backing = "base" }},
    {{ name = "huge", from = "thp", backing = {{ pages = "hugetlb-2m", source = "file" }} }},
]
{SHORT}{TCG}memory = "256m"
{KERNEL}
[[workload]]
name = "fault"
timeout = "60s"
parameters = {{ bytes = "16m", rounds = 1 }}
"""


# Both arms with such pages: whichever is under way, a guest that is killed has them.
POOLED = FAULT.replace('backing = "base"', 'backing = { pages = "hugetlb-2m", source = "file" }')

# Both guests at once, each with its pages of the pool, on a bridge, with the host's NFS mounted.
TOGETHER = (
    POOLED.replace("[guest]\n", '[design]\nslots = [0, 1]\n\n[guest]\nnetwork = "tap"\nnfs = true\n')
    + 'concurrency = "together"\n'
)


def write(folder: Path, study: str, name: str = "guests") -> Path:
    """The study as a file."""
    path = folder / f"{name}.toml"
    path.write_text(study)
    return path


def need_none(lacking: Sequence[Missing]) -> None:
    """Skip the calling test where this host lacks something."""
    need(not lacking, ", ".join(f"{each.reason} (apt install {each.package})" for each in lacking))


def counted(results: Results) -> list[Attempt]:
    """The attempts that were not rejected. One may have been, where the emulator brought its guest down."""
    rejected = [attempt for attempt in results.attempts if attempt.state == "rejected"]
    for each in rejected:
        name = f"b{each.block:05d}-{each.order}-{each.arm}-{each.number}"
        assert emulator_at_fault(Path(results.folder) / "attempts" / name), (name, each.reason)
    assert len(rejected) <= 1, [each.reason for each in rejected]
    return [attempt for attempt in results.attempts if attempt.state != "rejected"]


def left() -> set[str]:
    """What is there now of what a run makes: folders, mounts, interfaces, groups, QEMUs and NFS servers. What belongs
    to a process that lives is left out, as that of a run beside these tests, unless the process is this one.
    """
    places = [Path("/dev/shm"), Path("/run"), *cgroup.find().values()]
    folders = {str(path) for place in places for path in place.glob("hugewise-*")}
    mounts = {line for line in Path("/proc/mounts").read_text().splitlines() if "hugewise" in line}
    links = {str(path) for path in Path("/sys/class/net").glob("hw*")}
    found = folders | mounts | links | {f"process {pid}: {words}" for pid, words in processes().items()}
    return {each for each in found if (named := _OWNER.search(each)) is None or _counts(int(named[1]))}


def _counts(owner: int) -> bool:
    return owner == os.getpid() or not Path("/proc", str(owner)).exists()


def processes() -> dict[int, str]:
    """QEMUs and NFS servers of runs by pid: the program, and the session's folder that its command line names."""
    by_name = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "cmdline").read_bytes().decode(errors="replace")
            program = _PROGRAMS.search(words.partition("\0")[0])
            if program is not None and (named := _OWNER.search(words)) is not None:
                by_name[int(process.name)] = f"{program[0]} of {named[0]}"
    return by_name


def ended(before: set[str], patience: float = 60.0) -> set[str]:
    """The processes of runs that are there beside those of `before`, when `patience` seconds are over or none is."""
    end = time.monotonic() + patience
    while True:
        by_name = {each for each in left() - before if each.startswith("process ")}
        if not by_name or time.monotonic() > end:
            return by_name
        time.sleep(0.02)


def not_as(state: Mapping[str, str], patience: float = 150.0) -> dict[str, tuple[str | None, str | None]]:
    """The settings that are not as in `state` when `patience` seconds are over, or none; with them what of a process
    that ends still waits in the kernel. The pages of a QEMU that was killed are the pool's until its last thread has
    closed its last file, and a tap can keep that waiting as long as a connection over it lingers: a minute.
    """
    end = time.monotonic() + patience
    while found := changed(state):
        if time.monotonic() > end:
            return {**found, **{task: (None, where) for task, where in _waiting().items()}}
        time.sleep(0.05)
    return {}


def _waiting() -> dict[str, str]:
    """Threads that nothing can interrupt, and where in the kernel they are."""
    by_name = {}
    for task in Path("/proc").glob("[0-9]*/task/[0-9]*"):
        with suppress(OSError):
            stat = (task / "stat").read_text()
            if stat.rpartition(")")[2].split()[0] == "D":
                by_name[f"{task} {stat.partition('(')[2].rpartition(')')[0]}"] = (task / "stack").read_text()
    return by_name
