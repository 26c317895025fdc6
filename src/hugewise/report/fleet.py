"""The report of a fleet: does it hold, on which class of machines, and what will the next host see.

What a fleet found, for readers who know no statistics: whether it holds, on which class, what another host will see.

The exact words (levels, spread, chances) are those of `report.fleet`; a page has them one click below. Pure.

What a short run on one more host makes of a fleet's verdicts, in words.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hugewise.model.fleet import (
    FleetComparison,
    FleetHost,
    FleetResults,
    HostEffect,
    PooledEffect,
    ProductOfEvidence,
    TransferredVerdict,
)
from hugewise.report import document as doc
from hugewise.report import numbers
from hugewise.report.document import file_name
from hugewise.report.figures.effects import forest
from hugewise.report.figures.theme import palette
from hugewise.report.json import encode_fleet
from hugewise.report.numbers import NOTHING, when
from hugewise.report.sentences import LEGEND_TITLE, SYMBOLS, better_direction, change_of, listed
from hugewise.report.write import write_document
from hugewise.visible import printable

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
    said.append(f"Of {len(hosts)} host{'' if len(hosts) == 1 else 's'} by themselves: {_own_words(hosts)}")
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


def _own_words(hosts: Sequence[HostEffect]) -> str:
    """How many hosts have which answer by themselves."""
    own: Counter[str] = Counter(host.verdict for host in hosts)
    return ", ".join(f"{own[verdict]} {_BY_ITSELF[verdict]}" for verdict in SYMBOLS if own[verdict]) or "none told"


_SHOWN = 3
_VERDICTS = {
    "better": "is better than",
    "worse": "is worse than",
    "equivalent": "is equivalent to",
    "undecided": "against",
    "none": "against",
}


def report(results: FleetResults) -> doc.Document:
    """The report's sections, in the order in which a reader needs them; those of a terminal are marked as brief."""
    hosts, classes = len(results.hosts), sum(one.measured > 0 for one in results.strata)
    colours = palette({one.arm for one in results.comparisons} | {one.baseline for one in results.comparisons})
    return doc.Document(
        title=f"{results.study}: {results.question}",
        lead=(
            doc.Line(
                f"Fleet {results.fleet}: {_many(hosts, 'host')} of {_many(classes, 'class', 'classes')} measured, "
                f"{_many(len(results.left_out), 'other')} left out."
            ),
        ),
        sections=(
            _answer(results),
            *(_comparison(results, number, one, colours[one.arm]) for number, one in enumerate(results.comparisons, 1)),
            *_left_out(results),
            _classes(results),
            _hosts(results),
            _levels(results),
            _legend(results),
        ),
        about=results.study,
        page=results.study,
        heading=results.question or results.study,
        tally=_tally(results),
        files="fleet.json and figures/",
        colours=colours,
    )


def sentence(one: FleetComparison, confidence: float) -> str:
    """Whether it holds on the fleet, on which classes, and what the next host will likely see."""
    whole = one.fleet or (one.strata[0] if one.strata else None)
    arm, base = printable(one.arm), printable(one.baseline)
    if whole is None:
        return f"{arm} against {base}: nothing was measured."
    effect = f"{printable(one.metric.name)} {change_of(whole.ratio, whole.low, whole.high)}"
    if whole.ratio is None:
        effect = f"of which no typical {printable(one.metric.name)} is known (hosts by themselves: {_own(one.hosts)})"
    match whole.verdict:
        case "better" | "worse" | "equivalent":
            said = (
                f"Yes at {numbers.percent(confidence)}: {arm} {_VERDICTS[whole.verdict]} {base} on this fleet, {effect}"
            )
        case "undecided":
            said = f"Not decided: {arm} against {base} on this fleet, {effect}"
        case _:
            said = f"No verdict on {arm} against {base} on this fleet, {effect}"
    return f"{said}; {_where(one)}; {_next(one)}."


def _where(one: FleetComparison) -> str:
    """On which classes."""
    if len(one.strata) == 1:
        return f"its hosts are of one class ({printable(one.strata[0].stratum)})"
    by: dict[str, list[str]] = {}
    for stratum in one.strata:
        by.setdefault(stratum.verdict, []).append(printable(stratum.stratum))
    if len(by) == 1:
        (verdict,) = by
        return f"{_WORDS[verdict]} on all {len(one.strata)} classes"
    return ", ".join(f"{_WORDS[verdict]} on {_several(names)}" for verdict, names in by.items())


_WORDS = {
    "better": "better",
    "worse": "worse",
    "equivalent": "equivalent",
    "undecided": "undecided",
    "none": "without a verdict",
}


