"""Settings of this host that files or programs write, put back afterwards."""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from hugewise.errors import SettingError
from hugewise.host import knob
from hugewise.host.journal import Journal
from hugewise.host.knob import Settings
from hugewise.host.local_host import LocalHost
from hugewise.host.lock import HostLock

Turn = Callable[[Mapping[str, str]], None]
"""Turns settings (path -> value). What is turned by it is put back even when this process is killed; what others write
meanwhile, when the context is left."""


@contextmanager
def kept_settings() -> Iterator[Turn]:
    """Restore the page settings when the context is left, whoever wrote them. Raises LockedError, SettingError."""
    host = LocalHost()
    with HostLock(host), tempfile.TemporaryDirectory(prefix="hugewise-kept-") as folder, ExitStack() as stack:
        settings = Settings(host, Journal.begin(host, Path(folder) / "journal.jsonl", "test"))
        initial = dict(settings.initial)

        def turn(wanted: Mapping[str, str]) -> None:
            if drifts := settings.apply(wanted):
                raise SettingError(f"{drifts[0].path} was written by somebody else")

        def back() -> None:
            # A node's part of a pool follows the whole; and writing an unchanged value may fail (EINVAL).
            values = {path: value for path, value in settings.values().items() if not path.startswith(knob.NODES)}
            try:
                knob.turn(host, {one.path: values[one.path] for one in knob.differing_knobs(host, values)})
            finally:
                settings.restore()
            if left := knob.differing_knobs(host, initial):
                raise SettingError(f"{left[0].path} is {left[0].found!r}, it was {left[0].expected!r}")

        stack.callback(back)
        yield turn
