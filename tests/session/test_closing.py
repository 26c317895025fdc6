"""The end of a session: a step that fails keeps no other from being done, and all that failed is told."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from hugewise.errors import HugewiseError, ProbeError, SettingError, StorageError
from hugewise.host import journal
from hugewise.session import session, steps
from hugewise.study.load import load
from tests.requirements import need_root
from tests.session.test_session import small


def test_all_that_failed_is_told_in_its_order() -> None:
    def fail(error: Exception, cause: Exception | None = None) -> None:
        raise error from cause

    opened = ExitStack()
    done: list[str] = []
    opened.callback(done.append, "last")
    opened.callback(fail, SettingError("a knob stays"), ProbeError("a cause is not told twice"))
    opened.callback(done.append, "middle")
    opened.callback(fail, StorageError("a folder stays"))
    with pytest.raises(SettingError) as told:
        try:
            raise ProbeError("the run failed")
        finally:
            steps.close(opened)
    assert told.value.message.splitlines() == ["the run failed", "  a folder stays", "  a knob stays"]
    assert done == ["middle", "last"]


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("error", [SettingError("planted"), OSError(5, "planted")])
def test_whatever_fails_at_the_end_the_page_settings_are_put_back(tmp_path: Path, error: Exception) -> None:
    """Every step but the first and the last two fails, before it has done anything of its own."""
    need_root()
    walked: list[str] = []

    def failing(step: str) -> None:
        if step in ("end_guests", "remove_scratch", "remove_cgroups", "empty_pools"):
            walked.append(step)
            if step != "empty_pools":
                raise error
        elif step in steps.CLOSING:
            walked.append(step)

    with pytest.raises((HugewiseError, OSError), match="planted"):
        session.run(load(small(tmp_path)), tmp_path / "results", on_step=failing)
    assert walked == list(steps.CLOSING)
    journal.restore()
