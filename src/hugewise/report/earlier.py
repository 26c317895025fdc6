"""Which runs before a run had its comparisons, in sentences; the same words in every report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from hugewise.model.results import EarlierComparison, Results
from hugewise.visible import printable

__all__ = ["earlier"]

_NAMED = 3  # comparisons of a run that are named in a line


def earlier(results: Results, most: int | None = 5) -> str:
    """Which runs with comparisons of this one were begun before it, which comparisons these were, and what they said of
    them; at most `most` of the runs by name, else all, with every comparison.
    """
    known, shared = results.earlier, results.earlier_shared
    if known is None:
        return "Whether this study had earlier runs on this host was not recorded."
    folders = "1 folder" if results.earlier_unread == 1 else f"{results.earlier_unread} folders"
    unread = f" Beside them {folders} cannot be read." if results.earlier_unread else ""
    if not known:
        lacking = f", and {folders} in it cannot be read" if results.earlier_unread else ""
        if shared is None:
            parts = "; runs of a part of it were not looked for"
            return f"No earlier run of this study on this host is in this results folder{lacking}{parts}."
        return f"No earlier run with any of these comparisons on this host is in this results folder{lacking}."
    every = {(cell.cell, one.arm, one.metric) for cell in results.cells for one in cell.judged}
    told = [_told(one, (shared or {}).get(one, ()), len(every), whole=most is None) for one in known[:most]]
    more = (
        ""
        if most is None or len(known) <= most
        else f" and {len(known) - most} more (all in the report's table of the run)"
    )
    runs = "1 earlier run" if len(known) == 1 else f"{len(known)} earlier runs"
    of = "of this study" if shared is None else "with the same comparisons"
    return f"{runs} {of} on this host: {', '.join(told)}{more}. A reader who is shown one should know of all.{unread}"


def _told(run: str, shared: Sequence[EarlierComparison], every: int, *, whole: bool) -> str:
    """A run, with what it had of this one, and what it said of that."""
    if not shared:  # of a version that looked for the whole study
        return printable(run)
    if whole:
        return f"{printable(run)} ({'; '.join(f'{_name(one)}: {_outcome([one])}' for one in shared)})"
    if len(shared) == every:
        what = "all comparisons" if every > 1 else _name(shared[0])
    else:
        more = f" and {len(shared) - _NAMED} more" if len(shared) > _NAMED else ""
        what = f"{', '.join(map(_name, shared[:_NAMED]))}{more}"
    return f"{printable(run)} ({what}: {_outcome(shared)})"


def _name(one: EarlierComparison) -> str:
    return printable(f"{one.arm} on {one.cell} by {one.metric}")


def _outcome(shared: Iterable[EarlierComparison]) -> str:
    """`9 to 11 pairs, 2 better and 4 undecided`."""
    pairs = sorted({one.pairs for one in shared if one.pairs is not None})
    verdicts = Counter("no verdict" if one.verdict == "none" else one.verdict for one in shared if one.verdict)
    if not pairs or not verdicts:
        return "it has no report"
    count = f"{pairs[0]} to {pairs[-1]} pairs" if len(pairs) > 1 else f"{pairs[0]} pair{'' if pairs == [1] else 's'}"
    if len(verdicts) == 1:
        return f"{count}, {next(iter(verdicts))}"
    return f"{count}, {', '.join(f'{n} {verdict}' for verdict, n in verdicts.items())}"
