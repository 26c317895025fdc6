"""What a short run on one more host makes of a fleet's verdicts, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hugewise.model.fleet import TransferredVerdict
from hugewise.report import document as doc
from hugewise.report import numbers
from hugewise.report.sentences import change_of, listed
from hugewise.visible import printable

__all__ = ["report", "sentence"]

_MARKS = {"confirmed": "better", "confirmed, other size": "better", "contradicted": "worse", "prior": "undecided"}
_HOW = {"better": "is better than", "worse": "is worse than", "equivalent": "is equivalent to"}


def report(found: Mapping[str, Sequence[TransferredVerdict]], lost: Mapping[str, str]) -> doc.Document:
    """For a terminal: each verdict, whether it holds on each host; `lost`: hosts without a run, and why."""
    names = [printable(name) for name in (*found, *lost)]
    blocks = [block for each in found.values() for block in _blocks(each)]
    blocks += [doc.Line(f"{printable(name)}: no run came back: {printable(why)}") for name, why in lost.items()]
    return doc.Document(
        title=f"Does it hold on {listed(names)}?",
        lead=(),
        sections=(doc.Section("", tuple(blocks), brief=True),),
    )


def _blocks(found: Sequence[TransferredVerdict]) -> Iterator[doc.Block]:
    for one in found:
        yield doc.Headline(_mark(one), sentence(one), (_own(one), _prior(one), f"{one.reason}."))
    if not found:
        yield doc.Line("Its run compared nothing.")


def _mark(one: TransferredVerdict) -> str:
    if one.state in ("confirmed", "confirmed, other size"):
        return one.own_verdict
    return _MARKS[one.state]


def sentence(one: TransferredVerdict) -> str:
    """Whether the verdict holds there."""
    arm, base, where = printable(one.arm), printable(one.baseline), f"{printable(one.cell)}, {printable(one.metric)}"
    if one.state in ("confirmed", "confirmed, other size"):
        size = change_of(one.ratio, one.low, one.high)
        other = "" if one.state == "confirmed" else ", of another size than on the hosts before"
        return f"Confirmed: {arm} {_HOW[one.own_verdict]} {base} on {one.host} ({where}): {size}{other}."
    if one.state == "contradicted":
        return f"Contradicted: {arm} {_HOW[one.own_verdict]} {base} on {one.host} ({where})."
    return f"A prior, no claim: {arm} against {base} on {one.host} ({where})."


def _own(one: TransferredVerdict) -> str:
    level = numbers.percent(round(one.confidence, 6))
    effect = change_of(one.own_ratio, one.own_low, one.own_high)
    return f"its own run: {one.own_verdict}, {effect} at {level}, {one.pairs} pairs."


def _prior(one: TransferredVerdict) -> str:
    if not one.prior_hosts:
        return "hosts like it: none was measured."
    hosts = f"{one.prior_hosts} host{'' if one.prior_hosts == 1 else 's'} of {one.stratum or 'another class'}"
    typical = numbers.change(one.prior_ratio)
    span = numbers.interval(one.prior_ratio, one.prior_low, one.prior_high)
    likely = f"; the next one was to see {span}" if span else ""
    return f"hosts like it: {one.prior_verdict}, typically {typical} ({hosts}){likely}."
