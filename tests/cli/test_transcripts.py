"""What is said to calls that run nothing: one file a verb in transcripts/, of lines `$ hugewise ...`, what stdout and
stderr hold, and the exit status in brackets where it is not 0. HUGEWISE_WRITE_GOLDEN=1 writes them anew.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests import golden
from tests.build.hosts import FakeHost
from tests.cli.conftest import Call, tiny

TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))
FILES = {
    "bad.toml": "format = ",
    "wrong.toml": 'format = 1\nname = "w"\nblocks = 3\n',
    "file": "",
    "hosts.toml": '[[host]]\nname = "a"\n',
}


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_what_is_said(call: Call, fake: FakeHost, here: Path, path: Path) -> None:
    tiny(here)
    tiny(here / "studies", "base", "thp", "mthp-64k", "mthp-32k", "hugetlb-2m", "hugetlb-1g")
    for name, text in FILES.items():
        (here / name).write_text(text)
    told = path.read_text(encoding="utf-8")
    again = ""
    for line in filter(lambda line: line.startswith("$ "), told.splitlines()):
        status, out, err = call(*shlex.split(line)[2:])
        said = [each.rstrip() for each in (out + err).splitlines()]
        again += "\n".join([line, *said, *([f"[{status}]"] if status else []), "", ""])
        assert not (out and err)
        assert all(
            len(each) <= 80 for each in out.splitlines() if not ("example orders" in each or "left out:" in each)
        )
    golden.same(again, path)
    assert fake.writes == []
    assert not (here / "results").exists()
