"""What root does not do itself: whom it is done as, what it may know and say, and that nothing of it is left."""

import os
import pwd
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path

import pytest

from hugewise import unprivileged
from hugewise.errors import HugewiseError, StorageError, UserError
from tests.requirements import need_program, need_root
from tests.wait import has_ended, until


def facts(text: str, sign: str) -> dict[str, str]:
    """What lines say: a name, the sign, a value."""
    return {name: value for name, _, value in (line.partition(sign) for line in text.splitlines())}


@pytest.fixture
def handed(reached: Path) -> Path:
    """A folder of the unprivileged account's."""
    folder = reached / "handed"
    folder.mkdir()
    if (who := unprivileged.account()) is not None:
        os.chown(folder, who.pw_uid, who.pw_gid)
    return folder


def test_a_program_of_others_runs_as_nobody_and_knows_nothing_of_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    need_root()
    need_program("ps", "procps")
    monkeypatch.setenv("A_SECRET", "of root's")
    nobody = pwd.getpwnam("nobody")
    status = facts(unprivileged.run(["cat", "/proc/self/status"]).stdout, ":\t")
    assert status["Uid"].split() == [str(nobody.pw_uid)] * 4
    assert status["Gid"].split() == [str(nobody.pw_gid)] * 4
    assert status["Groups"].split() == []
    assert status["NoNewPrivs"] == "1"
    assert status["CapEff"] == status["CapPrm"] == "0000000000000000"
    environment = facts(unprivileged.run(["env"], environment={"LANGUAGE": "de"}).stdout, "=")
    assert environment["LANGUAGE"] == "de"
    assert "A_SECRET" not in environment
    assert "HOME" not in environment
    assert unprivileged.run(["pwd"]).stdout == "/\n"
    assert unprivileged.run(["cat"]).stdout == ""  # stdin is empty
    session = unprivileged.run(["ps", "-o", "sid=", "-p", str(os.getpid())]).stdout.strip()
    assert unprivileged.run(["sh", "-c", "ps -o sid= -p $$"]).stdout.strip() != session


def test_what_a_program_says_and_how_it_ends_is_told() -> None:
    found = unprivileged.run(["sh", "-c", "echo one; echo two >&2; exit 3"])
    assert (found.status, found.stdout, found.stderr, found.why) == (3, "one\n", "two\n", "two")
    assert unprivileged.run(["false"]).why == "exit status 1"


@pytest.mark.parametrize(
    ("argv", "named", "reason"),
    [
        (["sleep", "1000"], {"timeout": 0.2}, "sleep has not ended within 0.2 s"),
        (["yes"], {}, "yes says more than 4194304 bytes"),
        (["sh", "-c", "yes >&2"], {"most": 1000}, "sh says more than 1000 bytes"),
        (["/nowhere/postgres", "--version"], {}, "/nowhere/postgres cannot be run.*No such file"),
    ],
)
def test_a_program_that_does_not_come_to_an_end_is_ended(argv: list[str], named: dict[str, float], reason: str) -> None:
    with pytest.raises(HugewiseError, match=reason):
        unprivileged.run(argv, **named)  # type: ignore[arg-type]


def test_what_a_program_leaves_running_is_not_waited_for_and_does_not_stay() -> None:
    said = unprivileged.run(["sh", "-c", "sleep 1000 & echo $!"]).stdout
    until(lambda: has_ended(int(said)), "it has ended")


_DAEMON = "setsid sh -c 'echo $$ > {0}; exec >/dev/null 2>&1 </dev/null; sleep 1000' & until test -s {0}; do :; done"


def test_what_leaves_its_session_does_not_outlive_a_program(handed: Path) -> None:
    """setsid(1) was enough to stay as nobody, with root's planning long over."""
    need_root()
    children = [subprocess.Popen(["sleep", "1000"], user="nobody")]
    unprivileged.run(["sh", "-c", _DAEMON.format(handed / "pid")])
    assert has_ended(int((handed / "pid").read_text()))
    for each in children:  # of this process, and none of the program's
        assert each.poll() is None
        each.kill()
        each.wait()


@pytest.mark.parametrize("ends", ["well", "killed"])
def test_what_leaves_its_session_does_not_outlive_work(handed: Path, ends: str) -> None:
    need_root()

    def work(_: unprivileged.Say) -> None:
        unprivileged.run(["sh", "-c", _DAEMON.format(handed / "pid")])
        if ends == "killed":
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        unprivileged.call(work)
    except HugewiseError:
        assert ends == "killed"
    assert has_ended(int((handed / "pid").read_text()))


