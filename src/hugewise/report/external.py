"""The reports of `hugewise analyze`: what the data say, what their layout cannot support, and all figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from hugewise.external.compare import effective
from hugewise.external.types import ExternalComparison, ExternalResults, MetricResults, encode
from hugewise.report import answers, numbers
from hugewise.report.document import Document, Lines, Part, Picture, Section, html, markdown
from hugewise.report.external_tables import (
    cleaned,
    figures_table,
    margins_table,
    medians_table,
    outliers_table,
    quantiles_table,
    unit_of,
)
from hugewise.report.figures.sample import autocorrelations, histogram, in_time_order, qq_plot
from hugewise.report.figures.theme import Spec, palette
from hugewise.report.names import file_name
from hugewise.report.numbers import NOTHING, Scale
from hugewise.report.sentences import (
    EXACT_LEGEND,
    LEGEND_TITLE,
    SYMBOLS,
    better_direction,
    interval_words,
    printable,
    tier_name,
)
from hugewise.report.tables import Table
from hugewise.report.write import write_file

__all__ = ["document", "sentence", "show", "write"]


class _Drawing(NamedTuple):
    key: str
    stem: str
    caption: str
    spec: Spec


def sentence(one: ExternalComparison, metric: MetricResults, margin: float) -> str:
    """What was found, or what the numbers suggest and why that is no verdict."""
    arm, base, name = (printable(text) for text in (one.arm, one.baseline, metric.metric.name))
    effect = "has no ratio"
    if one.ratio is not None:
        span = interval_words(one.ratio, one.low, one.high, one.confidence, one.verdict)
        effect = f"{numbers.point(one.ratio, one.low, one.high)} ({span})"
    reason = f"{one.reason.rstrip('.')}."
    match one.verdict:
        case "better" | "worse":
            said = f"{arm} is {one.verdict} than {base}: {name} {effect}, from {one.n:,.0f} pairs."
        case "equivalent":
            said = f"{arm} is equivalent to {base} within ±{numbers.percent(margin)}: {name} {effect}."
        case "undecided":
            said = f"{arm} against {base} is undecided: {name} {effect}, from {one.n:,.0f} pairs."
        case _:
            said = f"No verdict on {arm} against {base}. {_suggested(one, arm, base, margin)}: {name} {effect}."
    return f"{said} {reason}"


def _suggested(one: ExternalComparison, arm: str, base: str, margin: float) -> str:
    if one.layout.fatal is not None:
        return "Nothing follows from the numbers"
    match one.suggestion:
        case "better" | "worse" | "larger" | "smaller":
            return f"The numbers suggest that {arm} is {one.suggestion} than {base}"
        case "equivalent":
            return f"The numbers suggest that {arm} and {base} differ by less than {numbers.percent(margin)}"
        case _:
            return (
                "The numbers suggest nothing"
                if numbers.interval(one.ratio, one.low, one.high)
                else "The numbers have no interval"
            )


def document(results: ExternalResults) -> Document:
    """The report's sections, in the order in which a reader needs them."""
    many = len(results.metrics) > 1
    sections: list[Section] = []
    for number, metric in enumerate(results.metrics, 1):
        prefix = f"{number}. {metric.metric.name}: " if many else ""
        sections += _sections(results, metric, number, prefix)
    if any(one.tiers for metric in results.metrics for one in metric.comparisons):
        sections.append(Section(LEGEND_TITLE, (Lines(EXACT_LEGEND, points=True),), brief=True))
    sections.append(_about(results))
    arms = list(dict.fromkeys(arm.arm for metric in results.metrics for arm in metric.arms))
    return Document(
        title=f"{' against '.join(arms[:4])}{' ...' if len(arms) > 4 else ''}",
        lead=(
            f"Measurements made elsewhere, from {', '.join(results.files[:6])}"
            f"{f' and {len(results.files) - 6} more' if len(results.files) > 6 else ''} "
            f"({', '.join(results.formats)}).",
        ),
        sections=tuple(sections),
    )


