"""Real programs under the layout library, looked at while they hold their memory."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hugewise.errors import UserError
from hugewise.host.local_host import LocalHost
from hugewise.machine import loader
from hugewise.model.pages import PageSizes
from hugewise.policies import _thp
from tests.requirements import need, need_program

HERE = Path(__file__).parent
HUGE = 2 << 20


def library() -> str:
    """The path of the layout library, which a test needs."""
    try:
        return str(loader.find())
    except UserError as error:
        need(False, f"{error.message} ({error.hint})")
        raise


def compiled(name: str, folder: Path, *more: str) -> str:
    """The program of `name`.c, compiled here, with `more` options."""
    need_program("cc", "gcc")
    made = folder / name
    options = ("-O1", "-Wall", "-Wextra", "-Werror", "-pthread")
    subprocess.run(["cc", *options, *more, "-o", str(made), str(HERE / f"{name}.c")], check=True)
    return str(made)


def mode() -> str:
    """What the machine gives to memory that is advised, or not: always, madvise, never."""
    host = LocalHost()
    sizes = PageSizes.discover(host)
    return "never" if sizes.pmd is None else _thp.mode(host, sizes, sizes.pmd)


def environment(words: str | None, report: Path | None = None, **more: str) -> dict[str, str]:
    """The variables of a program under the layout, or under none, which appends to the file `report`."""
    found = {"PATH": "/usr/bin:/bin", **more}
    if words is not None:
        found |= {"LD_PRELOAD": library(), "HUGEWISE_LAYOUT": words}
    if report is not None:
        report.touch()
        found["HUGEWISE_LAYOUT_REPORT"] = str(report)
    return found


@contextmanager
def ready(argv: list[str], variables: Mapping[str, str]) -> Iterator[int]:
    """The process number of a program that has said that it is ready; at the end it is let go."""
    with subprocess.Popen(argv, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
        process.communicate(b"\n")
    assert process.returncode == 0


def mappings(pid: int) -> list[tuple[int, int, int, int, str]]:
    """Begin, end, resident bytes, those of them in huge pages, and name of each mapping of a process."""
    found = []
    begin, end, name, resident = 0, 0, "", 0
    for line in Path(f"/proc/{pid}/smaps").read_text(encoding="utf-8", errors="replace").splitlines():
        if head := re.match(r"([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \S+ *(.*)", line):
            begin, end, name = int(head[1], 16), int(head[2], 16), head[3]
        elif line.startswith("Rss:"):
            resident = int(line.split()[1]) << 10
        elif line.startswith("AnonHugePages:"):
            found.append((begin, end, resident, int(line.split()[1]) << 10, name))
    return found


def within(pid: int, begin: int, end: int) -> tuple[int, int]:
    """Resident bytes of the mappings that lie in a range, in whole or in part, and those in huge pages."""
    inside = [mapping for mapping in mappings(pid) if mapping[0] < end and begin < mapping[1]]
    return sum(each[2] for each in inside), sum(each[3] for each in inside)


def anonymous(pid: int) -> tuple[int, int]:
    """Resident bytes of all mappings that have no file and no other name than the heap's; those in huge pages."""
    inside = [mapping for mapping in mappings(pid) if mapping[4] in ("", "[heap]")]
    return sum(each[2] for each in inside), sum(each[3] for each in inside)


def told(report: Path) -> list[dict[str, object]]:
    """The lines of a report."""
    return [json.loads(line) for line in report.read_text(encoding="utf-8").splitlines()]


def python() -> str:
    """CPython itself, not a script that starts it."""
    return str(Path(sys.executable).resolve())
