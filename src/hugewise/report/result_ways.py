"""The ways to test a claim that no run has taken: what to type, what it needs, and how long it takes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hugewise.report import unmeasured
from hugewise.report.result_data import PageData
from hugewise.report.source_claims import Guests, Way
from hugewise.study.workload import SMALL

_NEEDS: Mapping[Guests, str] = {
    "": "",
    "emulated": " under KVM",
    "counting": " with guests under KVM that measure instead of counting instructions",
}


def way_words(way: Way, data: Sequence[PageData]) -> str:
    """What to type to take the way, what it needs, and how long it takes if a page knows that."""
    return ways_words([way], data)


def ways_words(ways: Sequence[Way], data: Sequence[PageData]) -> str:
    """As `way_words`, of several: what they need alike is told once."""
    alike: dict[tuple[str, str], list[str]] = {}
    for way in ways:
        where = f"{_needs(way)}{_left_out(way, data)}"
        if way.lacks:
            quantity = "that quantity" if way.counts or way.guests else way.lacks
            cell = f"a cell {way.label} that judges {quantity} as well (key also)"
            alike.setdefault((cell, where), []).append(way.study)
        else:
            alike.setdefault(("", f"{where}{_hours(way, data)}"), []).append(way.command)
    return "; or ".join(_alike(cell, what, where) for (cell, where), what in alike.items())


def _alike(cell: str, what: Sequence[str], where: str) -> str:
    """A cell that studies lack, or commands, with what they need."""
    if cell:
        return f"{cell} in {' or '.join(what)}{where}"
    if where and len(what) > 1:
        return f"{' or '.join(what)}, each{where}"
    return f"{'; or '.join(what)}{where}"


def _needs(way: Way) -> str:
    """What its guests need, and of which architecture the machine then is."""
    machine = f" on an {way.arch} machine" if way.guests == "emulated" and way.arch is not None else ""
    return f"{machine}{_NEEDS[way.guests]}"


def _left_out(way: Way, data: Sequence[PageData]) -> str:
    """Why a run of it left the arm out, which another machine may not."""
    for results in (run.results for page in data for run in page.runs if run.results.study == way.study):
        for one in results.left_out:
            if one.policy == way.policy and (one.cell == "*" or way.has(one.cell)):
                return f" on a machine on which {way.policy} can run (left out here: {one.reason})"
    return ""


def _hours(way: Way, data: Sequence[PageData]) -> str:
    """What a verdict takes if it is as noisy as a measured neighbour, as the page of the study has it; of a metric
    beside the cell's own nothing is known.
    """
    for page in () if way.beside else data:
        newest = page.runs[0].results
        if (newest.study, newest.options.get("scale", SMALL)) == (way.study, way.scale):
            for one in page.unmeasured:
                if way.has(one.cell) and one.pairs is not None and one.seconds is not None:
                    told = f"{unmeasured.pairs(one)} pairs, {unmeasured.hours(one)}"
                    return f" ({told}, if as noisy as {unmeasured.like(one)})"
    return ""
