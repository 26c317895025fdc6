"""The command line as a whole: exit statuses, lists, help texts as they are kept."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import msgspec
import pytest

from hugewise.cli.doctor import gather, leftover
from hugewise.cli.main import main
from hugewise.host.ledger import JournalClosed, JournalOpened
from hugewise.host.local_host import LocalHost
from tests import golden
from tests.build import known
from tests.build.hosts import FakeHost
from tests.cli.conftest import HUGEWISE, Call, tiny
from tests.requirements import need, need_program


def test_output_that_nobody_takes_is_no_traceback() -> None:
    need(Path("/dev/full").exists(), "/dev/full")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*HUGEWISE, "list", "metrics"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert done.stderr.startswith("hugewise: ")
    assert "No space left on device" in done.stderr
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*HUGEWISE, "list", "metrics"], stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("ignored", [False, True])
def test_an_order_to_end_is_taken_as_ctrl_c(monkeypatch: pytest.MonkeyPatch, ignored: bool) -> None:
    """So that settings are restored; under nohup the end of the terminal is none."""
    handlers: dict[int, Callable[..., object]] = {}
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    monkeypatch.setattr(signal, "getsignal", lambda _: signal.SIG_IGN if ignored else signal.SIG_DFL)
    main([], command=click.Command("nothing", callback=lambda: None))
    monkeypatch.undo()
    assert handlers.keys() == {signal.SIGTERM, *([] if ignored else [signal.SIGHUP])}
    for number, handler in handlers.items():
        with pytest.raises(KeyboardInterrupt):
            handler(number, None)


def test_a_working_directory_that_is_gone_is_said(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    code = f"import os; os.chdir({str(tmp_path / 'gone')!r}); os.rmdir({str(tmp_path / 'gone')!r}); import sys; "
    code += "sys.argv = ['hugewise', 'list', 'studies']; sys.path.pop(0); from hugewise.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "the working directory was removed" in done.stderr


def test_list_policies_says_what_a_user_lacks(call: Call, fake: FakeHost) -> None:
    fake.root = False
    _, out, _ = call("list", "policies")
    lines = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert "process" in lines["base"]
    assert "no:" in lines["mthp-64k"]


def test_list_studies_shows_those_here_and_those_that_come_along(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "studies").mkdir()
    tiny(tmp_path / "studies")
    (tmp_path / "studies" / "broken.toml").write_text("format = 7")
    status, out, _ = call("list", "studies")
    assert status == 0
    assert "studies/tiny.toml" in out
    assert "[bold]?[/nope]" in out
    assert "cannot be read" in out
    assert "\ndemo " in out


def journal(path: Path, *records: object) -> Path:
    path.write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for record in records))
    return path


def test_a_journal_left_by_a_killed_run_is_cured_by_restore(tmp_path: Path) -> None:
    host, path = LocalHost(), tmp_path / "journal.jsonl"
    assert leftover(host, path) is None
    dead = JournalOpened("boot", 2**22 + 1, 1, "/results/r1")
    found = leftover(host, journal(path, dead))
    assert found == ("a run was killed and left settings turned: /results/r1", "sudo hugewise restore")
    assert leftover(host, journal(path, dead, JournalClosed("put back"))) is None
    path.write_bytes(msgspec.json.encode(dead) + b"\n{torn")
    assert leftover(host, path) == found
    path.write_bytes(b"rubbish\n")
    said = known(leftover(host, path))
    assert "not a journal" in said[0]


def test_a_run_under_way_is_not_called_killed(tmp_path: Path) -> None:
    host = LocalHost()
    started = int(host.read(f"/proc/{os.getpid()}/stat").rpartition(")")[2].split()[19])
    mine = JournalOpened("boot", os.getpid(), started, "/results/r2")
    found = known(leftover(host, journal(tmp_path / "j", mine)))
    assert found[0].startswith(f"another hugewise run holds this host (pid {os.getpid()}, of ")
    assert found[0].endswith(" (results: /results/r2)")


def test_this_machine_can_be_looked_at() -> None:
    found = gather(LocalHost())
    assert found.after.monotonic_s > found.before.monotonic_s


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
            len(each) <= 80
            for each in out.splitlines()
            if not any(soft in each for soft in ("example orders", "left out:", "the budget is too small"))
        )
    golden.same(again, path)
    assert fake.writes == []
    assert not (here / "results").exists()


def test_bash_completes_with_the_script_that_it_reads(tmp_path: Path) -> None:
    (tmp_path / "hugewise").write_text(f'#!/bin/sh\nexec {shlex.join(HUGEWISE)} "$@"\n')
    (tmp_path / "hugewise").chmod(0o755)
    asks = 'eval "$(hugewise completion bash)"; COMP_WORDS=(hugewise list stu) COMP_CWORD=2'
    asks += '; _hugewise_completion hugewise; complete -p hugewise; echo "${COMPREPLY[@]}"'
    done = subprocess.run(
        [need_program("bash", "bash"), "--norc", "-c", asks],
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["complete -o nosort -F _hugewise_completion hugewise", "studies"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_a_script(shell: str, call: Call) -> None:
    status, out, err = call("completion", shell)
    assert (status, err) == (0, "")
    assert f"_HUGEWISE_COMPLETE={shell}_complete" in out
