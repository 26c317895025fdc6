"""A guest whose instructions are counted, and the survey of a kernel that plans are made from.

A counting guest finds its orders in its initramfs, and is heard when all is done, so that nothing reaches it
meanwhile. With the same orders and seed it counts the same, bit for bit. `CountingMachine` boots it as its one program
is started: what was turned before is an order. A survey has page sizes and knobs of one boot, kept, as files of a
machine that is not there.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from hugewise.errors import MachineError, ProbeError, SettingError
from hugewise.guests import cache
from hugewise.host import knob
from hugewise.machine import messages, probe, programs
from hugewise.machine.agent import Agent
from hugewise.machine.machine import Drift
from hugewise.machine.messages import AgentFault, Answer, Request
from hugewise.machine.proc import meminfo
from hugewise.machine.remote import OUTPUTS, RemoteLauncher, remote_spec
from hugewise.model.guest import Kernel
from hugewise.model.host import Host
from hugewise.model.pages import HUGETLB, THP, PageSizes
from hugewise.reading import UnreadableError

_FORMAT = 1
# Assumed for a kernel that was not booted: pages of 4 KiB, THP of 2 MiB, all others from 8 KiB to 16 GiB.
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
        return PageSizes.discover(SurveyedHost(self), self.page_size)


class SurveyedHost:
    """A machine of which a survey is all that is known: `host.Host`. It cannot be changed."""

    def __init__(self, survey: Survey, name: str = "guest") -> None:
        self.name = name
        self._files = survey.files

    def privileged(self) -> bool:
        return True

    def read(self, path: str) -> str:
        """Read a file that the survey asked for. Raises FileNotFoundError."""
        try:
            return self._files[path]
        except KeyError:
            raise FileNotFoundError(2, "No such file or directory", path) from None

    def write(self, path: str, text: str) -> None:
        """Nothing is there to be written. Raises PermissionError."""
        raise PermissionError(1, f"{text!r} cannot be written to a machine that is not there", path)

    def writable(self, path: str) -> bool:
        # a survey holds of sysfs only knobs
        return path in self._files

    def names(self, path: str) -> list[str]:
        prefix = path.rstrip("/") + "/"
        return sorted({file[len(prefix) :].partition("/")[0] for file in self._files if file.startswith(prefix)})


def assumed_survey() -> tuple[Survey, PageSizes]:
    """Return a survey for a kernel that was never booted: every page size that an arm can name."""
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


def take_survey(host: Host, release: str, page_size: int) -> Survey:
    """Ask a machine that is there. What plans are made from is read once here: UnreadableError, ValueError."""
    files = {}
    for path in (*_FILES, *_below(host, THP), *_below(host, HUGETLB)):
        with suppress(OSError):
            files[path] = host.read(path)
        if len(files) > _MOST_FILES or sum(map(len, files.values())) > _MOST_BYTES:
            raise UnreadableError(f"more than {_MOST_FILES} knobs, or {_MOST_BYTES} bytes of them")
    taken = Survey(release=release, page_size=page_size, files=files)
    asked = SurveyedHost(taken)
    meminfo(asked)
    knob.read_knobs(asked)
    if not all(
        _BASE <= size <= _LARGEST for size in (*taken.sizes.mthp, *taken.sizes.hugetlb, taken.sizes.pmd or _PMD)
    ):
        raise UnreadableError(f"page sizes that no kernel has: {taken.sizes}")
    return taken


def _below(host: Host, folder: str) -> Iterator[str]:
    for name in host.names(folder):
        below = [] if name == "stats" else host.names(f"{folder}/{name}")
        if below:
            yield from (f"{folder}/{name}/{file}" for file in below if file != "stats")
        else:
            yield f"{folder}/{name}"


def find_survey(kernel: Kernel, cpu: str) -> Survey | None:
    """Return the survey of a kernel, if one was taken with that CPU model and is whole."""
    return cache.find_survey(_key(kernel, cpu), Survey)


def keep_survey(kernel: Kernel, cpu: str, survey: Survey) -> None:
    """Keep the survey of a kernel. Raises StorageError."""
    cache.keep_survey(_key(kernel, cpu), survey)


def _key(kernel: Kernel, cpu: str) -> Mapping[str, object]:
    return {"format": _FORMAT, "kernel": kernel.digest, "arch": kernel.arch, "cpu": cpu}


NAME = "orders.jsonl"  # file in the root of the initramfs
PARANOID = "/proc/sys/kernel/perf_event_paranoid"
_PROCESS = 1


@dataclass
class Order:
    """Order, and what came of it once it is collected."""

    request: Request
    optional: bool = False
    answer: Future[Answer] = field(default_factory=Future)

    def problem(self) -> str | None:
        """Return the request and why it failed; None where it succeeded. Raises Malformed."""
        came = self.answer.result(0).came
        if isinstance(came, AgentFault):
            return f"{self.request}: {came.why}"
        messages.reply(came, messages.Nothing)
        return None


class CountingMachine:
    """A machine for one micro-workload: `machine.Machine`; and its page settings: `machine.Knobs`, set when it boots.

    boot     boots the guest with these orders, and returns its agent before anything was heard of it
    settle   seconds on the guest's clock in which it idles before the program starts: what a kernel does in the
             background after boot is done then
    patience seconds on this host's clock until all orders must be done
    outputs  folder in the guest for what the program says
    """

    emulated = True
    counters = False

    def __init__(
        self,
        survey: Survey,
        name: str,
        boot: Callable[[bytes], Agent],
        *,
        settle: float,
        patience: float,
        outputs: str = OUTPUTS,
    ) -> None:
        self.host: Host = SurveyedHost(survey, name)
        self.environment: Mapping[str, str] = {"PATH": programs.PATH}
        self._knobs: Mapping[str, str] = {}
        self._boot, self._settle, self._patience, self._outputs = boot, settle, patience, outputs

    def apply(self, knobs: Mapping[str, str]) -> list[Drift]:
        self._knobs = dict(knobs)
        return []

    def drift(self) -> list[Drift]:
        # they are read back with the answers
        return []

    def values(self) -> Mapping[str, str]:
        return self._knobs

    def cpus(self) -> tuple[int, ...]:
        return (0,)

    def ports(self, count: int) -> tuple[int, ...]:
        # it has no network
        if count:
            raise self._cannot("has no network")
        return ()

    def start(self, job: probe.Job, inherited: tuple[int, ...] = ()) -> RemoteLauncher:
        """Boot it and collect all that it did. Raises MachineError and others, OSError for odd orders."""
        if inherited or job.spec.barrier is not None:
            raise ProbeError("launchers of a guest cannot meet those of this host")
        spec = remote_spec(job.spec, _PROCESS, self._outputs)
        job.tell(spec)
        orders = self._orders(spec)
        agent = self._boot(b"".join(messages.encode(number, order.request) for number, order in enumerate(orders, 1)))
        launched = RemoteLauncher(agent, _PROCESS, job, self._outputs)
        try:
            self._collect(agent, orders, launched)
        except BaseException:
            launched.close()
            raise
        return launched

    def _orders(self, spec: probe.Spec) -> list[Order]:
        # Knobs twice: the kernel refuses some values as long as another knob is not yet turned (`host.knob.turn`).
        knobs = [messages.WriteFile(path, value) for path, value in self._knobs.items()] * 2
        return [
            Order(messages.WriteFile(PARANOID, "0"), optional=True),  # the guest is nobody else's
            *(Order(request, optional=True) for request in knobs),
            Order(messages.Settle(self._settle)),
            Order(messages.Spawn(_PROCESS, spec)),
            Order(messages.Wait(_PROCESS), optional=True),  # its start reports why there is none
        ]

    def _collect(self, agent: Agent, orders: list[Order], launched: RemoteLauncher) -> None:
        end = time.monotonic() + self._patience
        agent.expect({number: order.answer for number, order in enumerate(orders, 1)}, {_PROCESS: launched})
        agent.hello(self._patience)
        late = "has not carried out its orders"
        for order in orders:
            agent.await_answer(order.answer, max(0.0, end - time.monotonic()), late)
        try:
            failed = [problem for order in orders if (problem := order.problem()) and not order.optional]
        except messages.Malformed as error:
            raise agent.give_up(f"its agent answered something else than was ordered: {error}") from None
        if failed:
            raise ProbeError(f"{self.host.name}: {'; '.join(failed)}")
        try:
            launched.wait(max(0.0, end - time.monotonic()))
        except TimeoutError:
            raise agent.give_up(f"it has not ended {' '.join(launched.spec.argv)} in time") from None
        wanted = {path: knob.canonical(value) for path, value in self._knobs.items()}
        for drift in knob.differing_knobs(agent, wanted):
            raise SettingError(f"{agent.name} did not take {drift.path} = {drift.expected}: it is {drift.found}")

    def signal(self, pid: int, number: int) -> None:
        # its program has ended
        pass

    def ask(self, *arguments: str) -> probe.Event:
        # a guest that counts cannot be asked
        raise ProbeError(f"{self.host.name} counts: it cannot be asked for {' '.join(arguments)}")

    def folder(self, path: str, uid: int | None, gid: int | None) -> None:
        # it has no files of its own
        raise self._cannot(f"has no folder {path}")

    def put(
        self, folder: str, name: str, content: bytes, uid: int | None, gid: int | None, *, mode: int = 0o644
    ) -> None:
        raise self._cannot(f"takes no file {folder}/{name}")

    def files(self, folder: str, pattern: re.Pattern[str]) -> Iterator[bytes]:
        raise self._cannot(f"has no files in {folder}")

    def remove(self, path: str) -> None: ...

    def _cannot(self, what: str) -> MachineError:
        return MachineError(
            f"{self.host.name} counts instructions and runs micro-workloads alone: it {what}",
            hint="remove counting = true from [guest], or the workload from the study",
        )
