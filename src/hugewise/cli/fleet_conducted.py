"""What every verb does that conducts a fleet: an interrupt leaves hosts running, and an error says how to come back."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from hugewise.errors import HugewiseError, LockedError
from hugewise.visible import say

__all__ = ["conducted"]


def conducted(work: Callable[[Callable[[Path], None]], object], then: Callable[[Path], str] | None = None) -> None:
    """Do it; where it is interrupted, say what goes on by itself, and how to come back; `then`: the command after that,
    for the folder of the fleet.
    """
    folders: list[Path] = []
    try:
        work(folders.append)
    except KeyboardInterrupt:
        if not folders:
            raise
        say("interrupted; what runs on hosts goes on there", err=True)
        say(f"  to go on: hugewise fleet resume {folders[0]}", err=True)
        if then is not None:
            say(f"  and after it: {then(folders[0])}", err=True)
        say(f"  to end what runs, and bring it: hugewise fleet resume --end {folders[0]}", err=True)
        sys.exit(130)
    except HugewiseError as error:
        if folders and not isinstance(error, LockedError):
            back = f"then: hugewise fleet resume {folders[0]}"
            error.hint = back if error.hint is None else f"{error.hint}; {back}"
        raise
