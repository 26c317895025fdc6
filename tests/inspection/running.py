"""Programs of the tests' own that have their memory in a way, and stay."""

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from hugewise.errors import LockedError
from hugewise.host.journal import Journal
from hugewise.host.knob import Settings
from hugewise.host.local_host import LocalHost
from hugewise.host.lock import HostLock
from hugewise.inspection.rules import rules_of
from hugewise.model.pages import THP
from tests.requirements import need, need_program

__all__ = ["PAGES", "SIZE", "built", "running", "under"]

PAGES = Path(__file__).with_name("pages.c")
SIZE = 64 << 20
"""Bytes that the program has."""


def built(folder: Path, *options: str) -> Path:
    """The program, compiled with these options."""
    compiler = need_program("gcc", "gcc libc6-dev")
    made = folder / "-".join(["pages", *(option.strip("-") for option in options)])
    subprocess.run([compiler, "-O1", *options, "-o", made, PAGES], check=True)
    made.chmod(0o755)
    return made


@contextmanager
def under(*words: str) -> Iterator[None]:
    """Of a test that goes by the rule in force for pages of the PMD size: one of these words, or any. Where it is
    another, root turns it meanwhile. Where somebody else turns it, what is found says nothing.
    """
    with ExitStack() as turned:
        host = LocalHost()
        if words and (now := rules_of(host).top) not in words:
            need(host.privileged(), f"root, or {THP}/enabled that is {' or '.join(words)} (it is {now})")
            _turn(words[0], host, turned)
        rules = rules_of(host)
        try:
            yield
        except (AssertionError, LookupError):
            need(rules_of(host).same(rules), f"{THP}/enabled that stays as it is (somebody turned it meanwhile)")
            raise


def _turn(word: str, host: LocalHost, turned: ExitStack) -> None:
    """Have the rule be that word until the stack is left, as a run of hugewise would."""
    try:
        turned.enter_context(HostLock(host))
    except LockedError as error:
        need(False, f"the lock of this host: {error}")
    folder = turned.enter_context(tempfile.TemporaryDirectory(prefix="hugewise-rule-"))
    settings = Settings(host, Journal.begin(host, Path(folder) / "journal.jsonl", "test"))
    turned.callback(settings.restore)
    assert settings.apply({f"{THP}/enabled": word}) == []


@contextmanager
def running(
    program: Path, *arguments: str, environment: Mapping[str, str] | None = None, user: int | None = None
) -> Iterator[int]:
    """The program, when it has its memory; its number."""
    given = {name: value for name, value in os.environ.items() if name not in ("GLIBC_TUNABLES", "LD_PRELOAD")}
    process = subprocess.Popen(
        [program, *arguments], stdout=subprocess.PIPE, env={**given, **(environment or {})}, user=user, group=user,
        extra_groups=None if user is None else [], process_group=0,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n", f"it has ended: {process.wait()}"
        yield process.pid
    finally:
        os.killpg(process.pid, 9)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