def _next(one: FleetComparison) -> str:
    """What the next host will likely see, by class."""
    known = [stratum for stratum in one.strata if stratum.next_low is not None]
    if not known:
        most = max((stratum.hosts for stratum in one.strata), default=0)
        return f"nothing is said of the next host: that takes 5 hosts of a class, and there are {most} at most"
    said = []
    for stratum in known[:_SHOWN]:
        span = numbers.interval(stratum.ratio, stratum.next_low, stratum.next_high)
        of = "" if len(one.strata) == 1 else f" of {printable(stratum.stratum)}"
        said.append(f"the next host{of} will likely see {span}")
    return ", ".join(said)


def _answer(results: FleetResults) -> doc.Section:
    """In plain words, and behind a line in exact ones."""
    blocks: list[doc.Block] = []
    exact: list[doc.Block] = []
    if results.withheld:
        blocks.append(doc.Note(f"Nothing is claimed over hosts: {results.withheld}."))
    for one in results.comparisons:
        whole = one.fleet or (one.strata[0] if one.strata else None)
        where = f"{one.cell}: " if len({each.cell for each in results.comparisons}) > 1 else ""
        verdict = "none" if whole is None else whole.verdict
        blocks.append(doc.Headline(verdict, f"{where}{headline(one)}", tuple(details(one))))
        lines = tuple(_class_line(one, stratum) for stratum in one.strata)
        exact.append(doc.Headline(verdict, f"{where}{sentence(one, results.confidence)}", lines))
    if not results.comparisons:
        blocks.append(doc.Line("Nothing was compared on any host."))
    blocks += [doc.Line(told, quiet=True) for told in caveats(results)]
    blocks += [doc.Note(f"{warning[0].upper()}{warning[1:]}.") for warning in results.warnings]
    if exact:
        blocks.append(doc.Folded("The same in exact terms", tuple(exact), long=True))
    return doc.Section("Does it hold on this fleet?", tuple(blocks), key="answer", nav="Answer", brief=True)


def _class_line(one: FleetComparison, stratum: PooledEffect) -> str:
    """A class in a line: its verdict, its effect, its spread, its next host, and its hosts by themselves."""
    counts = _own([host for host in one.hosts if host.stratum == stratum.stratum])
    parts = [f"{stratum.stratum}: {_WORDS[stratum.verdict]}"]
    if stratum.ratio is not None:
        parts[0] += f", typically {change_of(stratum.ratio, stratum.low, stratum.high)}"
    parts.append(f"by themselves {_many(stratum.asked, 'host')}: {counts}")
    if stratum.spread is not None:
        parts.append(f"effects of hosts spread by {_spread(stratum)}")
    if stratum.next_good is not None:
        parts.append(f"the next one is better with a chance of {_chance(stratum.next_good)}")
    if stratum.verdict in ("undecided", "none"):
        parts.append(stratum.reason)
    return "; ".join(parts)


def _own(hosts: Sequence[HostEffect]) -> str:
    """How many hosts have which verdict by themselves."""
    own: Counter[str] = Counter(host.verdict for host in hosts)
    return ", ".join(f"{own[verdict]} {_WORDS[verdict]}" for verdict in SYMBOLS if own[verdict])


def _comparison(results: FleetResults, number: int, one: FleetComparison, colour: str) -> doc.Section:
    spec = forest(one, colour, results.margin)
    stem = f"{file_name(number, f'{one.cell}-{one.arm}')}_forest"
    text = f"Effects of {one.arm} against {one.baseline} on {one.cell}, by class and host."
    caption = (
        "By class: the typical effect with its interval, what the next host of the class will likely see (the broad "
        "bar), and each host with its own exact interval. The grey band is the margin of equivalence."
    )
    figure = None if spec is None else doc.Figure(f"forest-{number}", stem, text, spec, caption)
    line = f"{one.metric.name} ({one.metric.unit or 'no unit'}, {better_direction(one.metric)})"
    blocks = doc.some(
        doc.Line(f"{line}: {one.metric.description}", quiet=True),
        figure,
        _strata_table(one),
        _evidence_table(one),
        _without_table(one),
        doc.Folded("Each host by itself", (_hosts_table(one),), long=True),
    )
    title = f"{number}. {one.cell}: {one.arm} against {one.baseline}"
    return doc.Section(title, blocks, key=f"comparison-{number}", nav=f"{number}. {printable(one.cell)}")


def _strata_table(one: FleetComparison) -> doc.Table:
    rows = [
        (
            stratum.stratum or "the fleet",
            f"{SYMBOLS[stratum.verdict]} {stratum.verdict}",
            NOTHING if stratum.ratio is None else change_of(stratum.ratio, stratum.low, stratum.high),
            numbers.percent(None if stratum.confidence is None else round(stratum.confidence, 4)),
            f"{stratum.hosts} of {stratum.asked}",
            _spread(stratum),
            numbers.interval(stratum.ratio, stratum.next_low, stratum.next_high) or NOTHING,
            stratum.reason,
        )
        for stratum in (*one.strata, *([one.fleet] if one.fleet else []))
    ]
    head = (
        *("class", "verdict", "typical change (interval)", "confidence", "hosts", "spread over hosts (95%)"),
        *("next host (95%)", "why"),
    )
    return doc.table("by class of hosts, judged together", head, rows, 8)


