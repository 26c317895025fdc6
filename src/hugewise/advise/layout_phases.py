"""The phases of an advice that have to do with layouts: the gain told apart, and the curve of gain against memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hugewise.advise import curve as curves
from hugewise.advise import layouts
from hugewise.advise import question as questions
from hugewise.advise.asking import Asking, ended
from hugewise.advise.candidates import ProgramHere
from hugewise.advise.curve import CurveOfGain
from hugewise.advise.question import AS_IS
from hugewise.errors import UserError
from hugewise.quantity import format_size
from hugewise.report import images
from hugewise.report.figures.backed import backed

__all__ = ["apart", "curve", "figure"]

POOL_ROOM = 1.1
"""Of the memory that was seen: the heap grows in steps."""

_PAGE = 2 << 20


def apart(asking: Asking, mode: str, pool: int) -> None:
    """What of a layout's gain is the library's own, in blocks of their own, where there is time for it.

    `mode` of transparent huge pages here; `pool`: bytes of the heap, where the candidates have a pool.
    """
    advice = asking.advice
    if advice.confirmed is None or advice.confirmed.verdict != "better" or advice.apart is not None:
        return
    chosen = advice.candidate(advice.chosen)
    if not layouts.is_layout(chosen):
        return
    assert advice.pilot is not None  # it chose
    blocks = layouts.blocks(asking.left, advice.pilot.block_s)
    if not blocks and not advice.apart_folder:
        advice.remarks += ("no time was left to tell the library's own part of the gain from that of its pages",)
        return
    library = layouts.alone(chosen, mode)
    uses: list[str | Mapping[str, Any]] = [library, AS_IS, chosen.use]
    asking.say(f"the library's own part of it: {max(2, blocks)} blocks")
    study = questions.apart("advise-apart", advice.question, uses, pool, max(2, blocks), baseline=str(library["name"]))
    folder = asking.run(study, "apart")
    (cell,) = ended(folder).cells
    advice.apart = layouts.told_apart(str(folder.path), cell, chosen.name)


def curve(asking: Asking, here: ProgramHere) -> None:
    """The gain at each share of the heap on huge pages, and the knee. Raises UserError where there can be none."""
    advice = asking.advice
    if advice.curve is not None:
        return
    assert advice.pilot is not None  # it came first
    asked = advice.question
    advice.arrived = "curve"
    pages = curves.pages_of(here)
    if not here.memory:
        raise UserError("how much memory it needs was not seen", hint="name it: --pool 512m")
    heap = math.ceil((asked.pool or here.memory * POOL_ROOM) / _PAGE) * _PAGE
    if heap < curves.LEAST:
        told = f"there is no curve of it: its heap of {format_size(heap)} has too few huge pages to share out"
        raise UserError(
            told, hint=f"give it a larger input, of {format_size(curves.LEAST)} or more, or name it: --pool"
        )
    count = 2 if advice.curve_folder else curves.blocks(asking.left, advice.pilot.block_s)
    asking.say(f"curve: {len(curves.SHARES)} shares of {heap >> 20:,} MiB on {pages}, {count} blocks")
    uses = curves.arms(pages, heap)
    study = questions.apart("advise-curve", asked, uses, heap, count, baseline=curves.BASELINE)
    folder = asking.run(study, "curve")
    found = ended(folder)
    run = folder.read()
    if run.opened.left_out:
        left = run.opened.left_out[0]
        told = f"the curve could not be measured: {left.policy} could not be run here: {left.reason}"
        raise UserError(told, hint="free memory, or name less: --pool 512m")
    (cell,) = found.cells
    made = curves.measured(str(folder.path), cell, run.blocks, pages, heap, asked.margin, asked.confidence)
    advice.curve = made
    asking.put("curve.svg", images.standalone(figure(made)).encode())


def figure(found: CurveOfGain) -> str:
    """The curve as SVG text."""
    sign = 1 if found.better == "higher" else -1

    def change(ratio: float | None) -> float | None:
        return None if ratio is None else 100 * (ratio - 1)

    points: list[Mapping[str, float | None]] = [
        {"share": one.percent, "change": change(one.ratio), "low": change(one.low), "high": change(one.high)}
        for one in found.points
    ]
    smooth = [(0.0, 0.0)] + [
        (float(one.percent), 100 * math.expm1(sign * gain))
        for one, gain in zip(found.points[1:], found.knee.smooth, strict=True)
    ]
    at = found.knee
    bend = None
    if found.has_gain and at.share is not None and at.low is not None and at.high is not None:
        bend = (100 * at.share, 100 * at.low, 100 * at.high)
    return images.render(backed(points, smooth, bend, metric=found.metric, confidence=found.confidence))
