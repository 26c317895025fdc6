"""A counting guest, heard when all its orders are done; and surveys, machines of which some files are known."""

import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hugewise import policies
from hugewise.errors import MachineError, ProbeError, SettingError
from hugewise.guests import cache, counted
from hugewise.guests.counted import PARANOID, CountingMachine, Survey, SurveyedHost
from hugewise.machine import messages, probe
from hugewise.machine.agent import Agent
from hugewise.machine.machine import read_events, run_launchers
from hugewise.model.pages import HUGETLB, THP
from tests.build.agents import HELLO, FakeGuest, fake_guest
from tests.build.guests import kernel
from tests.build.hosts import FakeHost
from tests.build.live_agent import job, started
from tests.wait import until

ENABLED = f"{THP}/enabled"
SURVEY = Survey(release="6.12.0", page_size=4096, files={ENABLED: "always [madvise] never"})
START = {"ev": "start", "v": 1, "t_ns": 1, "pid": 7, "probe": "0"}


class Booting:
    """Boots a fake guest that has done its orders: it says what came of them after hello, and serves."""

    def __init__(self, fails: dict[str, bytes] | None = None, reads: str = "[always] madvise never") -> None:
        self.fails, self.reads = fails or {}, reads
        self.rendered: list[bytes] = []
        self._open: list[Any] = []

    def __call__(self, rendered: bytes) -> Agent:
        self.rendered.append(rendered)
        opened = fake_guest(self._reacts, HELLO)
        agent, guest = opened.__enter__()
        self._open.append(opened)
        self._tell(guest)
        return agent

    @property
    def orders(self) -> list[dict[str, Any]]:
        (rendered,) = self.rendered
        return [msgspec.json.decode(line) for line in rendered.splitlines()]

    def close(self) -> None:
        for opened in self._open:
            opened.__exit__(None, None, None)

    def _tell(self, guest: FakeGuest) -> None:
        for order in self.orders:
            number = str(order["id"]).encode()
            failed = self.fails.get(order["do"])
            guest.say(b'{"id":%s,%s}\n' % (number, failed or b'"ok":{}'))
            if order["do"] == "spawn" and not failed:
                line = msgspec.json.encode(msgspec.json.encode(START).decode())
                process = str(order["process"]).encode()
                guest.say(b'{"process":%s,"line":%s}\n' % (process, line))
                guest.say(b'{"process":%s,"ended":{"status":0,"stderr":""}}\n' % process)

    def _reacts(self, request: dict[str, Any]) -> bytes:
        if request["do"] == "read":
            return b'{"id":ID,"ok":{"text":%s}}\n' % msgspec.json.encode(self.reads)
        if request["do"] == "get":
            return b'{"id":ID,"ok":{"data":"c2FpZA==","size":4}}\n'
        return b'{"id":ID,"ok":{}}\n'


@pytest.fixture
def booting() -> Iterator[Booting]:
    made = Booting()
    yield made
    made.close()


def machine(boot: Callable[[bytes], Agent]) -> CountingMachine:
    return CountingMachine(SURVEY, "guest counts", boot, settle=60.0, patience=60.0)


def test_orders_are_the_writes_the_knobs_the_pause_and_the_program_in_this_order(
    booting: Booting, tmp_path: Path
) -> None:
    guest = machine(booting)
    assert guest.apply({ENABLED: "always"}) == []
    assert booting.rendered == []  # nothing is booted before its program is started
    running = guest.start(job(tmp_path / "job", "mmap-perf", micro=True))
    said = [(order["do"], order.get("path"), order.get("text", order.get("seconds"))) for order in booting.orders]
    assert said == [
        ("write", PARANOID, "0"),
        ("write", ENABLED, "always"),
        ("write", ENABLED, "always"),  # twice: some values are taken only when another knob is turned
        ("settle", None, 60.0),
        ("spawn", None, None),
        ("wait", None, None),
    ]
    assert booting.orders[4]["spec"]["argv"] == ["mmap-perf"]
    assert str(tmp_path) not in booting.rendered[0].decode()  # the same bytes whatever folder it is played in
    assert (running.poll(), running.wait(0)) == (0, 0)
    running.close()
    assert (guest.values(), guest.drift()) == ({ENABLED: "always"}, [])


def test_it_is_run_like_any_other_machine_and_its_files_are_there(booting: Booting, tmp_path: Path) -> None:
    launch = job(tmp_path / "job", "mmap-perf", micro=True)
    assert run_launchers([(machine(booting), launch)]) == [0]
    (start,) = read_events(launch)
    assert getattr(start, "pid", None) == 7
    assert Path(launch.spec.stdout).read_bytes() == b"said"