def test_work_that_does_not_come_to_an_end_is_ended(handed: Path) -> None:
    need_root()

    def work(_: unprivileged.Say) -> None:
        (handed / "pid").write_text(str(os.getpid()))
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(1000)

    for seconds in (0.5, 10.0, 120.0):
        with pytest.raises(HugewiseError, match=f"has not ended within {seconds:g} s"):
            unprivileged.call(work, timeout=seconds)
        if (handed / "pid").exists() and (handed / "pid").read_text():
            break  # else it was ended before it had begun
    pid = int((handed / "pid").read_text())
    until(lambda: has_ended(pid), "it has ended")


def test_work_is_done_by_the_account_and_leaves_files_of_its_own(handed: Path) -> None:
    lines: list[str] = []

    def work(say: unprivileged.Say) -> None:
        say("writing")
        (handed / "made").write_text(" ".join(sorted({"HOME", "PATH"} & set(os.environ))))
        say(f"by {os.geteuid()} \x1b[31m{unprivileged.run(['id', '-u']).stdout.strip()}")

    unprivileged.call(work, lines.append)
    who = unprivileged.account()
    uid = os.geteuid() if who is None else who.pw_uid
    assert (handed / "made").stat().st_uid == uid
    assert lines[0] == "writing"
    assert lines[1].startswith(f"by {uid} ") and lines[1].endswith(f"[31m{uid}")
    if who is not None:
        assert "\x1b" not in lines[1]
        assert (handed / "made").read_text() == "PATH"


def test_work_can_do_no_more_than_the_account(tmp_path: Path) -> None:
    need_root()
    secret = tmp_path / "secret"
    secret.write_text("of root's")
    secret.chmod(0o600)
    with secret.open() as held:

        def work(_: unprivileged.Say) -> None:
            try:
                os.setuid(0)
            except PermissionError:
                pass
            else:
                raise UserError("it is root again")
            try:
                os.read(held.fileno(), 1)
            except OSError:  # the descriptor is closed
                secret.read_text()

        with pytest.raises(OSError, match="secret: Permission denied"):
            unprivileged.call(work)


def test_the_errors_of_work_are_those_that_it_raised() -> None:
    def fail(_: unprivileged.Say) -> None:
        raise StorageError("no room in x", hint="free some")

    with pytest.raises(StorageError, match="no room in x") as raised:
        unprivileged.call(fail)
    assert raised.value.hint == "free some"

    def long(_: unprivileged.Say) -> None:
        raise UserError("\x01" * 1_000_000)

    with pytest.raises(UserError, match="^\ufffd{100}" if os.geteuid() == 0 else "^\x01"):
        unprivileged.call(long)


def test_work_that_breaks_or_is_killed_is_an_error() -> None:
    need_root()

    def broken(_: unprivileged.Say) -> None:
        raise KeyError("nothing")

    with pytest.raises(HugewiseError, match="(?s)worked for this one failed:.*KeyError: 'nothing'"):
        unprivileged.call(broken)

    def killed(_: unprivileged.Say) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(HugewiseError, match="ended: killed by signal 9"):
        unprivileged.call(killed)

    def foreign(_: unprivileged.Say) -> None:
        for each in Path("/proc/self/fd").iterdir():  # the one that it tells by is among them
            with suppress(OSError):
                os.write(int(each.name), b"[" * 5000 + b"\n")
        time.sleep(1000)

    with pytest.raises(HugewiseError, match="said something unknown"):
        unprivileged.call(foreign)


def test_work_and_its_programs_do_not_outlive_a_root_that_is_killed(handed: Path) -> None:
    need_root()
    script = f"""\
        import os
        from pathlib import Path
        from hugewise import unprivileged
        def work(say):
            Path({str(handed)!r}, "pid").write_text(str(os.getpid()))
            unprivileged.run(["sh", "-c", "echo $$ > {handed}/program; exec sleep 1000"], timeout=2000)
        unprivileged.call(work)
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)]) as running:
        program = handed / "program"
        until(lambda: program.exists() and program.read_text().endswith("\n"), "the program runs")
        pids = [int((handed / name).read_text()) for name in ("pid", "program")]
        assert not any(map(has_ended, pids))
        running.send_signal(signal.SIGKILL)
        running.wait()
        until(lambda: all(map(has_ended, pids)), "they have ended")


def test_the_last_line_of_a_program_is_not_long_in_an_error() -> None:
    assert unprivileged.Finished(1, "", f"first\n{'x' * 100_000}").why == "x" * 500
