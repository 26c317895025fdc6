"""The figures of a report as SVG: where there are many, in a process beside this one, which has other work meanwhile.

What draws (`images.render`) takes 35 ms a figure, however little is in it: of a run of many cells more than all else
that is written. It holds the interpreter's lock, so that a thread would gain nothing; and it takes 130 MiB, so that
there is one such process and not several.

The process reads all that is to be drawn from stdin, and writes to stdout, for each in its order, a length and what it
has drawn.
"""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import IO, Any

import msgspec

from hugewise.errors import StorageError
from hugewise.processes import die_with_parent
from hugewise.report import images
from hugewise.report.document import Figure

__all__ = ["Drawing", "drawn"]

_MANY = 24  # figures that are worth the start of a process, half a second
_LENGTH = struct.Struct("<Q")


class Drawing(msgspec.Struct, frozen=True, array_like=True):
    """A figure as a file of its own (`images.standalone`), and for a page (`images.inline`)."""

    alone: str
    inline: str


class _Order(msgspec.Struct, frozen=True, array_like=True):
    """What is to be drawn: see `document.Figure`."""

    key: str
    text: str
    spec: Mapping[str, Any]

    def drawing(self) -> Drawing:
        svg = images.render(self.spec)
        inline = images.inline(svg, name=f"figure-{self.key}", title=self.text)
        return Drawing(images.standalone(svg), inline)


@contextmanager
def drawn(figures: Sequence[Figure]) -> Iterator[Iterator[Drawing]]:
    """The drawing of each figure, in their order; to ask for the next one raises StorageError where there is none."""
    orders = [_Order(figure.key, figure.text, dict(figure.spec)) for figure in figures]
    if len(orders) < _MANY or len(os.sched_getaffinity(0)) < 2:
        yield (order.drawing() for order in orders)
        return
    command = [sys.executable, "-P", "-m", "hugewise.report.drawing"]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process,
        ThreadPoolExecutor(1) as reader,  # so that no pipe is ever full
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            reader.submit(_ask, process.stdin, msgspec.msgpack.encode(orders))
            answers = [reader.submit(_answer, process.stdout) for _ in orders]
            yield (answer.result() for answer in answers)
        finally:
            process.kill()  # its work is done, or nobody waits for it


def _ask(stdin: IO[bytes], orders: bytes) -> None:
    with suppress(BrokenPipeError), stdin:  # then no answer comes, which says enough
        stdin.write(orders)


def _answer(stdout: IO[bytes]) -> Drawing:
    length = stdout.read(_LENGTH.size)
    text = stdout.read(_LENGTH.unpack(length)[0]) if length else b""
    if not text:
        raise StorageError(
            "the report cannot be written: the process that draws its figures has ended",
            hint="free some memory, then: hugewise report RUN",
        )
    return msgspec.msgpack.decode(text, type=Drawing)


def main() -> None:
    """Draw what stdin asks for."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all: who began this process ends it
    for order in msgspec.msgpack.decode(sys.stdin.buffer.read(), type=list[_Order]):
        text = msgspec.msgpack.encode(order.drawing())
        sys.stdout.buffer.write(_LENGTH.pack(len(text)) + text)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
