"""rich's console for tables, bars and colours, where every text is text (`hugewise.visible`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import IO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from hugewise.visible import printable


class TextConsole(Console):
    """A console that takes every text for text: no markup, no escape sequence of others."""

    def __init__(self, file: IO[str] | None = None) -> None:
        super().__init__(file=file, highlight=False, markup=False, emoji=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as rich does, with every text made printable."""
        return self._printable(super().render(renderable, options))

    @staticmethod
    def _printable(segments: Iterable[Segment]) -> Iterator[Segment]:
        for segment in segments:
            if segment.control is not None or segment.text.isprintable():
                yield segment
            else:
                yield Segment(printable(segment.text, keep="\n"), segment.style)
