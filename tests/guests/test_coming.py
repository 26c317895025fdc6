"""What is said of a download while it is under way."""

from __future__ import annotations

import threading
from pathlib import Path

from hugewise.guests import debian


def test_what_has_come_is_said_until_it_is_over(tmp_path: Path) -> None:
    said: list[str] = []
    both = threading.Event()

    def say(line: str) -> None:
        said.append(line)
        if "3.0 of 4.0 MB (75%)" in line:
            both.set()

    whole, part = tmp_path / "a.deb", tmp_path / "partial" / "b.deb"
    part.parent.mkdir()
    with debian.progress_reported([whole, tmp_path / "b.deb", tmp_path / "c.deb"], 4_000_000, say, every=0.01):
        whole.write_bytes(b"x" * 2_000_000)
        part.write_bytes(b"x" * 1_000_000)
        assert both.wait(30)
    count = len(said)
    assert all(line.startswith("fetched ") for line in said)
    whole.write_bytes(b"")
    assert len(said) == count


def test_an_estimate_is_never_exceeded_and_holes_are_not_written(tmp_path: Path) -> None:
    said: list[str] = []
    twice = threading.Event()
    file = tmp_path / "image"
    assert debian.written(file) == 0
    with file.open("wb") as writing:
        writing.truncate(1 << 30)
        writing.seek(1 << 20)
        writing.write(b"x" * 100_000)
    assert 100_000 <= debian.written(file) < 1 << 20

    def say(line: str) -> None:
        said.append(line)
        if len(said) > 1:
            twice.set()

    with debian.watched("written", lambda: 5_000_000, 4_000_000, say, every=0.01):
        assert twice.wait(30)
    assert all(line.startswith("written 5.0 of 5.0 MB (100%) in ") for line in said)
