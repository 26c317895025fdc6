"""`hugewise inspect --watch`: one look after the other, until `q` or Ctrl-C, each with what has changed.

A look costs its processes something (docs/guides/inspect.md), so that a pause is at least ten times as long as the look
before it, whatever was asked for.
"""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from hugewise.cli.inspect_show import render
from hugewise.console import TextConsole
from hugewise.errors import UserError
from hugewise.inspection.inspected import Inspection
from hugewise.inspection.kernel_counts import changed
from hugewise.quantity import format_duration
from hugewise.visible import say, say_line

__all__ = ["pause", "watch"]

_RATIO = 10
_LEAST_S, _MOST_S = 0.5, 600.0
_ROOM = 6  # lines of the screen beside the mappings


def pause(asked: float, look: float) -> float:
    """Seconds to the next look, after one that took `look` seconds."""
    return max(asked, look * _RATIO)


def watch(look: Callable[[], Inspection], interval: float, *, as_json: bool, mappings: int | None) -> None:
    """Look until it is told to end, or the processes have ended. Raises UserError where the first look does."""
    found = look()
    if as_json:
        say_line(found)
        while True:
            time.sleep(pause(interval, found.look_s))
            if (after := _again(look)) is None:
                return
            found = after
            say_line(found)
    console = TextConsole()
    if not console.is_terminal:
        _plain(found, look, interval, console, mappings)
        return
    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        before: Inspection | None = None
        while True:
            live.update(_screen(found, before, console, interval, mappings), refresh=True)
            until = time.monotonic() + pause(interval, found.look_s)
            while (left := until - time.monotonic()) > 0:
                match pressed(left):
                    case "q":
                        return
                    case "+" | "=":
                        interval = min(_MOST_S, interval * 2)
                    case "-":
                        interval = max(_LEAST_S, interval / 2)
                    case " ":
                        break
                    case _:
                        continue
                until = min(until, time.monotonic() + pause(interval, found.look_s))
                live.update(_screen(found, before, console, interval, mappings), refresh=True)
            if (after := _again(look)) is None:
                break
            found, before = after, found
    say(f"{found.subject}: it has ended")


def _again(look: Callable[[], Inspection]) -> Inspection | None:
    """None where there is nothing left to look at."""
    try:
        return look()
    except UserError:
        return None


def _plain(
    found: Inspection, look: Callable[[], Inspection], interval: float, console: TextConsole, mappings: int | None
) -> None:
    """For a file or a pipe: one text after the other."""
    before: Inspection | None = None
    while True:
        since = None if before is None else changed(found.statistics, before.statistics)
        console.print(render(found, width=console.width, mappings=mappings, before=before, changed=since), crop=False)
        console.print()
        time.sleep(pause(interval, found.look_s))
        if (after := _again(look)) is None:
            say(f"{found.subject}: it has ended")
            return
        found, before = after, found


def _screen(
    found: Inspection, before: Inspection | None, console: TextConsole, interval: float, mappings: int | None
) -> RenderableType:
    since = None if before is None else changed(found.statistics, before.statistics)
    most = max(0, min(mappings if mappings is not None else console.height, console.height // 3 - _ROOM // 2))
    every = format_duration(pause(interval, found.look_s))
    at = time.strftime("%H:%M:%S", time.localtime(found.taken))
    bar = Text(f"{at}  every {every}   q quit   + slower   - faster   space now", style="reverse")
    shown = render(found, width=console.width, mappings=most, before=before or found, changed=since, live=True)
    return Group(bar, shown)


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """A reader of single keys: of one pressed within so many seconds, else nothing. The terminal is put back."""
    if not sys.stdin.isatty():
        yield _waits
        return
    descriptor = sys.stdin.fileno()
    kept = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)

    def pressed(seconds: float) -> str:
        ready, _, _ = select.select([descriptor], [], [], seconds)
        if not ready:
            return ""
        with suppress(OSError):  # EIO: the terminal was closed
            if key := os.read(descriptor, 1):
                return key.decode("ascii", "replace")
        return "q"  # nobody will press a key any more

    try:
        yield pressed
    finally:
        with suppress(termios.error):
            termios.tcsetattr(descriptor, termios.TCSADRAIN, kept)


def _waits(seconds: float) -> str:
    time.sleep(seconds)
    return ""
