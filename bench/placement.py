"""200 simulated hosts under the production coordinator: how long it decides, what it takes, and that nothing is lost.

The coordinator, its log, shipping and the spools of hosts are what a fleet has, over real files; a host plays a
recorded run instead of measuring. A tenth of the hosts is killed at a random moment, which an order may have reached or
not, and comes back with what it had. In tests, of so many as are `gone` nothing ever comes back.
"""

from __future__ import annotations

import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hugewise.fleet import spool
from hugewise.fleet.coordinator import Coordinator
from hugewise.fleet.decision import Agenda, Decision, FleetRules
from hugewise.fleet.protocol import ForgetOrder, HostAnswer, HostOrder, ManifestOrder, ReadOrder
from hugewise.fleet.records import RunShipped
from tests.fleet.hosts import Fleet, PlayedHost, PlayedHosts

HOSTS, SEEDS = 200, 100
MOST_DECISION_S = 1.0
MOST_BYTES = 1 << 30
RULES = FleetRules(wait=120.0, look=0.05, check=False)


@dataclass
class Mortal(PlayedHost):
    """A host that is killed at its call number `dies`, which it obeys or not; it comes back after `back` calls, or
    never (None).
    """

    dies: int | None = None
    obeys: bool = False
    back: int | None = None
    calls: int = 0

    def answer(self, order: HostOrder) -> HostAnswer:
        self.calls += 1
        if self.dies is not None and self.calls >= self.dies:
            self.lost = self.back is None or self.calls < self.dies + self.back
            self.swallows = self.calls == self.dies and self.obeys
        return super().answer(order)


