"""What was recorded within the attempts of a cell, in words: what they have in common, and what the reader must know.

None of it changes a verdict.

What the memory of a cell had been through, in words and as a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hugewise.model import age
from hugewise.model.results import CellResult, Fact, FactDifference, Steadiness
from hugewise.quantity import readable_size
from hugewise.report import numbers
from hugewise.report.document import Table, table
from hugewise.visible import printable

_LONGEST = 80  # characters of a fact that are shown; report.json has the whole
_HASH = 12  # characters that tell a hash
_MOST = 3  # values of an arm that are named
_HEXADECIMAL = set("0123456789abcdef")


def common(cell: CellResult) -> str:
    """`The same in every attempt: data SHA-256 1791566411b7…, storage /dev/shm (tmpfs).`; empty where nothing is."""
    told = [f"{_called(name)} {_shown(name, value)}" for name, value in cell.facts.items()]
    return f"The same in every attempt: {', '.join(told)}." if told else ""


def remarks(cell: CellResult) -> Iterator[str]:
    """Warnings on the cell: arms whose throughput had not settled, and facts that differ although they should not."""
    for one in cell.steadiness:
        if one.settled is False:
            yield f"Throughput of {printable(one.arm)} {_moved(one)}: it had not settled."
    for difference in cell.differing:
        yield _difference(difference)


def _moved(one: Steadiness) -> str:
    of = f"median of {one.n} attempt{'' if one.n == 1 else 's'}"
    if one.change is None:
        return f"rose from nothing within the measured part ({of})"
    percent = abs(one.change) * 100
    size = f"{percent:,.0f}%" if percent >= 100 else f"{percent:.3g}%"
    word = "rose" if one.change > 0 else "fell"
    return f"{word} by {size} within the measured part (last third of its seconds against the first; {of})"


def _difference(one: FactDifference) -> str:
    several = [f"{printable(arm)} {_values(values)}" for arm, values in one.values.items()]
    within = any(len(values) > 1 for values in one.values.values())
    where = "attempts" if within else "arms"
    return f"{_upper(_called(one.name))} differs between {where}, which should have it in common: {', '.join(several)}."


def _values(values: tuple[Fact | None, ...]) -> str:
    shown = ["none" if value is None else _text(value) for value in values[:_MOST]]
    more = [f"{len(values) - _MOST} more"] if len(values) > _MOST else []
    return " and ".join([*shown, *more])


_WORDS: Mapping[str, str] = {"sha256": "SHA-256", "cpu": "CPU", "wal": "WAL", "mib": "MiB", "rss": "RSS"}


def _called(name: str) -> str:
    """`data_sha256` as `data SHA-256`."""
    return " ".join(_WORDS.get(word, word) for word in printable(name).split("_"))


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _shown(name: str, value: Fact) -> str:
    return numbers.size(value) if name.endswith("bytes") and not isinstance(value, str) else _text(value)


def _text(value: Fact) -> str:
    """Numbers exact, hashes by their first characters, other texts in a line that is not too long."""
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, float):
        return f"{value:,.10g}"
    text = printable(value)
    if len(text) >= 2 * _HASH and set(text) <= _HEXADECIMAL:
        return f"{text[:_HASH]}…"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def ageing_remarks(cell: CellResult) -> Iterator[str]:
    """What is to be known beside the verdicts of a cell whose memory has aged."""
    if age.fragmented(cell.memory_age) and cell.aged:
        share, most = (max(getattr(one, name) for one in cell.aged) for name in ("huge_share", "huge_bytes"))
        yield (
            f"Its memory was fragmented before every attempt: at most {numbers.share(share)} of what was free"
            f" ({readable_size(most)}) could become a huge page at once."
        )
    if not age.pressed(cell.memory_age):
        return
    limit = "" if cell.memory is None else f" of {readable_size(cell.memory)}"
    told = [f"{printable(one.arm)} {readable_size(one.swapped)}" for one in cell.aged if one.swapped is not None]
    yield (
        f"Its programs had a limit{limit}, and swap: {', '.join(told) or 'nothing is known of what'}"
        f"{'' if not told else ' were'} swapped out and in on the whole host meanwhile (medians)."
    )
    if still := [printable(one.arm) for one in cell.aged if one.swapped == 0]:
        yield f"Nothing was swapped under {', '.join(still)}: the limit was no pressure there."


def ageing_table(cell: CellResult) -> Table | None:
    """Per arm: what of the free memory could become a huge page when its attempts began, and what was swapped."""
    if cell.memory_age == "fresh" or not cell.aged:
        return None
    delivered = {arm.arm: arm.delivered_share for arm in cell.arms}
    rows = [
        [
            *(one.arm, one.n, numbers.share(one.huge_share), readable_size(one.huge_bytes), one.pinned),
            *("–" if one.swapped is None else readable_size(one.swapped), numbers.share(delivered.get(one.arm))),
        ]
        for one in cell.aged
    ]
    head = ["policy", "attempts", "free in huge blocks (most)", "that is", "pinned pages", "swapped", "delivered"]
    return table(f"memory that has aged: {cell.memory_age}", head, rows, swatch=True)