def _evidence_table(one: FleetComparison) -> doc.Table | None:
    rows = [
        (
            stratum.stratum or "all hosts",
            each.end_point,
            each.hosts,
            _e_value(each.larger),
            _e_value(each.smaller),
            _e_value(each.adjusted),
            _direction(each),
        )
        for stratum in (*one.strata, *([one.fleet] if one.fleet else []))
        for each in stratum.evidence
    ]
    head = ("class", "end point", "hosts", "e larger", "e smaller", "adjusted", "on at least one host")
    caption = "e-values of hosts multiplied: by the coins alone, without a model of how hosts differ"
    return doc.table(caption, head, rows, 2) if rows else None


def _direction(each: ProductOfEvidence) -> str:
    return f"refused: {each.reason}" if each.direction == "refused" else each.direction


def _e_value(value: float | None) -> str:
    return NOTHING if value is None else ">1e100" if value > 1e100 else f"{value:.3g}"


def _without_table(one: FleetComparison) -> doc.Table | None:
    """Of each class the host without which the typical effect is another."""
    rows = []
    for stratum in one.strata:
        if stratum.ratio is None or not stratum.without:
            continue
        ratio = stratum.ratio
        far = max(stratum.without, key=lambda each: abs(math.log(each.ratio / ratio)))
        typical, left = (numbers.like(value, ratio, stratum.low, stratum.high) for value in (ratio, far.ratio))
        rows.append((stratum.stratum, typical, far.host, left))
    head = ("class", "typical change", "moves most without", "then")
    return doc.table("leave one host out", head, rows, 1) if rows else None


def _hosts_table(one: FleetComparison) -> doc.Table:
    rows = [
        (
            host.host,
            host.stratum,
            f"{SYMBOLS[host.verdict]} {host.verdict}",
            change_of(host.ratio, host.low, host.high),
            host.n,
            NOTHING if host.pooled_ratio is None else numbers.like(host.pooled_ratio, host.ratio, host.low, host.high),
            NOTHING if host.error is None else f"{100 * host.error:.2g}%",
            host.absent or host.reason,
        )
        for host in one.hosts
    ]
    head = ("host", "class", "verdict", "change (interval)", "pairs", "corrected for the stop", "error", "why")
    return doc.table("each host by itself: exact there", head, rows, 3)


def _left_out(results: FleetResults) -> Iterator[doc.Section]:
    if results.left_out:
        rows = [(one.host, one.why, one.run or NOTHING, one.reason) for one in results.left_out]
        table = doc.table("no part in any figure", ("host", "why", "run", "reason"), rows, 4)
        yield doc.Section("Hosts left out", (table,), key="left-out", nav="Left out", brief=True)


def _classes(results: FleetResults) -> doc.Section:
    rows = [
        (
            one.name,
            one.key,
            one.measured,
            one.known,
            numbers.share(one.share),
            "; ".join(f"{name} {value}" for name, value in one.facts.items()),
        )
        for one in results.strata
    ]
    head = ("class", "key", "measured", "known", "share of the fleet", "what its hosts have alike")
    shares = f"Shares are of {results.composition}: the fleet's effect weighs classes by them."
    return doc.Section(
        "Classes of hosts", (doc.table("classes", head, rows, 6), doc.Line(shares, quiet=True)), key="classes"
    )


def _hosts(results: FleetResults) -> doc.Section:
    rows = [
        (
            one.host,
            one.stratum,
            one.run,
            one.state,
            one.blocks,
            when(one.started),
            _cost(one),
            f"{one.orders_s:.1f} s",
            one.restarts,
        )
        for one in results.hosts
    ]
    head = ("host", "class", "run", "state", "blocks", "began", "engine's worker", "orders", "restarts")
    note = (
        "What carrying the fleet cost a host while it measured: the engine's worker as a share of a core, and the "
        "processor time of orders at any time."
    )
    table = doc.table("hosts that measured", head, rows, 4)
    return doc.Section("Hosts", (table, doc.Line(note, quiet=True)), key="hosts")


def _cost(one: FleetHost) -> str:
    if one.worker_share is None:
        return NOTHING
    return f"{100 * one.worker_share:.2g}% of a core{', stopped' if one.worker_stopped else ''}"


