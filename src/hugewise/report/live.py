"""The page of a run that goes on: made anew when its log has grown, and kept until then.

To make a page costs the machine something, and it may be measuring: a page is made when somebody asks for it, at most
every few seconds, and the pause is at least ten times as long as the last one took. Figures whose data are as they were
are not drawn again: a block adds to those of one cell. What was read and judged before is not again where `read` goes
on from there (`analysis.analysis`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from hugewise.errors import HugewiseError, RunError
from hugewise.model.results import Results
from hugewise.report import images
from hugewise.report.document import Document, Figure, Line, Note, figures
from hugewise.report.html import html
from hugewise.report.write import report
from hugewise.store.log import going_on
from hugewise.store.records import Stamp

_LEAST_S = 3.0
_RATIO = 10
_FOLLOWS = (
    "This page follows the run, and loads itself anew when something was added, or when the run has ended; what it says"
    " holds for what there is."
)


@dataclass(frozen=True)
class Made:
    """A page, and which one it is: another version is another page."""

    version: str
    html: str


class LivePage:
    """The page of the run in `folder`, whose results `read` finds. Threads may share it.

    Making the first one raises what `read` raises; where that comes later, the last page stays and says so.
    `clock`: seconds.
    """

    def __init__(
        self, folder: Path, read: Callable[[Path], Results], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._read, self._clock = folder, read, clock
        self._lock = threading.Lock()
        self._drawings: dict[str, tuple[Figure, str]] = {}
        self._stamp, self._document, self._drawn = self._looked()
        self._trouble: str | None = None
        self._made = self._page()
        self._next = clock() + _LEAST_S

    def current(self) -> Made:
        """The page as it is now, or was a moment ago."""
        with self._lock:
            began = self._clock()
            if began >= self._next and (self._trouble is not None or self._size() != self._stamp):
                self._anew()
                ended = self._clock()
                self._next = ended + max(_LEAST_S, _RATIO * (ended - began))
            return self._made

    def _anew(self) -> None:
        try:
            self._stamp, self._document, self._drawn = self._looked()
            self._trouble = None
        except HugewiseError as error:
            self._trouble = error.message
        self._made = self._page()

    def _looked(self) -> tuple[str, Document, dict[str, str]]:
        stamp = self._size()  # before it is read: what is added meanwhile is seen the next time
        document = report(self._read(self._folder))
        self._drawings = {each.key: (each, self._drawing(each)) for each in figures(document)}
        drawn = {key: svg for key, (_, svg) in self._drawings.items()}
        return stamp, replace(document, lead=(*document.lead, Line(_FOLLOWS, quiet=True))), drawn

    def _drawing(self, figure: Figure) -> str:
        """As it is kept where it shows the same, else drawn."""
        kept, svg = self._drawings.get(figure.key, (None, ""))
        if kept is not None and (kept.spec, kept.text) == (figure.spec, figure.text):
            return svg
        return images.inline(images.render(dict(figure.spec)), name=f"figure-{figure.key}", title=figure.text)

    def _page(self) -> Made:
        document, version = self._document, self._stamp
        if self._trouble is not None:
            told = Note(f"This is how it was before: the run cannot be read now. {self._trouble}")
            document, version = replace(document, lead=(*document.lead, told)), f"{version}-unread"
        return Made(version, html(document, self._drawn, live=version))

    def _size(self) -> str:
        """What changes when the log does, or when nobody writes it any more."""
        try:
            stamp = Stamp.of((self._folder / "run.jsonl").stat())
        except (FileNotFoundError, NotADirectoryError):
            return "gone"
        except OSError as error:
            raise RunError(f"{self._folder}: {error.strerror}", hint="see: ls results/*") from None
        goes_on = "-on" if going_on(self._folder) else ""
        return "-".join(f"{each:x}" for each in stamp) + goes_on
