"""What a comparison found, as one sentence; the same words in every report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hugewise.metric import Metric
from hugewise.report import numbers
from hugewise.results import ArmSummary, CellResult, Comparison, Results

__all__ = [
    "SYMBOLS",
    "arm_of",
    "better_direction",
    "effect_of",
    "metric_line",
    "printable",
    "run_line",
    "sentence",
    "winners",
]

# A verdict is never told by its colour alone.
SYMBOLS = {"better": "▲", "worse": "▼", "equivalent": "=", "undecided": "?", "none": "–"}


def printable(text: object) -> str:
    """`text` in one line without control, format or surrogate characters (terminal escapes, text direction)."""
    return "".join(one if one.isprintable() else " " if one in "\n\t\r" else "�" for one in str(text))


def arm_of(cell: CellResult, name: str) -> ArmSummary | None:
    """The summary of the arm `name`, or None when nothing of it was kept."""
    return next((arm for arm in cell.arms if arm.arm == name), None)


def better_direction(metric: Metric) -> str:
    """`lower is better`, or its opposite."""
    return "not judged" if metric.better == "neutral" else f"{metric.better} is better"


def metric_line(metric: Metric) -> str:
    """`latency_ns (ns, lower is better): time of one dependent load`."""
    return printable(f"{metric.name} ({metric.unit}, {better_direction(metric)}): {metric.description}")


def sentence(comparison: Comparison, metric: Metric, margin: float) -> str:
    """Which policy, better or worse by how much, the interval, the blocks and the confidence; else why not."""
    arm, base, name = (printable(text) for text in (comparison.arm, comparison.baseline, metric.name))
    level = numbers.percent(comparison.confidence)
    blocks = _blocks(comparison)
    match comparison.verdict:
        case "better" | "worse":
            span = f" ({level} interval {_span(comparison)}), from"
            how = ", the same in all" if comparison.constant else span
            text = f"{arm} is {comparison.verdict} than {base}: {name} {_distance(comparison)}{how} {blocks}."
        case "equivalent":
            text = (
                f"{arm} is equivalent to {base} within ±{numbers.percent(margin)}: {name} "
                f"{_effect(comparison, level, blocks)}."
            )
        case "undecided":
            text = f"{arm} against {base} is undecided: {name} {_effect(comparison, level, blocks)}."
        case _:
            text = f"No verdict on {arm} against {base}."
    return " ".join([text, *_reasons(comparison)])


def _blocks(comparison: Comparison) -> str:
    n = f"{comparison.n} block{'' if comparison.n == 1 else 's'}"
    return n if comparison.final else f"{n} of {comparison.planned} planned"


def effect_of(comparison: Comparison) -> str:
    """The change with its interval; of counts that do not vary, that they are the same in all blocks."""
    same = comparison.n if comparison.constant else None
    return numbers.effect(comparison.ratio, comparison.low, comparison.high, same)


def _distance(comparison: Comparison) -> str:
    ratio, low, high = comparison.ratio, comparison.low, comparison.high
    if ratio is None:
        return "changed"
    places = numbers.decimals((high - low) * 50, most=4) if low is not None and high is not None else 1
    size = numbers.exact(ratio) if comparison.constant else numbers.change(ratio, places=places)
    text = f"{size.lstrip('+' + numbers.MINUS)} {'higher' if ratio > 1 else 'lower'}"
    factor = max(ratio, 1 / ratio) if ratio > 0 else 1.0
    return f"{text} (a factor of {factor:.3g})" if factor >= 2 else text


def _span(comparison: Comparison) -> str:
    whole = numbers.effect(comparison.ratio, comparison.low, comparison.high)
    return whole.partition("(")[2].rstrip(")") or "not available"


def _effect(comparison: Comparison, level: str, blocks: str) -> str:
    if comparison.ratio is None:
        return f"has no estimate, from {blocks}"
    if comparison.constant:
        return f"{numbers.exact(comparison.ratio)}, the same in all {blocks}"
    whole = numbers.effect(comparison.ratio, comparison.low, comparison.high)
    return f"{whole.replace('(', f'({level} interval ')}, from {blocks}"


def _reasons(comparison: Comparison) -> Iterator[str]:
    if comparison.judged == "setting":
        yield f"Judges the setting of {printable(comparison.arm)}: {_backed(comparison.delivered_share)}."
    if comparison.baseline_judged == "setting":
        yield f"Held against the setting of {printable(comparison.baseline)}: {_backed(comparison.baseline_share)}."
    if not comparison.final and comparison.verdict not in {"undecided", "none"}:
        yield "Provisional until the planned number of blocks is reached."
    if comparison.reason:
        reason = printable(comparison.reason)
        yield f"{reason[0].upper()}{reason[1:].rstrip('.')}."
    if comparison.verdict in {"undecided", "none"} and comparison.change is not None:
        yield f"The largest effect still possible is {numbers.largest(comparison.change)}."
    if comparison.failures_arm or comparison.failures_baseline:
        yield (
            f"Failures: {comparison.failures_arm} of {printable(comparison.arm)}, "
            f"{comparison.failures_baseline} of {printable(comparison.baseline)}."
        )
    for warning in filter(None, map(printable, comparison.warnings)):
        yield f"{warning[0].upper()}{warning[1:].rstrip('.')}."


def _backed(share: float | None) -> str:
    if share is None:
        return "no share at a promised page size is known"
    return f"{numbers.share(share)} of the named memory was backed as promised"


def run_line(results: Results) -> str:
    """One line on the run: its state, blocks and mechanism."""
    return (
        f"{results.state}: {results.blocks_complete} blocks complete, {results.blocks_incomplete} incomplete, "
        f"{results.blocks_disturbed} disturbed; policies set by {_mechanism(results)}"
    )


def _mechanism(results: Results) -> str:
    """How the policies were set, in words."""
    if results.guests is not None:
        return "system-wide knobs in their guests"
    return {"system": "system-wide knobs (root)", "process": "per-process mechanisms (no root)"}[results.mechanism]


def winners(results: Results) -> Iterable[tuple[CellResult, Comparison, ArmSummary]]:
    """Each arm that beat its baseline, with its cell."""
    for cell in results.cells:
        for comparison in cell.comparisons:
            arm = arm_of(cell, comparison.arm)
            if comparison.verdict == "better" and arm is not None:
                yield cell, comparison, arm