def _sections(results: ExternalResults, metric: MetricResults, number: int, prefix: str) -> Iterator[Section]:
    unit = unit_of(metric)
    line = f"{metric.metric.name} ({metric.metric.unit or 'no unit'}, {better_direction(metric.metric)})"
    said: list[Part] = [Lines((f"{line}: {metric.metric.description}.",))]
    for one in metric.comparisons:
        badge = one.verdict
        said.append(Lines((sentence(one, metric, results.margin),), badge=badge))
    if not metric.comparisons:
        said.append(Lines(("There is one arm: nothing is compared.",)))
    yield Section(f"{prefix}What the data say", tuple(said), brief=True)
    caveats = _caveats(metric)
    if caveats:
        yield Section(f"{prefix}What this layout cannot support", (Lines(caveats, points=True),), level=3, brief=True)
    yield Section(f"{prefix}Figures", (figures_table(metric, unit), margins_table(metric, unit)), brief=True)
    yield Section(f"{prefix}Three questions", (), brief=True)
    yield from _questions(metric, unit)
    yield Section(f"{prefix}Comparisons", tuple(_comparison_parts(metric, results)))
    yield Section(
        f"{prefix}Shape, outliers and order",
        (
            *(Picture(drawing.key, drawing.caption) for drawing in _drawings(metric, number)),
            quantiles_table(metric, unit),
            outliers_table(metric, unit),
            medians_table(metric, unit),
        ),
    )


def _caveats(metric: MetricResults) -> tuple[str, ...]:
    found = [caveat.sentence for one in metric.comparisons for caveat in one.layout.caveats]
    found += [note for arm in metric.arms for note in arm.notes]
    return tuple(dict.fromkeys(found))


def _questions(metric: MetricResults, unit: Scale) -> Iterator[Section]:
    asked = (
        [tuple(answers.normal(arm)) for arm in metric.arms],
        [tuple(answers.outliers(arm, unit, effective(arm))) for arm in metric.arms],
        [
            tuple(answers.spread(arm, [one for one in metric.comparisons if arm.arm in (one.arm, one.baseline)]))
            for arm in metric.arms
        ],
    )
    for question, told in zip(answers.QUESTIONS, asked, strict=True):
        lines = _once([" ".join(lines) for lines in told], told)
        yield Section(question, (Lines(lines, points=True),), level=3, brief=True)


