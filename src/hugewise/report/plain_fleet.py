"""What a fleet found, for readers who know no statistics: whether it holds, on which class, what another host will see.

The exact words (levels, spread, chances) are those of `report.fleet`; a page has them one click below. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from hugewise.model.fleet import FleetComparison, FleetResults, HostEffect, PooledEffect
from hugewise.report import numbers
from hugewise.report.sentences import SYMBOLS, better_direction
from hugewise.visible import printable

__all__ = ["caveats", "details", "headline"]

_ON_A_CLASS = {
    "better": "better on a typical host",
    "worse": "worse on a typical host",
    "equivalent": "no difference that matters on a typical host",
    "undecided": "not decided yet",
    "none": "no answer",
}
_BY_ITSELF = {
    "better": "better",
    "worse": "worse",
    "equivalent": "no difference that matters",
    "undecided": "undecided",
    "none": "no answer",
}


def headline(one: FleetComparison) -> str:
    """Whether it holds on the fleet, and by how much it changes what was measured."""
    whole = one.fleet or (one.strata[0] if one.strata else None)
    arm, base = f"`{printable(one.arm)}`", f"`{printable(one.baseline)}`"
    match None if whole is None else whole.verdict:
        case "better" | "worse" as verdict:
            assert whole is not None
            size = f": on a typical host {printable(one.metric.name)} is {_size(whole)}" if whole.ratio else ""
            return f"{arm} is {verdict} than {base} on this fleet{size}."
        case "equivalent":
            return f"{arm} makes no difference that matters on this fleet, against {base}."
        case "undecided":
            return f"Undecided: whether {arm} is better than {base} on this fleet cannot be told yet."
        case _:
            return f"No answer on {arm} against {base} on this fleet."


def details(one: FleetComparison) -> Iterator[str]:
    """Below it: each class of hosts, and what the metric is."""
    for stratum in one.strata:
        yield _class(one, stratum)
    metric = one.metric
    told = f": {metric.description.rstrip('.')}" if metric.description else ""
    yield printable(f"{metric.name} is in {metric.unit or 'no unit'}, {better_direction(metric)}{told}.")


def caveats(results: FleetResults) -> Iterator[str]:
    """What a reader has to know of all of it together."""
    if any(one.strata for one in results.comparisons) and not results.withheld:
        wrong = numbers.percent(1 - results.confidence)
        yield (
            f"The chance that any of these answers is wrong is at most {wrong}, as far as the hosts that measured are "
            "like those that did not."
        )


def _class(one: FleetComparison, stratum: PooledEffect) -> str:
    """A class in a few sentences: its answer, its hosts by themselves, and another host of it."""
    said = [f"{printable(stratum.stratum)}: {_ON_A_CLASS[stratum.verdict]}"]
    if stratum.ratio is not None:
        room = numbers.room(stratum.ratio, stratum.low, stratum.high)
        said[0] += f", {printable(one.metric.name)} {_size(stratum)}"
        said[0] += f" (what was measured leaves room for {room})" if room else ""
    hosts = [host for host in one.hosts if host.stratum == stratum.stratum]
    said.append(f"Of {len(hosts)} host{'' if len(hosts) == 1 else 's'} by themselves: {_own(hosts)}")
    if stratum.next_low is not None:
        next_one = numbers.room(stratum.ratio, stratum.next_low, stratum.next_high)
        said.append(f"Another host of this class will most likely see {next_one}")
    else:
        said.append("Too few of its hosts measured to say what another one will see: that takes 5")
    return f"{'. '.join(said)}."


def _size(whole: PooledEffect) -> str:
    """`10.0% lower`."""
    assert whole.ratio is not None
    size = numbers.point(whole.ratio, whole.low, whole.high).lstrip("+" + numbers.MINUS)
    return f"{size} {'higher' if whole.ratio > 1 else 'lower'}"


def _own(hosts: Sequence[HostEffect]) -> str:
    """How many hosts have which answer by themselves."""
    own: Counter[str] = Counter(host.verdict for host in hosts)
    return ", ".join(f"{own[verdict]} {_BY_ITSELF[verdict]}" for verdict in SYMBOLS if own[verdict]) or "none told"