def test_an_order_that_failed_is_named_and_an_optional_one_is_not(tmp_path: Path) -> None:
    nothing = b'"error":{"errno":2,"message":"No such file or directory"}'
    booting = Booting({"settle": nothing})
    with pytest.raises(ProbeError, match=r"guest counts: settle.*No such file"):
        machine(booting).start(job(tmp_path / "settle", "mmap-perf", micro=True))
    booting.close()
    booting = Booting({"write": nothing})
    assert machine(booting).start(job(tmp_path / "write", "mmap-perf", micro=True)).poll() == 0
    booting.close()


def test_a_guest_that_is_gone_says_so(tmp_path: Path) -> None:
    with fake_guest(greeting=b"") as (agent, guest):
        guest.leave()
        with pytest.raises(MachineError, match="guest fake"):
            machine(lambda _: agent).start(job(tmp_path / "job", "mmap-perf", micro=True))


def never(_: bytes) -> Agent:
    raise AssertionError("it is not booted for this")


def test_what_it_cannot_is_refused_with_a_cure(tmp_path: Path) -> None:
    guest = machine(never)
    for what, act in (
        ("has no network", lambda: guest.ports(1)),
        ("has no folder /data", lambda: guest.folder("/data", None, None)),
        ("takes no file /data/x", lambda: guest.put("/data", "x", b"", None, None)),
        ("has no files in /data", lambda: guest.files("/data", re.compile("."))),
    ):
        with pytest.raises(MachineError, match=what) as caught:
            act()
        assert "remove counting = true" in (caught.value.hint or "")
    with pytest.raises(ProbeError, match="cannot be asked for scan --pid 7"):
        guest.ask("scan", "--pid", "7")
    with pytest.raises(ProbeError, match="cannot meet"):
        guest.start(job(tmp_path / "job", "mmap-perf", micro=True), (3, 4))


def test_what_asks_for_nothing_is_answered() -> None:
    guest = machine(never)
    assert (guest.emulated, guest.counters, guest.cpus(), guest.ports(0)) == (True, False, (0,), ())
    assert guest.host.read(ENABLED) == "always [madvise] never"
    assert guest.environment["PATH"]
    guest.signal(7, 15)
    guest.remove("/data")


@contextmanager
def real(folder: Path, *, patience: float = 60.0) -> Iterator[tuple[CountingMachine, list[subprocess.Popen[bytes]]]]:
    """A machine whose guest is the agent itself, as a process of this host; no setting of this host is turned."""
    processes: list[subprocess.Popen[bytes]] = []
    with ExitStack() as closing:

        def boot(rendered: bytes) -> Agent:
            orders = folder / "orders.jsonl"
            orders.write_bytes(rendered.replace(PARANOID.encode(), bytes(folder / "paranoid")))
            channel, process = closing.enter_context(started(folder, "--orders", str(orders)))
            processes.append(process)
            agent = Agent(channel, "guest counting")
            closing.callback(agent.close)
            return agent

        outputs = str(folder / "out")
        yield CountingMachine(SURVEY, "guest real", boot, settle=0.01, patience=patience, outputs=outputs), processes


def test_the_agent_carries_out_the_orders_and_its_files_are_taken(tmp_path: Path) -> None:
    (tmp_path / "knob").write_text("-")
    launch = job(tmp_path / "job", "/bin/sh", "-c", f"cat {tmp_path}/knob; exit 3", scan="exit")
    with real(tmp_path) as (guest, _):
        guest.apply({str(tmp_path / "knob"): "7"})
        assert run_launchers([(guest, launch)]) == [0]
    assert Path(launch.spec.stdout).read_text() == "7"
    ended = read_events(launch)[-1]
    assert isinstance(ended, probe.Exit) and ended.code == 3
    kept = msgspec.json.decode(launch.told.read_bytes(), type=probe.Spec)
    assert Path(kept.stdout).parent == tmp_path / "out"
    assert list((tmp_path / "out").iterdir()) == []


def test_a_launcher_that_refuses_its_specification_or_cannot_be_started(tmp_path: Path) -> None:
    launch = job(tmp_path / "job")
    for name in ("refuses", "in-the-way"):
        (tmp_path / name).mkdir()
    with real(tmp_path / "refuses") as (guest, _):
        assert guest.start(launch).poll() == 2
    assert "argv" in launch.stderr.read_text()
    (tmp_path / "in-the-way/out").write_text("")
    with real(tmp_path / "in-the-way") as (guest, _), pytest.raises(ProbeError, match="start /bin/true: File exists"):
        guest.start(job(tmp_path / "job", "/bin/true"))


