"""What the coordinator looks at in a run that was brought: whether it is the one that was asked, and passed a check."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hugewise.analysis.analysis import analyze
from hugewise.errors import HugewiseError
from hugewise.fleet.orders import FleetQuestion
from hugewise.fleet.question import asked
from hugewise.fleet.records import FleetOpened, HostGreeted
from hugewise.fleet.strata import differences, stratum
from hugewise.store.folder import RunFolder

__all__ = ["foreign", "judged", "must_be", "seed_hash"]


def must_be(path: Path, name: str, question: FleetQuestion, opened: FleetOpened) -> None:
    """Raise HugewiseError where the run at `path` is not one of that question, or `name` is not its own."""
    found = RunFolder(path).opened()
    wanted = opened.digest if question.text == opened.question.text else asked(question, "check").digest
    if found.digest != wanted or found.run != name:
        raise HugewiseError(f"{name} is not a run of the study that was asked")


def foreign(path: Path, greeted: HostGreeted | None, others: Mapping[str, str]) -> str | None:
    """Why the run at `path` is not one of that host as it was greeted, by its first record; None where it is.

    `others`: the hosts of the runs that were brought before, by the hash of their seeds.
    """
    found = RunFolder(path).opened()
    if (other := others.get(found.seed_hash)) is not None:
        return f"it is a copy of a run of {other}"
    if greeted is None:
        return None
    if greeted.machine is not None and found.host.get("machine") != greeted.machine:
        return "it was measured on another machine than the one that was greeted"
    there = stratum(found.host, found.settings, greeted.stratum.memory)
    if told := differences(greeted.stratum, there):
        return f"its machine is not as it was when it was greeted: {'; '.join(told)}"
    for name, known in (
        ("hugewise", greeted.installed.version),
        ("hugewise-probe", greeted.installed.probe_version),
    ):
        if known is not None and (now := found.versions.get(name)) != known:
            return f"it was measured by {name} {now}, and {known} was there when it was greeted"
    return None


def seed_hash(path: Path) -> str:
    """The hash of a run's seed. Raises RunError."""
    return RunFolder(path).opened().seed_hash


def judged(path: Path) -> str | None:
    """Why a host's comparison of the same with the same does not pass; None where it does. Raises RunError."""
    found = analyze(path)
    if found.state not in ("finished", "time is up"):
        return f"it did not come to its end ({found.state})"
    for cell in found.cells:
        for one in cell.comparisons:
            if one.verdict in ("better", "worse"):
                return f"the same is called {one.verdict} than the same on {cell.cell} ({one.n} pairs)"
    blocks = found.blocks_complete + found.blocks_incomplete + found.blocks_disturbed
    if 2 * found.blocks_complete <= blocks:
        what = found.disturbances[0] if found.disturbances else "attempts could not be started"
        return f"{blocks - found.blocks_complete} of {blocks} blocks do not count: {what}"
    failed = sum(attempt.state == "failed" for attempt in found.attempts)
    return f"{failed} of {len(found.attempts)} attempts failed" if failed else None
