"""Advise on common programs, and check that the advice's files do what they promise.

    python -m bench.programs [--time 3m] [PROGRAM ...]

Of each program: an advice as a user asks for it; then the files of the arm that was confirmed or refuted are applied as
they would be by hand (the script of the host, the launcher of the program, or the variables of its unit), the program
is started once more by them, and `hugewise verify` says whether it has what was promised. All settings are put back.

heap      nodes of 64 bytes in a random ring, 1 GiB by brk          sort     2.5 million lines in memory
gcc       a file of 600 functions, -O2                            gzip     checks an archive: nothing to gain
python    a dictionary of 1.5 million numbers                       go       maps; malloc's tunables do not reach it
ffmpeg    120 frames of 720p, H.264                                 static   the heap's program, linked statically
off       turns transparent huge pages off for itself
redis     look-ups by redis-benchmark; redis-thp: told to allow them  postgres look-ups by pgbench
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import hugewise
from bench.commands import COMMANDS, Programs, done, program
from bench.kept import kept_settings
from hugewise.advise import advise as phases
from hugewise.advise.advice import Advice
from hugewise.advise.question import Question, command, service
from hugewise.advise.text import answer, details
from hugewise.deployment.program import LAUNCHER
from hugewise.errors import HugewiseError, UserError
from hugewise.host.local_host import LocalHost
from hugewise.inspection.verify import verify
from hugewise.model.policy import DeployedFile
from hugewise.model.procedure import Named
from hugewise.quantity import format_duration, parse_duration
from hugewise.report.sentences import arm_of
from hugewise.visible import printable

BUILD = Path(__file__).parent.parent / ".bench"
_LOOKS = (0.5, 0.7, 0.85)
"""Moments to look at a program, as shares of its time as it is: it has its memory by then, most often."""
_UP_S = 60.0

Started = Callable[[Sequence[str]], AbstractContextManager[int]]
"""Starts a program by these words, and ends it; its number."""


class Served(NamedTuple):
    """A server with its load; `{port}` and `{folder}` are filled in by who starts it.

    counted  what its load prints of how much it did, as a pattern
    named    which of the server's memory its own settings are about
    include  the words by which it reads a file of its configuration, in place of its command
    """

    server: tuple[str, ...]
    load: tuple[str, ...]
    fill: tuple[str, ...]
    ready: tuple[str, ...]
    counted: str
    user: str | None = None
    named: Named = "all"
    include: Callable[[Sequence[str], str], tuple[str, ...]] = lambda words, _: tuple(words)

    def table(self, seconds: float) -> dict[str, Any]:
        """Return the workload table of a question."""
        ready = f"exec:{shlex.join(self.ready)}"
        counted = (f"operations,neutral=regex:{self.counted}",)
        made = service(self.server, self.load, seconds=seconds, ready=ready, fill=self.fill, values=counted)
        return made | ({"user": self.user} if self.user else {})


_DEBUG = ("--enable-debug-command", "local")  # to fill it


def _redis(*options: str) -> Served:
    server, client = program("redis-server", "redis-server"), program("redis-cli", "redis-tools")
    load, asked = program("redis-benchmark", "redis-tools"), "-n 400000 -r 1000000 -t get -P 16"
    return Served(
        (server, "--port", "{port}", "--bind", "127.0.0.1", "--dir", "{folder}", "--save", "", *options, *_DEBUG),
        (load, "-p", "{port}", *shlex.split(asked)),
        (client, "-p", "{port}", "debug", "populate", "1000000", "key", "100"),
        (client, "-p", "{port}", "ping"),
        r"^ +([0-9]+) requests completed",
    )


def _postgres() -> Served:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not found:
        raise HugewiseError("PostgreSQL is not installed", hint="apt install postgresql-15")
    at = found[-1]
    make = f"{at}/initdb -D $0/data -A trust -U nobody --no-sync >/dev/null"
    serve = f"exec {at}/postgres -D $0/data -p $1 -k $0 -c listen_addresses= -c shared_buffers=192MB"
    load = program("pgbench", "postgresql-15")
    where = ["-h", "{folder}", "-p", "{port}", "-U", "nobody"]
    return Served(
        ("/bin/sh", "-c", f"{make} && {serve}", "{folder}", "{port}"),
        (load, *where, *["-n", "-S", "-c", "2", "-j", "1", "-t", "15000", "postgres"]),
        (load, *where, *["-i", "-q", "-s", "10", "postgres"]),
        (f"{at}/pg_isready", *where),
        r"actually processed: ([0-9]+)",
        "nobody",
        "shared",
        lambda words, file: tuple(
            word.replace("&& exec", f"&& echo \"include '{file}'\" >> $0/data/postgresql.conf && exec")
            for word in words
        ),
    )


SERVICES: Mapping[str, Callable[[], Served]] = {
    "redis": _redis,
    "redis-thp": lambda: _redis("--disable-thp", "no"),
    "postgres": _postgres,
}


def applied(
    found: Advice, words: Sequence[str], started: Started, one: Served | None = None, arm: str = ""
) -> Iterator[str]:
    """Yield the files of the arm that was looked at last (or of `arm`), applied, and what `verify` says then; line by
    line. `started` starts these words, with others before them; `one` is the server, where it is one.
    """
    if found.confirmed is None or found.pilot is None:
        return
    name = arm or found.confirmed.candidate
    folders = [found.confirmed.folder, *([found.screen.folder] if found.screen is not None else [])]
    seen = (arm_of(hugewise.open_results(each).cells[0], name) for each in folders)
    summary = next((each for each in seen if each is not None), None)
    files = () if summary is None or summary.deployment is None else summary.deployment.files
    script = next((file for file in files if file.kind == "script"), None)
    use = found.candidate(name).use
    policy = next((word for file in files for word in _policy(file)), use if isinstance(use, str) else use["from"])
    own = next((file for file in files if file.kind == "launcher"), None)
    read = next((file for file in files if file.kind in ("postgresql", "mariadb", "redis")), None)
    with kept_settings() as turn, tempfile.TemporaryDirectory(prefix="hugewise-applied-", dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        if script is not None:
            turn(script.sets)  # journalled; then by the file
            _by_file(script, Path(folder))
        # A launcher has the words of a command in it; of a server it has them behind it.
        wrapped = list(words) if own is None else _wrapped(own, Path(folder))
        wrapped += words if own is not None and found.question.of_service else ()
        if read is not None and one is not None:
            place = Path(folder) / "page-sizes.conf"
            place.write_text(read.content)
            wrapped = list(one.include(wrapped, str(place)))
        kinds = ", ".join(file.kind for file in (script, own, read) if file is not None) or "no file"
        # A server is there for as long as it is looked at; a program has its memory towards its end.
        looks = (1.0,) if one is not None else _LOOKS
        wall_s = 1.0 if one is not None else found.pilot.wall_s * min(1.0, found.confirmed.ratio or 1.0)
        shared = read is not None or policy.endswith("-shmem")
        named: Named = one.named if one is not None and shared else "all"
        best = max(
            _verified(started, wrapped, policy, [look * wall_s for look in looks], named), key=lambda each: each[0]
        )
        yield f"{name}: {kinds}: {best[1]}"


def _policy(file: DeployedFile) -> Iterator[str]:
    words = file.check.split()
    if "--policy" in words:
        yield words[words.index("--policy") + 1]


def _by_file(file: DeployedFile, folder: Path) -> None:
    (folder / "now").write_text(file.content)
    done(["sh", str(folder / "now")], "see the file")


def _wrapped(file: DeployedFile, folder: Path) -> list[str]:
    launcher = str(Path(sys.executable).with_name("hugewise-exec"))
    wrapper = folder / "with-page-sizes"
    wrapper.write_text(file.content.replace(LAUNCHER, shlex.quote(launcher)))
    wrapper.chmod(0o755)
    return [str(wrapper)]


def _verified(
    started: Started, words: Sequence[str], policy: str, moments: Sequence[float], named: Named
) -> Iterator[tuple[float, str]]:
    """Yield `verify`'s verdicts at several moments of a run, in seconds: the share as promised, in words."""
    yield -1.0, "it was over before it could be looked at"
    for moment in moments:
        with started(words) as pid:
            time.sleep(moment)
            try:
                seen = verify(str(pid), LocalHost(), policy, named=named)
            except UserError:
                continue  # the process has ended
            part = "nothing to prove" if seen.share is None else f"{100 * seen.share:.0f}% of what was promised"
            why = "".join(f"; {reason.id}" for reason in seen.reasons[:2])
            word = "as promised" if seen.delivered else "NOT as promised" if seen.delivered is False else "unproven"
            yield (seen.share if seen.share is not None else -0.5), f"{word} ({part} under {seen.promise.text}{why})"


