"""A calibration in words, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from hugewise.analysis.calibration import Calibrated, CalibrationRecord
from hugewise.analysis.calibration_figures import Agreement, Stream

__all__ = ["lines"]

_NOTHING = "-"


def lines(record: CalibrationRecord) -> Iterator[str]:
    """The record, a line at a time."""
    planted = f"; {100 * record.planted:g}% more work planted under one label" if record.planted else ""
    yield f"Calibration of {record.host}, kernel {record.kernel}{planted}"
    for cell in record.cells:
        yield ""
        yield f"{cell.cell}: {cell.metric} under {cell.policy}, twice"
        yield from _cell(cell)
    yield ""
    yield f"{'passed' if record.passed else 'FAILED'}"


def _cell(cell: Calibrated) -> Iterator[str]:
    found = cell.relabelled
    for stream in cell.streams:
        yield from _stream(stream)
    yield (
        f"  relabelled {found.relabellings} times at {100 * found.nominal:g}%: {100 * found.rate:.2f}% verdicts"
        f" (at most {100 * found.limit:.2f}%)"
    )
    yield (
        f"  {found.campaigns} campaigns of {cell.streams[0].pairs} pairs at {100 * found.campaign_alpha:g}%:"
        f" {found.campaign_verdicts} verdicts (at most {found.most_verdicts})"
    )
    if cell.purchases:
        yield "  what a design buys (variance of the effect, blocked AAAA..BBBB = 1; larger is better)"
    for bought in cell.purchases:
        how = "measured" if bought.measured else "by relabelling"
        gains = f"{_times(bought.for_pairs):>9} a pair {_times(bought.for_time):>9} a second"
        yield f"    {bought.design:12} {gains}  {how}"
    for agreement in cell.agreements:
        yield f"  {agreement.kind} against sequential pairs, {agreement.arm}: {_agreement(agreement)}"
    yield f"  {'passed' if cell.passed else 'FAILED'}: {cell.reason}"


def _stream(stream: Stream) -> Iterator[str]:
    said = {0: "no verdict", 1: "the second label is larger", -1: "the second label is smaller"}[stream.verdict]
    yield f"  {stream.kind}: {stream.pairs} pairs of {stream.seconds:.3g} s, with their own labels at 99%: {said}"
    yield (
        f"    noise floor (sd of a pair's difference) {_percent(stream.sd)}"
        f" ({_percent(stream.sd_low)} to {_percent(stream.sd_high)}); ratio {stream.ratio or float('nan'):.4f}"
    )
    yield (
        f"    correlation within pairs {_plain(stream.correlation)} ({_plain(stream.correlation_low)} to"
        f" {_plain(stream.correlation_high)}); lag-1 autocorrelation {_plain(stream.lag_one)},"
        f" inefficiency {_plain(stream.inefficiency)}"
    )


def _agreement(one: Agreement) -> str:
    span = f"{_percent(one.low)} to {_percent(one.high)}"
    return f"effects differ by {span}: {'believed' if one.agrees else 'NOT believed'}: {one.reason}"


def _percent(value: float | None) -> str:
    return _NOTHING if value is None else f"{100 * value:.3g}%"


def _plain(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:.2f}"


def _times(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:.3g}x"
