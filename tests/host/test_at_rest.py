"""What a plan sees of a host whose settings a run has turned."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from hugewise.host.journal import at_rest
from hugewise.host.ledger import Intent, JournalClosed, JournalOpened, JournalRecord, KnobTurn, Turned
from hugewise.model.host import Host
from hugewise.model.pages import THP
from tests.build.hosts import Files

ENABLED, SCAN = f"{THP}/enabled", f"{THP}/khugepaged/pages_to_scan"
BOOT = "/proc/sys/kernel/random/boot_id"


def turned(path: Path, *more: JournalRecord, boot: str = "b") -> Path:
    """A run's journal, which has turned two knobs."""
    turns = (KnobTurn(ENABLED, "madvise", "never"), KnobTurn(SCAN, "4096", "0"))
    records = (JournalOpened(boot, 1, 1, "r"), Intent(turns), Turned(), *more)
    path.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in records))
    return path


def host(enabled: str = "always madvise [never]", scan: str = "0") -> Host:
    return Files({ENABLED: enabled, SCAN: scan, BOOT: "b"})


def test_a_temporary_never_of_another_run_is_not_the_hosts(tmp_path: Path) -> None:
    found = at_rest(host(), turned(tmp_path / "journal"))
    assert (found.read(ENABLED), found.read(SCAN)) == ("always [madvise] never", "4096")
    with pytest.raises(PermissionError):
        found.write(ENABLED, "always")


def test_what_somebody_else_has_turned_since_reads_as_it_is(tmp_path: Path) -> None:
    found = at_rest(host("[always] madvise never", "7"), turned(tmp_path / "journal"))
    assert (found.read(ENABLED), found.read(SCAN)) == ("[always] madvise never", "7")


def test_without_a_run_under_way_the_host_is_what_it_is(tmp_path: Path) -> None:
    here = host()
    assert at_rest(here, tmp_path / "absent") is here
    assert at_rest(here, turned(tmp_path / "closed", JournalClosed("put back"))) is here
    assert at_rest(here, turned(tmp_path / "earlier", boot="another")) is here
    broken = turned(tmp_path / "broken")
    broken.write_bytes(b"{}\n")
    assert at_rest(here, broken) is here