def test_a_knob_that_was_not_taken_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "knob").write_text("0")
    with real(tmp_path) as (guest, _), pytest.raises(SettingError, match="did not take .*knob = 7: it is 07"):
        guest.apply({str(tmp_path / "knob"): "07"})
        guest.start(job(tmp_path / "job", "/bin/true"))


def test_a_guest_that_dies_over_its_orders(tmp_path: Path) -> None:
    def kill(out: Path) -> None:
        until(lambda: processes and out.exists(), "its program has begun")
        processes[0].send_signal(signal.SIGKILL)

    with real(tmp_path) as (guest, processes):
        killer = threading.Thread(target=kill, args=(tmp_path / "out",))
        killer.start()
        with pytest.raises(MachineError, match="guest counting: it ended"):
            guest.start(job(tmp_path / "job", "/bin/sleep", "600"))
        killer.join()


def test_a_guest_that_never_comes_to_an_end(tmp_path: Path) -> None:
    with real(tmp_path, patience=0.5) as (guest, processes):
        with pytest.raises(MachineError, match=r"it did not say hello within 0\.5 s"):
            guest.start(job(tmp_path / "job", "/bin/sleep", "600"))
        processes[0].kill()


def kept_its_answers(folder: Path, patience: float) -> str:
    with fake_guest() as (agent, _), pytest.raises(MachineError) as caught:
        guest = CountingMachine(SURVEY, "guest counts", lambda _: agent, settle=0.0, patience=patience)
        guest.start(job(folder, "/bin/true"))
    return caught.value.message


def test_a_guest_that_keeps_its_answers(tmp_path: Path) -> None:
    for patience in (0.05, 5.0, 50.0):
        said = kept_its_answers(tmp_path / "job", patience)
        if "did not say hello" not in said:
            break  # else its hello was not heard in time
    assert "has not carried out its orders" in said


def test_answers_of_another_form_end_the_machine(tmp_path: Path) -> None:
    answers = b"".join(b'{"id":%d,"ok":1}\n' % number for number in range(1, 5))
    with fake_guest(greeting=HELLO + answers) as (agent, _):
        with pytest.raises(MachineError, match="answered something else than was ordered"):
            machine(lambda _: agent).start(job(tmp_path / "job", "/bin/true"))
        assert agent.ended()


def test_orders_that_cannot_be_said(tmp_path: Path) -> None:
    guest = machine(never)
    guest.apply({"/x": "x" * messages.LONGEST})
    launch = job(tmp_path / "job", "/bin/true")
    with pytest.raises(OSError, match="more than the 1048576 bytes"):
        guest.start(launch)
    met = msgspec.structs.replace(launch.spec, barrier=probe.Barrier(3, 4))
    with pytest.raises(ProbeError, match="cannot meet"):
        guest.start(msgspec.structs.replace(launch, spec=met))


KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def files(pmd: int, shmem_only: int, mthp: tuple[int, ...], pools: tuple[int, ...]) -> Mapping[str, str]:
    """Sizes in bytes, as a kernel lists them: the smallest size is there for shared memory alone."""
    by_name = {
        f"{THP}/enabled": "always [madvise] never",
        f"{THP}/hpage_pmd_size": str(pmd),
        f"{THP}/khugepaged/defrag": "1",
        f"{THP}/hugepages-{shmem_only >> 10}kB/shmem_enabled": "always inherit within_size advise [never]",
        "/proc/meminfo": "MemTotal:         491234 kB",
        "/sys/devices/system/cpu/online": "0",
    }
    for size in mthp:
        by_name[f"{THP}/hugepages-{size >> 10}kB/enabled"] = "always inherit madvise [never]"
        by_name[f"{THP}/hugepages-{size >> 10}kB/shmem_enabled"] = "always inherit within_size advise [never]"
    for size in pools:
        by_name[f"{HUGETLB}/hugepages-{size >> 10}kB/nr_hugepages"] = "0"
    return by_name


