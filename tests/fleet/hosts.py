"""Hosts of a fleet in this process: each obeys over a real spool, and plays a recorded run instead of measuring."""

import hashlib
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from hugewise.errors import HostLostError
from hugewise.fleet import host_agent, keeper, protocol
from hugewise.fleet.coordinator import Coordinator, rules_of
from hugewise.fleet.decision import Act
from hugewise.fleet.folder import FleetFolder
from hugewise.fleet.inventory import Inventory, Stratum, parse, stratum
from hugewise.fleet.protocol import FleetQuestion, HostAnswer, HostContext, HostOrder, installed
from hugewise.fleet.records import FleetOpened, HostGreeted
from hugewise.fleet.spool import KeeperRecord, SpoolEntry
from hugewise.model.host import Clock
from hugewise.store.folder import RunFolder

RECORDED = Path(__file__).parents[1] / "golden/runs/ended"
STRATUM = Stratum("cpu", "0x1", "6.1", "glibc 2.36", "base 4096", "none", "fresh")


class Killed(BaseException):
    """A coordinator that is killed: nothing of it goes on."""


@dataclass
class PlayedHost:
    """looks     how often it is looked at before its run has ended
    lost      whether it gives no answer; with `swallows` it obeys all the same
    fails     how its run ends instead
    begins    whether there is a run at all
    """

    name: str
    spool: Path
    looks: int = 2
    lost: bool = False
    swallows: bool = False
    fails: str | None = None
    begins: bool = True
    obeyed: list[HostOrder] = field(default_factory=list)
    starts: int = 0
    recorded: Path = RECORDED
    looked: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        """Its own run: of its machine, and by coins of its own."""
        first = RunFolder(RECORDED).opened()
        own = self.spool.parent.parent / "recorded" / self.name
        shutil.copytree(RECORDED, own, dirs_exist_ok=True)
        text = (RECORDED / "run.jsonl").read_bytes()
        text = text.replace(first.seed_hash.encode(), hashlib.sha256(self.name.encode()).hexdigest().encode())
        text = text.replace(str(first.host["machine"]).encode(), f"machine-{self.name}".encode())
        (own / "run.jsonl").write_bytes(text)
        self.recorded = own

    def start(self, folder: Path, lock: int) -> None:
        """In the place of a keeper: the run is under way. Nobody holds its lock, so that each look comes here."""
        del lock
        spooled = SpoolEntry(folder)
        if spooled.kept().state == "running":
            return
        self.starts += 1
        if self.begins:
            run = RunFolder(self.recorded).opened().run
            shutil.copytree(self.recorded, spooled.results / "recorded" / run)
        assert spooled.keep(KeeperRecord(state="running"))

    def played(self, order: HostOrder) -> None:
        """One look further: it has ended after so many."""
        if not isinstance(order, protocol.LookOrder):
            return
        spooled = SpoolEntry(self.spool / order.assignment.fleet / str(order.assignment.number))
        begun, kept = spooled.order(), spooled.kept()
        if begun is None or kept.state != "running":
            return
        if spooled.end_ordered():
            keeper.conclude(spooled, begun, KeeperRecord(state="interrupted", reason=protocol.ENDED))
        elif self.looked[order.assignment.number] + 1 >= self.looks:
            state = "ended" if self.fails is None else "failed"
            keeper.conclude(spooled, begun, KeeperRecord(state=state, reason=self.fails))  # type: ignore[arg-type]
        self.looked[order.assignment.number] += 1

    def answer(self, order: HostOrder) -> HostAnswer:
        if self.lost and not self.swallows:
            raise HostLostError(f"{self.name}: No route to host")
        self.obeyed.append(order)
        self.played(order)
        answer = host_agent.answer_order(protocol.encode(order), HostContext(self.spool, self.start))
        if self.lost:
            raise HostLostError(f"{self.name}: the answer was lost")
        return protocol.decode_answer(answer)


class PlayedHosts:
    """The engine to them."""

    def __init__(self, hosts: list[PlayedHost]) -> None:
        self.hosts = {host.name: host for host in hosts}
        self.lock = threading.Lock()
        self.before: Callable[[str, HostOrder], None] = lambda host, order: None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def present(self) -> frozenset[str]:
        return frozenset(self.hosts)

    def call(self, host: str, order: HostOrder, timeout: float = 60.0) -> HostAnswer:
        with self.lock:
            self.before(host, order)
            return self.hosts[host].answer(order)


class Inline:
    """Calls that are made at once, in this thread: what is killed leaves nothing that goes on. Only to wait for them
    takes time, and it is this clock's: no machine is too slow for anybody's patience.
    """

    def __init__(self) -> None:
        self.waiting: list[tuple[Act, object]] = []
        self.now = 1000.0

    free = 1 << 20

    def start(self, key: Act, function: Callable[[], object]) -> None:
        try:
            self.waiting.append((key, function()))
        except Exception as error:
            self.waiting.append((key, error))

    def came(self, seconds: float) -> tuple[Act, object] | None:
        if self.waiting:
            return self.waiting.pop(0)
        self.now += min(seconds, 0.02)
        return None


@dataclass
class Fleet:
    """A fleet of played hosts, begun; `coordinator` takes it up."""

    tmp: Path
    names: list[str]
    table: str = ""
    lines: list[str] = field(default_factory=list)
    calls: Inline = field(default_factory=Inline)

    def __post_init__(self) -> None:
        spools = self.tmp / "spools"
        spools.mkdir()
        self.hosts = [PlayedHost(name, spools / name) for name in self.names]
        self.engine = PlayedHosts(self.hosts)
        text = f"[fleet]\ncheck = 0\nlook = 0.05\n{self.table}\n"
        text += "".join(f'[[host]]\nname = "{name}"\nssh = "{name}"\n' for name in self.names)
        self.inventory: Inventory = parse(text, "hosts.toml")
        self.folder = FleetFolder.new(self.tmp / "results", "recorded")
        study = (RECORDED / "study.toml").read_text(encoding="utf-8")
        self.folder.make(study_toml=study, hosts_toml=text)
        here, first = installed(), RunFolder(RECORDED).opened()
        here = msgspec.structs.replace(
            here, version=first.versions["hugewise"], probe_version=first.versions["hugewise-probe"]
        )
        same = stratum(first.host, first.settings, "fresh")
        self.folder.append(
            FleetOpened(
                t=1.0,
                fleet=self.folder.fleet,
                study="recorded",
                digest=RunFolder(RECORDED).opened().digest,
                question=FleetQuestion(text=study),
                hosts=tuple(self.names),
                installed=here,
            )
        )
        for name in self.names:
            self.folder.append(
                HostGreeted(
                    t=1.0,
                    host=name,
                    stratum=same,
                    machine=f"machine-{name}",
                    name=name,
                    root=True,
                    installed=here,
                )
            )

    def coordinator(self, on_step: Callable[[str], None] = lambda _: None, *, ending: bool = False) -> Coordinator:
        coordinator = Coordinator(
            self.folder,
            self.engine,
            self.inventory,
            rules_of(self.inventory, ending=ending),
            self.lines.append,
            on_step,
        )
        self.calls.waiting.clear()  # of one that was killed
        coordinator._calls = self.calls  # type: ignore[assignment]
        coordinator.clock = Clock(up=lambda: self.calls.now)
        return coordinator

    def host(self, name: str) -> PlayedHost:
        return self.engine.hosts[name]

    def left(self) -> list[str]:
        """Assignments that lie on hosts."""
        found = (host.spool / self.folder.fleet for host in self.hosts)
        return sorted(path.name for each in found if each.is_dir() for path in each.iterdir() if path.is_dir())
