"""The figures of a report as SVG and PNG: where there are many, in a process beside this one, which has other work
meanwhile.

What draws (`images.render`) takes 35 ms a figure, however little is in it, and a PNG 25 ms: of a run of many cells more
than all else that is written. They hold the interpreter's lock, so that a thread would gain nothing; and what draws
takes 130 MiB, so that there is one such process and not several. It draws every SVG, and makes the PNG of every second
one: so both processes have about as much to do.

The process reads all that is to be drawn from stdin, and writes to stdout, for each in its order, the length of its SVG
and that of its PNG (0 where it makes none), and the two. It takes half a second to be ready: where many figures are to
come it is begun before they are known.
"""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, Any, NamedTuple

import msgspec

from hugewise.errors import StorageError
from hugewise.processes import die_with_parent
from hugewise.report import images


class DrawnFigure(NamedTuple):
    """A figure as `images.render` makes it, and as `images.png` does where its process had the time: else empty."""

    svg: str
    png: bytes = b""


Drawing = subprocess.Popen[bytes]
"""The process that draws."""

_MANY = 24  # figures that are worth the start of a process, half a second
_LENGTHS = struct.Struct("<QQ")
_NOTHING = {"data": {"values": []}, "mark": "bar"}


@contextmanager
def start_drawing(expected: int) -> Iterator[Drawing | None]:
    """The process that is to draw about so many figures; None where they are not worth its start, or there is none."""
    process = _beside() if expected >= _MANY and len(os.sched_getaffinity(0)) > 1 else None
    if process is None:
        yield None
        return
    with process:
        try:
            yield process
        finally:
            process.kill()  # its work is done, or nobody waits for it


@contextmanager
def drawn(specs: Sequence[Mapping[str, Any]], process: Drawing | None = None) -> Iterator[Iterator[DrawnFigure]]:
    """The figure of each specification, in their order; to ask for the next one raises StorageError where there can be
    none. `process`: the one that has `begun`, which draws these alone.
    """
    with ExitStack() as stack:
        process = process or stack.enter_context(start_drawing(len(specs)))
        if process is None:
            yield (DrawnFigure(images.render(spec)) for spec in specs)
            return
        assert process.stdin is not None
        assert process.stdout is not None
        reader = stack.enter_context(ThreadPoolExecutor(1))  # so that no pipe is ever full
        stack.callback(process.kill)  # so that no thread waits for it
        reader.submit(_ask, process.stdin, msgspec.msgpack.encode(specs))
        answers = deque(reader.submit(_answer, process.stdout) for _ in specs)  # none is kept that was asked for
        yield (answers.popleft().result() or _here(process, spec) for spec in specs)


def _beside() -> Drawing | None:
    """The process; None where none can be started, or nobody knows which interpreter this is."""
    command = [sys.executable, "-P", "-m", "hugewise.report.drawing"]
    pipe = subprocess.PIPE
    try:  # what it says of its end is said here
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) if sys.executable else None
    except OSError:
        return None


def _ask(stdin: IO[bytes], specs: bytes) -> None:
    with suppress(BrokenPipeError), stdin:  # then no answer comes, which says enough
        stdin.write(specs)


def _answer(stdout: IO[bytes]) -> DrawnFigure | None:
    """The next figure; None where it ends before."""
    lengths = stdout.read(_LENGTHS.size)
    if len(lengths) < _LENGTHS.size:
        return None
    sizes = _LENGTHS.unpack(lengths)
    svg, png = (stdout.read(size) for size in sizes)
    return DrawnFigure(svg.decode(), png) if (len(svg), len(png)) == sizes else None


def _here(process: Drawing, spec: Mapping[str, Any]) -> DrawnFigure:
    """A figure that the process owes: drawn here where it has ended by itself, as one does that does not find hugewise
    (whose modules this process may have from another place), or that has an error of which more is known here.

    Raises StorageError where it was killed, as for want of memory: it would be no other here.
    """
    if process.wait() >= 0:
        return DrawnFigure(images.render(spec))
    raise StorageError(
        "the report cannot be written: the process that draws its figures was killed",
        hint="free some memory, then: hugewise report RUN",
    )


def main() -> None:
    """Draw what stdin asks for."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all: who began this process ends it
    images.render(_NOTHING)  # the engine is there when the figures are
    # A pipe has room for 64 KiB, less than many a figure, and who reads it may be long at another: it draws meanwhile.
    with ThreadPoolExecutor(1) as writer:
        for number, spec in enumerate(msgspec.msgpack.decode(sys.stdin.buffer.read())):
            svg = images.render(spec)
            writer.submit(_say, svg.encode(), images.png(images.standalone(svg)) if number % 2 else b"")


def _say(svg: bytes, png: bytes) -> None:
    sys.stdout.buffer.write(_LENGTHS.pack(len(svg), len(png)) + svg + png)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
