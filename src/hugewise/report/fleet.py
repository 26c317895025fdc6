"""The report of a fleet: does it hold, on which class of machines, and what will the next host see."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from hugewise.model.fleet import (
    FleetComparison,
    FleetResults,
    HostEffect,
    PooledEffect,
    ProductOfEvidence,
)
from hugewise.model.results import DECIDED, VERDICTS
from hugewise.report import document as doc
from hugewise.report import numbers
from hugewise.report.data_files import fleet_json
from hugewise.report.document import file_name
from hugewise.report.figures.effects import forest, narrowed
from hugewise.report.figures.theme import palette
from hugewise.report.numbers import NOTHING, when
from hugewise.report.reasons import in_words, sentence
from hugewise.report.sentences import LEGEND_TITLE, better_direction, change_of, listed, marked
from hugewise.report.write import write_document
from hugewise.visible import printable

_FEWEST = 5  # hosts of a class, for the next one


def headline(comparison: FleetComparison) -> str:
    """Return whether the effect holds on the fleet, and its size."""
    whole = comparison.fleet or (comparison.strata[0] if comparison.strata else None)
    arm, base = f"`{printable(comparison.arm)}`", f"`{printable(comparison.baseline)}`"
    match None if whole is None else whole.verdict:
        case "better" | "worse" as verdict:
            assert whole is not None
            size = f": {printable(comparison.metric.name)} is {_size(whole)} there" if whole.ratio else ""
            return f"{arm} is {verdict} than {base} on the middle host of this fleet{size}."
        case "equivalent":
            return f"{arm} makes no difference that matters on the middle host of this fleet, against {base}."
        case "undecided":
            return f"Undecided: whether {arm} is better than {base} on this fleet cannot be told yet."
        case _:
            return f"No answer on {arm} against {base} on this fleet."


def details(comparison: FleetComparison, withheld: str = "") -> Iterator[str]:
    """Yield the details: each class of hosts, and the meaning of the metric. `withheld` is told of all comparisons."""
    for stratum in comparison.strata:
        yield _class(comparison, stratum, withheld)
    metric = comparison.metric
    text = f": {metric.description.rstrip('.')}" if metric.description else ""
    yield printable(f"{metric.name} is in {metric.unit or 'no unit'}, {better_direction(metric)}{text}.")


def caveats(results: FleetResults) -> Iterator[str]:
    """Yield what a reader has to know of all comparisons together."""
    if any(comparison.strata for comparison in results.comparisons) and not results.withheld:
        wrong = numbers.percent(1 - results.confidence)
        yield (
            f"The chance that any of these answers is wrong is at most {wrong}, as far as the hosts that measured are "
            "like those that did not. A typical host is the middle one. Nothing is claimed of the mean over hosts: "
            "some may differ much."
        )


def _class(comparison: FleetComparison, stratum: PooledEffect, withheld: str) -> str:
    where = " on a typical host" if stratum.verdict in DECIDED else ""
    texts = [f"{printable(stratum.stratum)}: {VERDICTS[stratum.verdict].plain}{where}"]
    if stratum.ratio is not None:
        room = numbers.room(stratum.ratio, stratum.low, stratum.high)
        texts[0] += f", {printable(comparison.metric.name)} {_size(stratum)}"
        texts[0] += f" (what was measured leaves room for {room})" if room else ""
    if stratum.outlying:
        texts.append(f"The effect on {listed([*map(printable, stratum.outlying)])} does not fit that on the others")
    hosts = [host for host in comparison.hosts if host.stratum == stratum.stratum]
    texts.append(f"Of {_many(len(hosts), 'host')} by themselves: {_by_themselves(hosts)}")
    if stratum.verdict == "none" and stratum.reason and not withheld:
        texts.append(sentence(stratum.reason).rstrip("."))
    if stratum.next_low is not None:
        next_one = numbers.room(stratum.ratio, stratum.next_low, stratum.next_high)
        chance = (
            "" if stratum.next_good is None else f"; it is better there with a chance of {_chance(stratum.next_good)}"
        )
        texts.append(f"Another host of this class will most likely see {next_one}{chance}")
    elif stratum.hosts < _FEWEST:
        texts.append(f"Too few of its hosts measured to say what another one will see: that takes {_FEWEST}")
    return f"{'. '.join(texts)}."


def _size(whole: PooledEffect) -> str:
    """`10.0% lower`."""
    assert whole.ratio is not None
    size = numbers.point(whole.ratio, whole.low, whole.high).lstrip("+" + numbers.MINUS)
    return f"{size} {'higher' if whole.ratio > 1 else 'lower'}"


def _by_themselves(hosts: Sequence[HostEffect]) -> str:
    counts: Counter[str] = Counter(host.verdict for host in hosts)
    told = (f"{counts[verdict]} {words.plain}" for verdict, words in VERDICTS.items() if counts[verdict])
    return ", ".join(told) or "none told"


def report(results: FleetResults) -> doc.Document:
    """Return the sections, in the order in which a reader needs them; those of a terminal are marked as brief."""
    hosts, classes = len(results.hosts), sum(stratum.measured > 0 for stratum in results.strata)
    colours = palette(
        {comparison.arm for comparison in results.comparisons}
        | {comparison.baseline for comparison in results.comparisons}
    )
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


def _answer(results: FleetResults) -> doc.Section:
    blocks: list[doc.Block] = []
    if results.withheld:
        blocks.append(doc.Note(f"Nothing is claimed over hosts: {results.withheld}."))
    for one in results.comparisons:
        whole = one.fleet or (one.strata[0] if one.strata else None)
        where = f"{one.cell}: " if len({comparison.cell for comparison in results.comparisons}) > 1 else ""
        verdict = "none" if whole is None else whole.verdict
        blocks.append(doc.Headline(verdict, f"{where}{headline(one)}", tuple(details(one, results.withheld))))
    if not results.comparisons:
        blocks.append(doc.Line("Nothing was compared on any host."))
    blocks += [doc.Line(told, quiet=True) for told in caveats(results)]
    blocks += [doc.Note(f"{warning[0].upper()}{warning[1:]}.") for warning in results.warnings]
    return doc.Section("Does it hold on this fleet?", tuple(blocks), key="answer", nav="Answer", brief=True)


def _comparison(results: FleetResults, number: int, comparison: FleetComparison, colour: str) -> doc.Section:
    spec = forest(comparison, colour, results.margin)
    stem = f"{file_name(number, f'{comparison.cell}-{comparison.arm}')}_forest"
    text = f"Effects of {comparison.arm} against {comparison.baseline} on {comparison.cell}, by class and host."
    caption = (
        "By class: the typical effect with its interval, what the next host of the class will likely see (the broad "
        "bar), and each host with its own exact interval. The grey band is the margin of equivalence."
    )
    figure = None if spec is None else doc.Figure(f"forest-{number}", stem, text, spec, caption, narrowed(spec))
    line = f"{comparison.metric.name} ({comparison.metric.unit or 'no unit'}, {better_direction(comparison.metric)})"
    blocks = doc.some(
        doc.Line(f"{line}: {comparison.metric.description}", quiet=True),
        figure,
        _strata_table(comparison),
        _evidence_table(comparison),
        _without_table(comparison),
        doc.Folded("Each host by itself", (_hosts_table(comparison),), long=True),
    )
    title = f"{number}. {comparison.cell}: {comparison.arm} against {comparison.baseline}"
    return doc.Section(title, blocks, key=f"comparison-{number}", nav=f"{number}. {printable(comparison.cell)}")


def _strata_table(comparison: FleetComparison) -> doc.Table:
    rows = [
        (
            stratum.stratum or "the fleet",
            marked(stratum.verdict),
            NOTHING if stratum.ratio is None else change_of(stratum.ratio, stratum.low, stratum.high),
            numbers.percent(None if stratum.confidence is None else round(stratum.confidence, 4)),
            f"{stratum.hosts} of {stratum.asked}",
            _spread(stratum),
            numbers.interval(stratum.ratio, stratum.next_low, stratum.next_high) or NOTHING,
            in_words(stratum.reason),
        )
        for stratum in (*comparison.strata, *([comparison.fleet] if comparison.fleet else []))
    ]
    head = (
        *("class", "verdict", "typical change (interval)", "confidence", "hosts", "spread over hosts (95%)"),
        *("next host (95%)", "why"),
    )
    return doc.table("by class of hosts, judged together", head, rows, 8)


def _evidence_table(comparison: FleetComparison) -> doc.Table | None:
    rows = [
        (
            stratum.stratum or "all hosts",
            product.end_point,
            product.hosts,
            _e_value(product.larger),
            _e_value(product.smaller),
            _e_value(product.adjusted),
            _direction(product),
        )
        for stratum in (*comparison.strata, *([comparison.fleet] if comparison.fleet else []))
        for product in stratum.evidence
    ]
    head = ("class", "end point", "hosts", "e larger", "e smaller", "adjusted", "on at least one host")
    caption = "e-values of hosts multiplied: by the coins alone, without a model of how hosts differ"
    return doc.table(caption, head, rows, 2) if rows else None


def _direction(product: ProductOfEvidence) -> str:
    return f"refused: {in_words(product.reason)}" if product.direction == "refused" else product.direction


def _e_value(value: float | None) -> str:
    return NOTHING if value is None else ">1e100" if value > 1e100 else f"{value:.3g}"


def _without_table(comparison: FleetComparison) -> doc.Table | None:
    rows = []
    for stratum in comparison.strata:
        if stratum.ratio is None or not stratum.without:
            continue
        ratio = stratum.ratio
        far = max(stratum.without, key=lambda each: abs(math.log(each.ratio / ratio)))
        typical, left = (numbers.like(value, ratio, stratum.low, stratum.high) for value in (ratio, far.ratio))
        rows.append((stratum.stratum, typical, far.host, left))
    head = ("class", "typical change", "moves most without", "then")
    return doc.table("leave one host out", head, rows, 1) if rows else None


def _hosts_table(comparison: FleetComparison) -> doc.Table:
    rows = [
        (
            host.host,
            host.stratum,
            marked(host.verdict),
            change_of(host.ratio, host.low, host.high),
            host.n,
            NOTHING if host.pooled_ratio is None else numbers.like(host.pooled_ratio, host.ratio, host.low, host.high),
            NOTHING if host.error is None else f"{100 * host.error:.2g}%",
            in_words(host.absent or host.reason),
        )
        for host in comparison.hosts
    ]
    head = ("host", "class", "verdict", "change (interval)", "pairs", "corrected for the stop", "error", "why")
    return doc.table("each host by itself: exact there", head, rows, 3)


def _left_out(results: FleetResults) -> Iterator[doc.Section]:
    if results.left_out:
        rows = [(part.host, part.why, part.run or NOTHING, part.reason) for part in results.left_out]
        table = doc.table("no part in any figure", ("host", "why", "run", "reason"), rows, 4)
        yield doc.Section("Hosts left out", (table,), key="left-out", nav="Left out", brief=True)


def _classes(results: FleetResults) -> doc.Section:
    rows = [
        (
            stratum.name,
            stratum.key,
            stratum.measured,
            stratum.known,
            numbers.share(stratum.share),
            "; ".join(f"{name} {value}" for name, value in stratum.facts.items()),
        )
        for stratum in results.strata
    ]
    head = ("class", "key", "measured", "known", "share of the fleet", "what its hosts have alike")
    shares = f"Shares are of {results.composition}: the fleet's effect weighs classes by them."
    return doc.Section(
        "Classes of hosts", (doc.table("classes", head, rows, 6), doc.Line(shares, quiet=True)), key="classes"
    )


def _hosts(results: FleetResults) -> doc.Section:
    rows = [
        (
            host.host,
            host.stratum,
            host.run,
            host.state,
            host.blocks,
            when(host.started),
            host.restarts,
        )
        for host in results.hosts
    ]
    head = ("host", "class", "run", "state", "blocks", "began", "restarts")
    table = doc.table("hosts that measured", head, rows, 4)
    return doc.Section("Hosts", (table,), key="hosts")


def _levels(results: FleetResults) -> doc.Section:
    units = {comparison.cell: comparison.metric.unit for comparison in results.comparisons}
    rows = []
    for level in results.levels:
        unit = numbers.scale(units.get(level.cell, ""), [level.median])
        rows.append(
            (
                level.cell,
                level.arm,
                level.stratum,
                *(unit.text(level.median), f"{unit.number(level.least)} to {unit.number(level.most)}"),
                *(f"{unit.number(level.low)} to {unit.number(level.high)}", level.hosts, level.n),
            )
        )
    head = ("cell", "policy", "class", "middle host", "hosts from, to", "5% to 95% on a host", "hosts", "attempts")
    note = "Levels say what a class is like; no effect is made of them: blocks never span hosts."
    return doc.Section("Levels", (doc.table("levels", head, rows, 3), doc.Line(note, quiet=True)), key="levels")


def _legend(results: FleetResults) -> doc.Section:
    confidence = numbers.percent(results.confidence)
    points = (
        "Each host's verdict is exact there: by the coins of its own blocks, whatever other hosts are like.",
        f"The typical effect of a class, and of the fleet, takes its hosts for a sample of hosts like them. A verdict "
        f"needs Student's t over hosts and their signs: all hold together at {confidence} (Holm).",
        "Estimates enter corrected for having stopped early, and each with the error of all its possible ends.",
        "The interval of the next host has the effect that a host of the class which did not measure will have, in 95 "
        "of 100 fleets like this; from 5 hosts of a class on.",
        "On a host that did not measure nothing is claimed: a run there has a verdict of its own.",
        "e-values say that a direction is so on at least one host, by the coins alone.",
    )
    return doc.Section(LEGEND_TITLE, (doc.Points(points),), key="legend", brief=True)


def _tally(results: FleetResults) -> tuple[tuple[str, int], ...]:
    counts: Counter[str] = Counter(
        stratum.verdict for comparison in results.comparisons for stratum in comparison.strata
    )
    return tuple((verdict, counts[verdict]) for verdict in VERDICTS if counts[verdict])


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


def write(results: FleetResults, folder: Path | str) -> dict[str, Path]:
    """Write the fleet's report into `folder`, each file whole or not at all. Raises StorageError, UserError."""
    return write_document(report(results), folder, {"json": ("fleet.json", (fleet_json(results),))})
