"""What a kernel offers, asked of one boot and kept: page sizes and knobs, as files of a machine that is not there.

Plans are made from surveys, so that a study need not boot all of its kernels to say what it will do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from hugewise import reading
from hugewise.errors import StorageError
from hugewise.guests import cache
from hugewise.host import knob
from hugewise.machine.proc import meminfo
from hugewise.model.guest import Kernel
from hugewise.model.host import Host
from hugewise.model.pages import HUGETLB, THP, PageSizes
from hugewise.reading import UnreadableError

_FORMAT = 1
# What is assumed of a kernel that was not asked: pages of 4 KiB, THP of 2 MiB, all others from 8 KiB to 16 GiB.
_BASE, _PMD = 4096, 2 << 20
_LARGEST = 1 << 40
_MOST_FILES, _MOST_BYTES = 1000, 1 << 20  # of a survey: kernels have some hundred knobs
_EVERY = tuple(1 << power for power in range(13, 35))
_FILES = ("/proc/meminfo", "/proc/version", "/sys/devices/system/cpu/online")


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """`files` are texts by path, `page_size` the base page in bytes, `cpus` those of the guest that was asked."""

    release: str
    page_size: int
    files: Mapping[str, str]

    @property
    def sizes(self) -> PageSizes:
        """The page sizes of this kernel."""
        return PageSizes.discover(Surveyed(self), self.page_size)


class Surveyed:
    """A machine of which a survey is all that is known: `host.Host`. It cannot be changed."""

    def __init__(self, survey: Survey, name: str = "guest") -> None:
        self.name = name
        self._files = survey.files

    def privileged(self) -> bool:
        """Whoever speaks to a guest's agent is its root."""
        return True

    def read(self, path: str) -> str:
        """The text of a file that was asked for. Raises FileNotFoundError."""
        try:
            return self._files[path]
        except KeyError:
            raise FileNotFoundError(2, "No such file or directory", path) from None

    def write(self, path: str, text: str) -> None:
        """Nothing is there to be written. Raises PermissionError."""
        raise PermissionError(1, f"{text!r} cannot be written to a machine that is not there", path)

    def writable(self, path: str) -> bool:
        """Whether the file is there: what a survey holds of sysfs are knobs."""
        return path in self._files

    def names(self, path: str) -> list[str]:
        """What lay in the folder."""
        prefix = path.rstrip("/") + "/"
        return sorted({each[len(prefix) :].partition("/")[0] for each in self._files if each.startswith(prefix)})


def unasked() -> tuple[Survey, PageSizes]:
    """Of a kernel that nobody has asked: as if it had every page size that an arm can name. What it has shows later."""
    files = {
        "/proc/meminfo": f"Hugepagesize: {_PMD >> 10:>10} kB",
        f"{THP}/hpage_pmd_size": str(_PMD),
        **{f"{THP}/{name}": "always [madvise] never" for name in ("enabled", "defrag", "shmem_enabled")},
    }
    for size in _EVERY:
        below = f"{THP}/hugepages-{size >> 10}kB"
        files |= {f"{below}/{name}": "always inherit madvise [never]" for name in ("enabled", "shmem_enabled")}
        files[f"{HUGETLB}/hugepages-{size >> 10}kB/nr_hugepages"] = "0"
    sizes = PageSizes(base=_BASE, pmd=_PMD, mthp=_EVERY, hugetlb=_EVERY, shmem=_EVERY)
    return Survey(release="", page_size=_BASE, files=files), sizes


def take(host: Host, release: str, page_size: int) -> Survey:
    """Ask a machine that is there. What plans are made from is read once here: UnreadableError, ValueError."""
    found = {}
    for path in (*_FILES, *_below(host, THP), *_below(host, HUGETLB)):
        with suppress(OSError):
            found[path] = host.read(path)
        if len(found) > _MOST_FILES or sum(map(len, found.values())) > _MOST_BYTES:
            raise UnreadableError(f"more than {_MOST_FILES} knobs, or {_MOST_BYTES} bytes of them")
    taken = Survey(release=release, page_size=page_size, files=found)
    asked = Surveyed(taken)
    meminfo(asked)
    knob.read_knobs(asked)
    if not all(
        _BASE <= size <= _LARGEST for size in (*taken.sizes.mthp, *taken.sizes.hugetlb, taken.sizes.pmd or _PMD)
    ):
        raise UnreadableError(f"page sizes that no kernel has: {taken.sizes}")
    return taken


def _below(host: Host, folder: str) -> Iterator[str]:
    """The knobs below a folder of sysfs, two levels deep; counters are left out."""
    for name in host.names(folder):
        below = [] if name == "stats" else host.names(f"{folder}/{name}")
        if below:
            yield from (f"{folder}/{name}/{each}" for each in below if each != "stats")
        else:
            yield f"{folder}/{name}"


def find(kernel: Kernel, cpu: str) -> Survey | None:
    """The survey of a kernel, if one was taken with that CPU model and is whole."""
    path = cache.entry("surveys", _key(kernel, cpu))
    try:
        found = reading.stored(path, Survey)
    except UnreadableError:
        return None
    cache.used(path)
    return found


def keep_survey(kernel: Kernel, cpu: str, survey: Survey) -> None:
    """Keep it, in place of one that is there: who takes another could not read that. Raises StorageError."""

    def make(path: Path) -> None:
        try:
            path.write_bytes(msgspec.json.format(msgspec.json.encode(survey), indent=1))
        except OSError as error:
            raise StorageError(f"cannot keep the survey of {kernel.name}: {error.strerror}") from error

    cache.replaced("surveys", _key(kernel, cpu), make)


def _key(kernel: Kernel, cpu: str) -> Mapping[str, object]:
    return {"format": _FORMAT, "kernel": kernel.digest, "arch": kernel.arch, "cpu": cpu}