@contextmanager
def _running(words: Sequence[str]) -> Iterator[int]:
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0) as process:
        try:
            yield process.pid
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)


def _serving(one: Served) -> Started:
    """Return a function that starts the server with the words, and fills it."""

    @contextmanager
    def started(words: Sequence[str]) -> Iterator[int]:
        with tempfile.TemporaryDirectory(prefix="hugewise-served-", dir="/var/tmp") as folder:
            if one.user:
                shutil.chown(folder, one.user)
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = str(free.getsockname()[1])

            def there(each: Sequence[str]) -> list[str]:
                return [word.replace("{port}", port).replace("{folder}", folder) for word in each]

            as_user = ["setpriv", f"--reuid={one.user}", f"--regid={one.user}", "--clear-groups"] if one.user else []
            as_user = [word.replace("--regid=nobody", "--regid=nogroup") for word in as_user]
            with _running([*as_user, *there(words)]) as pid:
                end = time.monotonic() + _UP_S
                while subprocess.run(there(one.ready), capture_output=True, check=False).returncode:
                    if time.monotonic() > end:
                        raise HugewiseError(f"{words[0]} is not up after {_UP_S:g} s")
                    time.sleep(0.2)
                done([*as_user, *there(one.fill)], "see the fill")
                yield pid

    return started