def doubled(first: int, last: int) -> tuple[int, ...]:
    return tuple(first << n for n in range((last // first).bit_length()))


# arm64, Linux 6.12, as booted: base page, PMD, size for shared memory alone, sizes for anonymous memory, pools.
ARM64 = {
    "4k": (4 * KIB, 2 * MIB, 8 * KIB, doubled(16 * KIB, 2 * MIB), (64 * KIB, 2 * MIB, 32 * MIB, GIB)),
    "16k": (16 * KIB, 32 * MIB, 32 * KIB, doubled(64 * KIB, 32 * MIB), (2 * MIB, 32 * MIB, GIB)),
    "64k": (64 * KIB, 512 * MIB, 128 * KIB, doubled(256 * KIB, 512 * MIB), (2 * MIB, 512 * MIB, 16 * GIB)),
}


def surveyed(base: str) -> Survey:
    page, pmd, shmem_only, mthp, pools = ARM64[base]
    return Survey(release="6.12.0", page_size=page, files=files(pmd, shmem_only, mthp, pools))


@pytest.mark.parametrize("base", ARM64)
def test_page_sizes_are_those_of_the_kernel_that_was_asked(base: str) -> None:
    page, pmd, shmem_only, mthp, pools = ARM64[base]
    sizes = surveyed(base).sizes
    assert (sizes.base, sizes.pmd, sizes.hugetlb) == (page, pmd, pools)
    assert {*sizes.mthp, pmd} == set(mthp)
    assert pmd not in sizes.mthp  # that is THP
    assert shmem_only not in (*sizes.mthp, *sizes.shmem)
    assert sizes.shmem == sizes.mthp


def test_policies_are_found_and_apply_on_a_surveyed_kernel() -> None:
    group = surveyed("16k")
    host = SurveyedHost(group, "a-16k")
    offered = policies.discover(group.sizes)
    assert {"base", "thp", "mthp-64k", "mthp-2m", "hugetlb-32m"} <= offered.keys()
    assert "mthp-16k" not in offered
    assert offered["mthp-64k"].missing(host, group.sizes, "system") is None
    treatment = offered["mthp-64k"].treatment(host, group.sizes, "system")
    assert treatment.knobs[f"{THP}/hugepages-64kB/enabled"] == "always"
    assert treatment.target.size == 64 * KIB


def test_a_machine_that_is_not_there_can_be_read_and_not_changed() -> None:
    host = SurveyedHost(surveyed("4k"), "a-4k")
    assert (host.name, host.privileged()) == ("a-4k", True)
    assert host.read(f"{THP}/enabled") == "always [madvise] never"
    assert host.writable(f"{THP}/enabled")
    assert not host.writable(f"{THP}/defrag")
    with pytest.raises(FileNotFoundError) as absent:
        host.read("/proc/vmstat")
    assert absent.value.filename == "/proc/vmstat"
    with pytest.raises(PermissionError, match="not there"):
        host.write(f"{THP}/enabled", "always")
    assert host.names(HUGETLB) == [f"hugepages-{size >> 10}kB" for size in (GIB, 2 * MIB, 32 * MIB, 64 * KIB)]
    assert host.names(f"{HUGETLB}/") == host.names(HUGETLB)
    assert host.names(f"{THP}/khugepaged") == ["defrag"]
    assert host.names("/nothing") == []


def test_a_survey_holds_the_knobs_and_no_counters() -> None:
    host = FakeHost()
    taken = counted.take_survey(host, "6.12.0", 4096)
    assert (taken.release, taken.page_size) == ("6.12.0", 4096)
    assert taken.files[f"{THP}/enabled"] == host.read(f"{THP}/enabled")
    assert taken.files[f"{HUGETLB}/hugepages-2048kB/nr_hugepages"] == "0"
    assert "/proc/meminfo" in taken.files
    assert "/proc/version" not in taken.files  # this machine has none
    assert not any("/stats/" in path for path in taken.files)
    assert host.writes == []


def test_it_is_kept_by_kernel_and_cpu_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUGEWISE_CACHE", str(tmp_path))
    asked = surveyed("64k")
    assert counted.find_survey(kernel("arm64"), "max") is None
    counted.keep_survey(kernel("arm64"), "max", asked)
    assert counted.find_survey(kernel("arm64"), "max") == asked
    assert counted.find_survey(kernel("arm64"), "neoverse-n1") is None  # another processor may offer other pages
    assert counted.find_survey(kernel("x86-64"), "max") is None
    (entry,) = cache.folder("surveys").glob("[!.]*")
    entry.write_bytes(b"{")
    assert counted.find_survey(kernel("arm64"), "max") is None  # asked anew, rather than believed
    counted.keep_survey(kernel("arm64"), "max", asked)
    assert counted.find_survey(kernel("arm64"), "max") == asked
