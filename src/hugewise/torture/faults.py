"""What else goes wrong around a run: no room, no memory, servers that die or say nothing, another clock.

After each the machine must be as it was, what was accepted must be there, and what is said must be an
error with a cure.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hugewise.host import cgroup
from hugewise.host.journal import JOURNAL
from hugewise.torture import descent, kept, rooms
from hugewise.torture.rack import Rack
from hugewise.torture.rooms import PAGE
from hugewise.torture.subject import CommandEnded

__all__ = [
    "another_clock",
    "little_address_space",
    "little_memory",
    "no_room_for_results",
    "no_room_for_scratch",
    "no_room_for_the_journal",
    "silent_server",
    "starved_server",
]

# A run of the small study takes some 70 pages until it has ended, and some 600 with its report.
_RUN_PAGES, _REPORT_PAGES = 80, 600
_JOURNAL_PAGES = 6
_SCRATCH = 128 << 20
_WEEK_S = 7 * 86_400
_MIB = 1 << 20


def no_room_for_results(rack: Rack, text: str) -> None:
    """Results go to a file system with room for a number of pages that is drawn: three of four while it measures."""
    least, most = (1, _RUN_PAGES) if rack.draws.share("part") < 0.75 else (_RUN_PAGES, _REPORT_PAGES)
    pages = int(rack.draws.between("pages", least, most))
    with rooms.small(rack.results, pages * PAGE):
        ended = rack.did(rack.subject.run(*rack.words(rack.study(text))))
        rack.found.did = f"{pages} pages of room for results"
        rack.clear(ended, 0, 1)
        rack.same()
        had = rack.had()
        rooms.enlarge(rack.results)
        rack.keeps(had)
        _on_with_it(rack)
        if rack.found.faults:
            shutil.copytree(rack.results, rack.work / "results-then", symlinks=True)


def no_room_for_the_journal(rack: Rack, text: str) -> None:
    """The journal's folder, as the run alone sees it, has room for some pages; then the run is to be put back."""
    pages = 1 + int(rack.draws.between("pages", 0, _JOURNAL_PAGES))
    rack.found.did = f"{pages} pages of room for the journal"
    with rooms.alone(rack.work, JOURNAL.parent, pages * PAGE) as enter:
        rack.subject.before = enter
        rack.clear(rack.did(rack.subject.run(*rack.words(rack.study(text)))), 0, 1)
        rack.restore()
        rack.subject.before = ()
    rack.same()
    _on_with_it(rack)


def no_room_for_scratch(rack: Rack, text: str) -> None:
    """The place of private folders becomes full at a moment that is drawn, but for some bytes."""
    place = rack.work / "scratch"
    left = int(rack.draws.between("left", 0, 4 * PAGE))
    moment = rack.draws.between("moment", 0, rack.life)
    rack.found.did = f"scratch is full but for {left} bytes after {moment:.1f} s"

    def fill(run: subprocess.Popen[bytes]) -> None:
        with suppress(subprocess.TimeoutExpired):
            run.wait(moment)
        free = os.statvfs(place)
        with suppress(OSError), (place / "filler").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, free.f_bavail * free.f_frsize - left))

    with rooms.small(place, _SCRATCH):
        placed = text.replace('timeout = "', f'storage = "{place}"\ntimeout = "')
        rack.clear(rack.did(rack.subject.run(*rack.words(rack.study(placed)), beside=fill)), 0, 1)
        (place / "filler").unlink(missing_ok=True)
        rack.same()
        rack.found.differences += [f"{path} was left" for path in place.iterdir()]
        _on_with_it(rack)


def little_address_space(rack: Rack, text: str) -> None:
    """The run may have so much address space: malloc and mmap say ENOMEM somewhere (RLIMIT_AS, setrlimit(2))."""
    rack.subject.address = int(rack.draws.between("size", 100, 1200)) * _MIB
    rack.found.did = f"{rack.subject.address // _MIB} MiB of address space"
    _starved(rack, rack.subject.run(*rack.words(rack.study(text))))


def little_memory(rack: Rack, text: str) -> None:
    """The run lies in a memory cgroup that is too small: the kernel kills one of its processes, or itself."""
    size = int(rack.draws.between("size", 30, 300)) * _MIB
    rack.found.did = f"{size // _MIB} MiB of memory"
    with _group(size) as folder:
        rack.subject.groups = [folder / "cgroup.procs"]
        ended = rack.subject.run(*rack.words(rack.study(text)))
        rack.subject.groups = ()
        _starved(rack, ended)
        descent.end_all()
        with suppress(OSError):
            folder.rmdir()
        if folder.exists():
            rack.found.differences.append(f"there is something left in {folder}")