@dataclass
class Timed(PlayedHosts):
    """The engine to them. `gaps`: seconds from an answer that leaves something to do at once to the next order."""

    mortal: Sequence[Mortal]
    gaps: list[float] = field(default_factory=list)
    _since: dict[str, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        super().__init__(list(self.mortal))

    def call(self, host: str, order: HostOrder, timeout: float = 60.0) -> HostAnswer:
        """Call one host at a time, in the caller's thread."""
        if (since := self._since.pop(host, None)) is not None and isinstance(order, ManifestOrder | ForgetOrder):
            with self._lock:
                self.gaps.append(time.perf_counter() - since)
        try:
            return self.hosts[host].answer(order)
        finally:
            if not isinstance(order, ReadOrder | ManifestOrder):
                self._since[host] = time.perf_counter()


@dataclass(frozen=True)
class Outcome:
    """Outcome of one seed. `lost` and `doubled`: hosts with no run that counts, and with more than one; or runs that
    are not what was recorded. `decided`: seconds of each decision. `gaps`: see `Timed`.
    """

    lost: int
    doubled: int
    decided: tuple[float, ...]
    gaps: tuple[float, ...]
    seconds: float


def played(folder: Path, seed: int, *, hosts: int, killed: int, gone: int = 0, wait: float = RULES.wait) -> Outcome:
    """Play a whole fleet in `folder`, with a coin of that seed; `wait` as in an inventory."""
    coin = random.Random(seed)  # noqa: S311
    names = [f"host-{number:05d}" for number in range(hosts)]
    fleet = Fleet(folder, names)
    mortal = [Mortal(name, folder / "spools" / name, looks=coin.randint(1, 4)) for name in names]
    for number, host in enumerate(coin.sample(mortal, killed)):
        host.dies, host.obeys = coin.randint(1, 8), coin.random() < 0.5
        host.back = coin.randint(1, 60) if number >= gone else None
    fleet.hosts, fleet.engine = [*mortal], Timed(mortal)
    decided: list[float] = []
    conducted = Coordinator(fleet.folder, fleet.engine, fleet.inventory, replace(RULES, wait=wait), fleet.lines.append)
    began = time.perf_counter()
    with _timing(decided):
        state = conducted.conduct()
    seconds = time.perf_counter() - began
    counted: dict[str, int] = dict.fromkeys(names, 0)
    broken = 0
    for work in state.counted():
        assert work.shipped is not None
        counted[work.assigned.host] += 1
        recorded = spool.manifest(fleet.engine.hosts[work.assigned.host].recorded)
        broken += spool.manifest(fleet.folder.path / work.shipped.folder) != recorded
    shipped = [record for record in fleet.folder.records() if isinstance(record, RunShipped)]
    numbers = [each.number for each in shipped]
    return Outcome(
        lost=sum(not count for count in counted.values()) + broken,
        doubled=sum(count > 1 for count in counted.values()) + len(numbers) - len(set(numbers)),
        decided=tuple(decided),
        gaps=tuple(fleet.engine.gaps),
        seconds=seconds,
    )


class _timing:  # noqa: N801  (a context)
    """Meanwhile, how long each decision takes is noted."""

    def __init__(self, took: list[float]) -> None:
        self._took, self._decide = took, Agenda.decide

    def __enter__(self) -> None:
        def decide(agenda: Agenda, now: float, most: int) -> list[Decision]:
            began = time.perf_counter()
            found = self._decide(agenda, now, most)
            self._took.append(time.perf_counter() - began)
            return found

        Agenda.decide = decide  # type: ignore[assignment,method-assign]

    def __exit__(self, *_: object) -> None:
        Agenda.decide = self._decide  # type: ignore[method-assign]


def _child(hosts: int, seeds: Sequence[int]) -> None:
    """Play these seeds and report each; the peak of this process is that of the coordinator and of all hosts."""
    for seed in seeds:
        with tempfile.TemporaryDirectory(prefix="hw-placement-", dir=_place()) as folder:
            found = played(Path(folder), seed, hosts=hosts, killed=hosts // 10)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        told = {
            "lost": found.lost,
            "doubled": found.doubled,
            "decided": max(found.decided),
            "usual": statistics.median(found.decided),
            "gap": max(found.gaps, default=0.0),
            "usual_gap": statistics.median(found.gaps) if found.gaps else 0.0,
            "seconds": found.seconds,
            "peak": peak,
        }
        print(json.dumps(told), flush=True)


def _place() -> str | None:
    """Return a folder in memory, if there is one: the disk is not measured."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108


def asked(hosts: int, seeds: Sequence[int]) -> list[dict[str, float]]:
    """Run the seeds in a process of their own and return its results."""
    command = [sys.executable, "-m", "bench.placement", "--child", str(hosts), *map(str, seeds)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def show(found: Sequence[dict[str, float]]) -> str:
    """Return the outcome of the seeds, and the targets, at 80 columns."""
    lost, doubled = (int(sum(each[name] for each in found)) for name in ("lost", "doubled"))
    longest, gap = (max(each[name] for each in found) for name in ("decided", "gap"))
    usual, usual_gap = (statistics.median(each[name] for each in found) for name in ("usual", "usual_gap"))
    peak, took = max(each["peak"] for each in found), statistics.median(each["seconds"] for each in found)
    met = longest <= MOST_DECISION_S and peak <= MOST_BYTES
    return "\n".join(
        [
            f"{HOSTS} simulated hosts, {HOSTS // 10} of them killed: {len(found)} seeds, {took:.1f} s each",
            f"a decision: {usual * 1e3:.1f} ms, at most {longest * 1e3:.1f} ms, target at most {MOST_DECISION_S:g} s",
            f"from an answer to the next order of that host: {usual_gap * 1e3:.1f} ms, at most {gap * 1e3:.0f} ms",
            f"memory of coordinator and hosts: {peak / 2**20:.0f} MiB, target at most {MOST_BYTES >> 20} MiB"
            f" -> {'met' if met else 'MISSED'}",
            f"runs lost: {lost}, counted twice: {doubled} -> {'met' if lost == doubled == 0 else 'MISSED'}",
        ]
    )


def main() -> int:
    """Play and print; 1 where a run was lost or counted twice. Then what larger fleets take, one seed each."""
    print("Placing runs on simulated hosts")
    found = asked(HOSTS, range(SEEDS))
    print(show(found))
    for more in (400, 800, 1600):
        (one,) = asked(more, [1])
        print(
            f"{more} hosts: {one['seconds']:.1f} s, a decision {one['usual'] * 1e3:.1f} ms,"
            f" at most {one['decided'] * 1e3:.0f} ms, {one['peak'] / 2**20:.0f} MiB"
        )
    return int(any(each["lost"] or each["doubled"] for each in found))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        _child(int(sys.argv[2]), [int(word) for word in sys.argv[3:]])
    else:
        sys.exit(main())