def _levels(results: FleetResults) -> doc.Section:
    units = {one.cell: one.metric.unit for one in results.comparisons}
    rows = []
    for one in results.levels:
        unit = numbers.scale(units.get(one.cell, ""), [one.median])
        rows.append(
            (
                one.cell,
                one.arm,
                one.stratum,
                *(unit.text(one.median), f"{unit.number(one.least)} to {unit.number(one.most)}"),
                *(f"{unit.number(one.low)} to {unit.number(one.high)}", one.hosts, one.n),
            )
        )
    head = ("cell", "policy", "class", "middle host", "hosts from, to", "5% to 95% on a host", "hosts", "attempts")
    note = "Levels say what a class is like; no effect is made of them: blocks never span hosts."
    return doc.Section("Levels", (doc.table("levels", head, rows, 3), doc.Line(note, quiet=True)), key="levels")


def _legend(results: FleetResults) -> doc.Section:
    confidence = numbers.percent(results.confidence)
    points = (
        "Each host's verdict is exact there: by the coins of its own blocks, whatever other hosts are like.",
        f"The typical effect of a class, and of the fleet, takes its hosts for a sample of hosts like them, with "
        f"effects near a normal law: verdicts hold together at {confidence} over all classes and comparisons (Holm).",
        "Estimates enter corrected for having stopped early, and each with the error of all its possible ends.",
        "The interval of the next host has the effect that a host of the class which did not measure will have, in 95 "
        "of 100 fleets like this; from 5 hosts of a class on.",
        "On a host that did not measure all of it is a prior; hugewise fleet confirm makes a claim of it.",
        "e-values say that a direction is so on at least one host, by the coins alone.",
    )
    return doc.Section(LEGEND_TITLE, (doc.Points(points),), key="legend", brief=True)


def _tally(results: FleetResults) -> tuple[tuple[str, int], ...]:
    counts: Counter[str] = Counter(stratum.verdict for one in results.comparisons for stratum in one.strata)
    return tuple((verdict, counts[verdict]) for verdict in SYMBOLS if counts[verdict])


def _spread(stratum: PooledEffect) -> str:
    """`1.2% (0.4% to 3.1%)`: the standard deviation of the logarithm, as a change."""
    if stratum.spread is None or stratum.spread_low is None or stratum.spread_high is None:
        return NOTHING
    values = [math.expm1(min(each, 9.0)) for each in (stratum.spread, stratum.spread_low, stratum.spread_high)]
    places = max(0, min(4, numbers.decimals(max(values[2] - values[1], 1e-6) * 50)))
    middle, low, high = (f"{100 * value:.{places}f}%" for value in values)
    return f"{middle} ({low} to {high})"


def _chance(chance: float) -> str:
    return ">99.9%" if chance > 0.999 else "<0.1%" if chance < 0.001 else f"{chance:.1%}"


def _many(count: int, one: str, several: str = "") -> str:
    return f"{count} {one if count == 1 else several or f'{one}s'}"


def _several(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"


def write(results: FleetResults, folder: Path | str) -> dict[str, Path]:
    """Write report.html, report.md, fleet.json and figures/ into `folder`, each whole or not at all.

    Raises StorageError, UserError.
    """
    return write_document(report(results), folder, {"json": ("fleet.json", (encode_fleet(results),))})


_MARKS = {"confirmed": "better", "confirmed, other size": "better", "contradicted": "worse", "prior": "undecided"}
_HOW = {"better": "is better than", "worse": "is worse than", "equivalent": "is equivalent to"}


def confirmed_report(found: Mapping[str, Sequence[TransferredVerdict]], lost: Mapping[str, str]) -> doc.Document:
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
        yield doc.Headline(_mark(one), confirmed_sentence(one), (_host_sentence(one), _prior(one), f"{one.reason}."))
    if not found:
        yield doc.Line("Its run compared nothing.")


def _mark(one: TransferredVerdict) -> str:
    if one.state in ("confirmed", "confirmed, other size"):
        return one.own_verdict
    return _MARKS[one.state]


def confirmed_sentence(one: TransferredVerdict) -> str:
    """Whether the verdict holds there."""
    arm, base, where = printable(one.arm), printable(one.baseline), f"{printable(one.cell)}, {printable(one.metric)}"
    if one.state in ("confirmed", "confirmed, other size"):
        size = change_of(one.ratio, one.low, one.high)
        other = "" if one.state == "confirmed" else ", of another size than on the hosts before"
        return f"Confirmed: {arm} {_HOW[one.own_verdict]} {base} on {one.host} ({where}): {size}{other}."
    if one.state == "contradicted":
        return f"Contradicted: {arm} {_HOW[one.own_verdict]} {base} on {one.host} ({where})."
    return f"A prior, no claim: {arm} against {base} on {one.host} ({where})."


def _host_sentence(one: TransferredVerdict) -> str:
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