def _starved(rack: Rack, ended: CommandEnded) -> None:
    rack.did(ended)
    rack.subject.address = None
    had = rack.had()
    if ended.status < 0 or _in_the_interpreter(rack, ended):
        rack.restore()
    else:
        rack.clear(ended, 0, 1)
    rack.same()
    rack.keeps(had)
    _on_with_it(rack)


def _in_the_interpreter(rack: Rack, ended: CommandEnded) -> bool:
    """It ended before it had begun anything, where nobody of hugewise could say why: as Python imported it."""
    return ended.status != 0 and rack.run is None


def starved_server(rack: Rack, text: str) -> None:
    """The servers have less memory than they need: the kernel kills them, and their attempts are no measurements."""
    size = int(rack.draws.between("size", 4, 24))
    rack.found.did = f"servers with {size} MiB of memory"
    limited = text.replace('timeout = "', f'memory = "{size}m"\ntimeout = "').replace("keys = 2000", "keys = 400000")
    rack.clear(rack.did(rack.subject.run(*rack.words(rack.study(limited)))), 0, 1)
    rack.same()
    if kept.accepted(rack.had()):
        rack.broke("attempts were accepted whose servers had too little memory")


def silent_server(rack: Rack, text: str) -> None:
    """A server is stopped at a moment that is drawn from its life, and says nothing any more."""
    which, moment = int(rack.draws.between("which", 1, 5)), rack.draws.between("moment", 0, 1.2)
    rack.found.did = f"server {which} of the run is stopped {moment:.2f} s after its start"

    def stop(run: subprocess.Popen[bytes]) -> None:
        seen: set[int] = set()
        while run.poll() is None and len(seen) < which:
            fresh = {pid for pid, name in descent.descendants().items() if name in ("redis-server", "memcached")}
            if fresh - seen:
                seen |= fresh
            time.sleep(0.005)
        with suppress(subprocess.TimeoutExpired):
            run.wait(moment)
        for pid in seen & descent.descendants().keys():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                rack.found.kills += 1

    rack.clear(rack.did(rack.subject.run(*rack.words(rack.study(text)), beside=stop)), 0)
    rack.same()
    if (run := rack.run) is None:
        rack.broke("there is no run")
    else:
        _, repeated, other = kept.whole(run, {})
        rack.found.broken += [*repeated, *other]


def another_clock(rack: Rack, text: str) -> None:
    """Killed, and resumed where the clocks that count since boot show a week more, or almost nothing.

    In a time namespace (time_namespaces(7)): the clock of the machine is never touched, and the time of day has none.
    """
    uptime = int(float(Path("/proc/uptime").read_text().split()[0]))
    offset = rack.draws.one_of("offset", (_WEEK_S, 10 - uptime))
    rack.found.did = f"resumed with the clocks since boot moved by {offset} s"
    moment = rack.draws.between("moment", rack.life / 4, 0.8 * rack.life)
    rack.found.kills = int(rack.did(rack.subject.kill_after(moment, *rack.words(rack.study(text)))).hit)
    rack.restore()
    rack.subject.before = ("unshare", "--time", "--monotonic", str(offset), "--boottime", str(offset))
    rack.resume()
    rack.subject.before = ()
    rack.same()


def _on_with_it(rack: Rack) -> None:
    """What could not go on is resumed, now that it can."""
    if rack.resume():
        rack.same()


@contextmanager
def _group(size: int) -> Iterator[Path]:
    """A memory cgroup of at most `size` bytes, beside those of runs."""
    found = cgroup.find()
    folder = found.get("memory", found.get("2", Path("/"))) / f"torture-{os.getpid()}"
    folder.mkdir()
    try:
        name = "memory.max" if (folder / "memory.max").exists() else "memory.limit_in_bytes"
        (folder / name).write_text(str(size))
        yield folder
    finally:
        with suppress(OSError):
            folder.rmdir()


def limits_memory() -> bool:
    """Whether a cgroup made here would limit memory."""
    try:
        with _group(1 << 40):
            return True
    except OSError:
        return False