def tried(name: str, programs: Programs, seconds: float, results: Path) -> None:
    """Ask for an advice, apply its files, and print all of it. Raises HugewiseError."""
    one: Served | None
    if name in SERVICES:
        one = SERVICES[name]()
        words, table, started = one.server, one.table(seconds), _serving(one)
    else:
        one = None
        words = tuple(COMMANDS[name](programs))
        table, started = command(words), _running
    began = time.monotonic()
    found, _ = phases.advise(Question(workload=table, seconds=seconds), results)
    took = time.monotonic() - began
    print(f"{name}: {format_duration(took)}: {printable(answer(found))}", flush=True)
    for line in details(found):
        print(f"  {printable(line)}")
    for arm in [each.name for each in found.tried] if one is not None else [""]:
        for line in applied(found, words, started, one, arm):
            print(f"  Applied: {line}", flush=True)


def main(names: Sequence[str], seconds: float, results: Path = BUILD / "programs") -> int:
    """Try and print. Returns 1 where nothing could be tried."""
    shown = 0
    with tempfile.TemporaryDirectory(prefix="hugewise-programs-", dir="/var/tmp") as made:
        Path(made).chmod(0o755)
        for name in names:
            try:
                tried(name, Programs(Path(made)), seconds, results)
            except HugewiseError as error:
                print(f"{name}: left out: {error}", flush=True)
                continue
            shown += 1
    return 0 if shown else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.programs")
    parser.add_argument("--time", default="3m", help="for each advice (3m)")
    parser.add_argument("program", nargs="*", choices=[[], *COMMANDS, *SERVICES], help="which (all)")
    given = parser.parse_args()
    sys.exit(main(given.program or (*COMMANDS, *SERVICES), parse_duration(given.time)))