def _once(joined: list[str], told: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Sentences that are the same for every arm are said once, at the end."""
    common = [line for line in told[0] if len(told) > 1 and all(line in other for other in told[1:])]
    if not common:
        return tuple(joined)
    own = [" ".join(line for line in lines if line not in common) for lines in told]
    return (*(line for line in own if line), " ".join(common))


def _comparison_parts(metric: MetricResults, results: ExternalResults) -> Iterator[Part]:
    for one in metric.comparisons:
        rows = [
            ("method", one.method),
            ("estimand", one.estimand),
            (
                "what counts",
                f"{one.n:,.0f} {'on the smaller side' if one.layout.kind == 'unpaired' else 'pairs'}",
            ),
            (f"{one.arm}/{one.baseline}", numbers.ratio(one.ratio, one.low, one.high)),
            ("confidence of the interval", numbers.percent(one.confidence)),
            ("p of no difference, at this fixed n", NOTHING if one.p is None else f"{one.p:.2g}"),
            ("failed runs", f"{one.failures_arm} and {one.failures_baseline}"),
            ("correlation within blocks", NOTHING if one.shared is None else f"{one.shared:+.2f}"),
        ]
        yield Table(f"{printable(one.arm)} against {printable(one.baseline)}", ("", ""), cleaned(rows), 2)
        yield Lines(("It takes for granted:",))
        yield Lines(one.assumptions, points=True)
        if one.tiers:
            yield Table(
                "how far it reaches",
                ("tier", "arm/baseline", ""),
                cleaned([(tier_name(tier.name), _range(tier.low, tier.high), tier.sentence) for tier in one.tiers]),
                3,
            )
        for k, chance in one.medians.items():
            side = "higher" if metric.metric.better == "higher" else "lower"
            value = 1 - chance if side == "higher" else chance
            yield Lines(
                (
                    f"The median of {k} runs of {one.arm} would come out {side} than that of {k} of "
                    f"{one.baseline} in {numbers.share(value)} of cases, if runs were independent draws "
                    f"from these values: so much does a comparison of medians of {k} say.",
                )
            )
    if len(metric.comparisons) > 1 or len(results.metrics) > 1:
        judged = sum(len(one.comparisons) for one in results.metrics)
        yield Lines(
            (f"{judged} comparisons share the error rate of {1 - results.confidence:.4g} equally (Bonferroni).",)
        )


def _range(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        known = high if low is None else low
        return NOTHING if known is None else f"at {'most' if low is None else 'least'} {known:.4f}"
    return f"{low:.4f} to {high:.4f}"


def _about(results: ExternalResults) -> Section:
    budget = "none" if results.budget is None else f"{results.budget:,} pairs"
    declared = f"blocks in an order chosen by a coin, budget {budget}" if results.randomised else "nothing"
    rows = [
        ("files", ", ".join(results.files)),
        ("formats", ", ".join(results.formats)),
        ("confidence", numbers.percent(results.confidence)),
        ("margin of equivalence", f"±{numbers.percent(results.margin)}"),
        ("declared", declared),
        ("other metrics in the files", ", ".join(results.others) or "none"),
    ]
    return Section("About this analysis", (Table("as asked", ("", ""), cleaned(rows), 2),))


def _drawings(metric: MetricResults, number: int) -> Iterator[_Drawing]:
    colour, unit, name = palette({arm.arm for arm in metric.arms}), unit_of(metric), printable(metric.metric.name)
    found = {
        "histogram": (
            histogram(metric.arms, colour, unit, name),
            f"Histogram of {name}. Points stand for values beyond 3 standard deviations of the mean.",
        ),
        "qq": (
            qq_plot(metric.arms, colour, unit, name),
            f"Normal Q-Q plot of {name}: a normal sample lies on the dashed line, which is drawn through the bulk.",
        ),
        "time-order": (
            in_time_order(metric.arms, colour, unit, name),
            f"{name} in the order in which it was measured.",
        ),
        "autocorrelation": (
            autocorrelations(metric.arms, colour),
            "How values depend on those before them, by distance.",
        ),
    }
    for kind, (spec, caption) in found.items():
        if spec is not None:
            yield _Drawing(f"{number}-{kind}", f"{file_name(number, metric.metric.name)}_{kind}", caption, spec)


def write(results: ExternalResults, folder: Path | str) -> dict[str, Path]:
    """Write report.html, report.md, report.json and figures/ into `folder`, each whole or not at all.

    Raises StorageError.
    """
    from hugewise.report import images  # noqa: PLC0415  (the engine of figures: only for those who write a report)

    place = Path(folder)
    paths: dict[str, Path] = {}
    inline: dict[str, str] = {}
    linked: dict[str, str] = {}
    for number, metric in enumerate(results.metrics, 1):
        for drawing in _drawings(metric, number):
            drawn = images.render(drawing.spec)
            alone = images.standalone(drawn)
            inline[drawing.key] = images.inline(drawn, name=f"figure-{drawing.key}", title=drawing.caption)
            linked[drawing.key] = f"figures/{drawing.stem}.svg"
            for kind, data in (("svg", alone.encode()), ("png", images.png(alone))):
                paths[f"{drawing.key}.{kind}"] = write_file(place / "figures" / f"{drawing.stem}.{kind}", data)
    told = document(results)
    for key, name, text in (
        ("json", "report.json", encode(results)),
        ("markdown", "report.md", markdown(told, linked, SYMBOLS).encode()),
        ("html", "report.html", html(told, inline, SYMBOLS).encode()),
    ):
        paths[key] = write_file(place / name, text)
    return paths


def show(results: ExternalResults, paths: Mapping[str, Path], console: Console | None = None) -> None:
    """Print the brief sections at the console's width (at most 100 columns); plain lines where it is no terminal."""
    console = console or Console(highlight=False)
    width = min(console.width, 100)
    found = Group(*_terminal(document(results), paths.get("html")))
    if console.is_terminal:
        console.print(found, width=width, crop=False)
        return
    with console.capture() as captured:
        console.print(found, width=width, crop=False)
    console.file.write("\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n")


def _terminal(told: Document, report: Path | None) -> Iterator[RenderableType]:
    yield Text(_ascii(told.title), style="bold")
    for line in told.lead:
        yield Text(_ascii(line))
    for section in told.sections:
        if not section.brief:
            continue
        yield Text()
        yield Text(_ascii(section.title), style="bold")
        for part in section.parts:
            match part:
                case Lines():
                    mark = f"{SYMBOLS[part.badge]} " if part.badge else "- " if part.points else ""
                    for line in part.lines:
                        yield Padding(Text(mark + _ascii(line), overflow="fold"), (0, 0, 0, 2))
                case Table():
                    yield _rich(part)
    if report is not None:
        yield Text()
        yield Text(f"Report: {printable(report)}", overflow="ignore", no_wrap=True)


def _rich(table: Table) -> RenderableType:
    """A table turned on its side, arms as columns: figures are many, arms few."""
    shown = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    shown.add_column(_ascii(table.head[0]))
    for row in table.rows:
        shown.add_column(Text(_ascii(row[0])), justify="right", overflow="fold")
    for place, name in enumerate(table.head[1:], 1):
        shown.add_row(Text(_ascii(name)), *(Text(_ascii(row[place])) for row in table.rows))
    return Group(Padding(Text(_ascii(table.caption), style="italic"), (0, 0, 0, 2)), Padding(shown, (0, 0, 0, 2)))


def _ascii(text: str) -> str:
    return printable(text).replace(numbers.MINUS, "-")
