"""A coordinator on the desk of a rack, as a person has it: `hugewise fleet ...`, its lines, and what comes of it."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import hugewise
from hugewise.fleet.folder import FleetFolder
from hugewise.fleet.records import FleetState, RunShipped
from hugewise.model.results import Results
from tests.fleet.harness import Rack
from tests.wait import until

STUDY = """
format = 1
name = "{name}"
policies = ["base", "thp"]
method = "fixed-n"
confidence = 0.9
window = "10m"

[budget]
blocks = {blocks}

[between]
settle = "{settle}ms"

[[workload]]
name = "chase"
timeout = "30s"
parameters = {{ bytes = "8m", loads = 1_000_000 }}
"""


# In place of a chase: an attempt that lasts for as long as its host is held (`Rack.hold`).
HELD = """
[[workload]]
name = "command"
timeout = "10m"
delivery = {{ share = 0.0 }}
parameters = {{ argv = ["/bin/sh", "-c", "while [ -e {folder}/hold-$(hostname) ]; do sleep 0.05; done"] }}
"""


def study(rack: Rack, *, blocks: int, settle: int = 500, name: str = "small", held: bool = False) -> Path:
    """A study of two arms that an ordinary account has. It waits so many milliseconds before each attempt, so that what
    a block takes hardly depends on what else runs here: a second and some. `held`: its attempts wait where their host
    is held.
    """
    path = rack.desk.folder / f"{name}-{blocks}.toml"
    text = STUDY.format(name=name, blocks=blocks, settle=settle)
    if held:
        text = text.partition("\n[[workload]]")[0] + HELD.format(folder=rack.folder)
    path.write_text(text)
    return path


class Driven:
    """`hugewise fleet WORDS` on the desk. `lines` are what it has said by now."""

    def __init__(self, rack: Rack, *words: str) -> None:
        self.rack = rack
        self.running = rack.desk.start(str(rack.desk.install / "bin" / "hugewise"), "fleet", *words)
        rack.started.append(self.running)
        self.lines: list[str] = []
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    @classmethod
    def run(cls, rack: Rack, asked: Path, hosts: Path) -> Driven:
        return cls(rack, "run", str(asked), "--hosts", str(hosts), "--results", str(rack.desk.folder / "results"))

    def _read(self) -> None:
        assert self.running.stdout is not None
        with self.running.stdout as output:
            for line in output:
                self.lines.append(line.rstrip("\n"))

    def said(self, text: str) -> bool:
        return any(text in line for line in list(self.lines))

    def until(self, text: str, timeout: float = 120.0) -> None:
        """Wait until it says so."""
        ended = self.running.poll
        until(lambda: self.said(text) or ended() is not None, f"it says {text!r}", timeout, seen=lambda: self.lines)
        self._reading.join(1 if self.running.poll() is None else 60)
        assert self.said(text), (text, self.lines)

    def kill(self) -> None:
        """SIGKILL, and nothing else: what it had started finds out by itself."""
        os.kill(self.running.pid, signal.SIGKILL)
        self.running.wait()
        self._reading.join(60)

    def end(self, timeout: float = 240.0) -> str:
        """Wait for its end; all that it said. Raises AssertionError where its status is not 0."""
        status = self.running.wait(timeout)
        self._reading.join(60)
        output = "\n".join(self.lines)
        assert status == 0, output
        return output

    @property
    def folder(self) -> Path:
        """The fleet's folder, as soon as it is said."""
        self.until("fleet 2")
        line = next(line for line in self.lines if line.startswith("fleet 2"))
        return Path(line.partition(" in ")[2])

    def state(self) -> FleetState:
        return FleetState.of(FleetFolder(self.folder).records())

    # -- what is on a host, seen from outside

    def log(self, host: str, number: int) -> bytes:
        """The records of the run of an assignment, as they are on its host by now; empty where there are none."""
        spool = self.rack[host].path(self.rack[host].spool)
        found = [*(spool / self.folder.name / str(number) / "results").glob("*/*/run.jsonl")]
        return found[0].read_bytes() if found else b""

    def number(self, host: str) -> int:
        """The assignment of the study on a host, as soon as there is one."""
        items: list[int] = []

        def begun() -> bool:
            items[:] = [work.number for work in self.state().of_host(host) if work.assigned.purpose == "study"]
            return bool(items)

        until(begun, f"the study is begun on {host}", seen=lambda: self.lines)
        return items[0]

    def in_a_block(self, host: str, after: int = 1) -> bytes:
        """Wait until the host is within a block, `after` of which are over; its records then."""
        number = self.number(host)

        def within() -> bool:
            assert self.running.poll() is None, self.lines
            kinds = [record["record"] for record in records(self.log(host, number))]
            return kinds.count("block_closed") >= after and kinds[-1] in ("begun", "block_opened", "knob_set")

        until(within, f"{host} is within a block", seen=lambda: (self.lines, self.log(host, number)[-2000:]))
        return self.log(host, number)

    def shipped(self) -> dict[str, Path]:
        """The run of each host that counts."""
        state = self.state()
        return {
            work.assigned.host: self.folder / work.shipped.folder
            for work in state.counted()
            if work.shipped is not None
        }


def records(log: bytes) -> list[dict[str, Any]]:
    """The whole lines of a run's log."""
    return [json.loads(line) for line in log.split(b"\n")[:-1]]


def whole(
    driven: Driven, blocks: int, before: dict[str, bytes], hosts: tuple[str, ...], *, alone: bool = True
) -> dict[str, Results]:
    """What was brought, by host, if nothing is lost and nothing is there twice.

    Each host has one run that counts, finished, with its chain of hashes whole; in it, each arm has one accepted
    attempt in each of so many blocks; and what was in its log `before` a fault is the beginning of it. Not `alone` on
    the machine, others may turn its settings: blocks that were so disturbed are there, and do not count.
    """
    by_name = {host: hugewise.open_results(path) for host, path in driven.shipped().items()}
    assert set(by_name) == set(hosts)
    numbers = [record.number for record in FleetFolder(driven.folder).records() if isinstance(record, RunShipped)]
    assert len(numbers) == len(set(numbers))
    for host, results in by_name.items():
        closed = results.blocks_complete + (0 if alone else results.blocks_disturbed)
        assert (results.state, closed) == ("finished", blocks), (host, results.disturbances)
        assert results.integrity is not None
        accepted = [attempt for attempt in results.attempts if attempt.state == "accepted"]
        if alone:
            # A block that does not count, as its attempts were not accepted, is made up for by a later one.
            assert Counter(one.arm for one in accepted) == {"base": blocks, "thp": blocks}
            assert set(Counter(one.block for one in accepted).values()) == {2}
        else:
            assert {(attempt.block, attempt.arm) for attempt in results.attempts} == {
                (block, arm) for block in range(1, blocks + 1) for arm in ("base", "thp")
            }
        assert len({(one.block, one.arm) for one in accepted}) == len(accepted)
    for host, log in before.items():
        kept = driven.shipped()[host].joinpath("run.jsonl").read_bytes()
        assert log.rpartition(b"\n")[0] and kept.startswith(log.rpartition(b"\n")[0])
    return by_name
