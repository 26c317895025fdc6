"""Programs are looked for on this host or in an image; what a shell's text and a command line of ssh become."""

import os
import platform
import pwd
import subprocess
import threading
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

from hugewise.errors import UserError
from hugewise.machine import programs
from hugewise.machine.loader import StartedProgram, program_started, shell_text
from hugewise.machine.programs import ssh_command
from hugewise.model.procedure import Places
from hugewise.workloads import _mariadb, _postgres, discover
from tests.build.workloads import BASE, given
from tests.requirements import need_program, need_root

IMAGE = ("/usr/bin/gcc", "/usr/bin/make", "/bin/tar", "/usr/bin/xz", "/usr/games/stockfish", "/opt/own/tool")
ARCHIVE = "/usr/src/lua5.4_5.4.6.orig.tar.gz"
PLACES = Places(data="/data", run="/run", ports=(), sut=(0,), client=(0,))


def _tool(folder: Path, name: str, mode: int = 0o755) -> str:
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(mode)
    return str(path)


def test_on_the_host_path_and_the_named_folders_are_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    monkeypatch.setenv("PATH", str(first))
    found, other, plain = _tool(first, "one"), _tool(second, "two"), _tool(first, "plain", 0o644)
    assert programs.which("one") == found
    assert programs.which("two") is None
    assert programs.which("two", str(second)) == other
    assert programs.which(other) == other
    assert [programs.executable(path) for path in (found, plain)] == [True, False]
    assert programs.matching(f"{tmp_path}/*/one") == [found]
    assert programs.cpus() == len(os.sched_getaffinity(0))
    assert programs.machine() == platform.machine()


def test_in_an_image_nothing_of_the_host_is_found() -> None:
    with programs.looking_in(IMAGE, cpus=3, machine="aarch64"):
        assert programs.which("gcc") == "/usr/bin/gcc"
        assert programs.which("tar") == "/bin/tar"
        assert programs.which("python3") is None
        assert programs.which("stockfish") is None
        assert programs.which("stockfish", "/usr/games") == "/usr/games/stockfish"
        assert programs.which("/opt/own/tool") == "/opt/own/tool"
        assert programs.which("/bin/sh") is None
        assert programs.executable("/bin/tar") and not programs.executable("/bin/sh")
        assert programs.matching("/usr/bin/*") == ["/usr/bin/gcc", "/usr/bin/make", "/usr/bin/xz"]
        assert (programs.cpus(), programs.machine()) == (3, "aarch64")
    assert programs.which("/bin/sh") == "/bin/sh"


def test_another_thread_looks_on_the_host() -> None:
    seen: list[programs.Contents | None] = []
    with programs.looking_in(IMAGE):
        thread = threading.Thread(target=lambda: seen.append(programs.place()))
        thread.start()
        thread.join()
    assert seen == [None]


def test_the_stamp_of_a_program_of_an_image_changes_with_its_packages() -> None:
    stamps = []
    for version in ("12.2", "12.3"):
        with programs.looking_in(IMAGE, packages={"gcc": version}):
            stamps.append(programs.stamp("/usr/bin/gcc"))
    assert stamps[0] != stamps[1]
    assert all(stamp.startswith("/usr/bin/gcc of ") for stamp in stamps)


def test_the_stamp_of_a_file_of_the_host_changes_when_it_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "file"
    assert programs.stamp(str(file)) == str(file)
    file.write_text("one")
    before = programs.stamp(str(file))
    file.write_text("another")
    assert programs.stamp(str(file)) != before
    with programs.looking_in(IMAGE):
        assert programs.stamp(str(file)).startswith(f"{file} 7 ")


def test_workloads_name_what_an_image_lacks() -> None:
    known = discover()
    with programs.looking_in(IMAGE):
        for name, package in (("iperf3", "iperf3"), ("redis", "redis-server"), ("sysbench-memory", "sysbench")):
            lacking = known[name].missing(given(known[name]))
            assert package in {each.package for each in lacking}, name
        command = known["command"]
        assert command.missing(given(command, argv=("sh",)))[0].reason.startswith(
            "sh: no such program in the guests' image"
        )
        assert not command.missing(given(command, argv=("gcc",)))


def test_a_build_takes_the_archive_of_the_image_and_puts_one_that_is_named(tmp_path: Path) -> None:
    build = discover()["build"]
    here = tmp_path / "lua.tar.gz"
    here.touch()
    with programs.looking_in(IMAGE, files=(ARCHIVE,), packages={"libc6-dev": "2.36"}):
        lua = given(build, project="lua")
        assert build.missing(lua) == ()
        data = build.data(lua)  # type: ignore[attr-defined]
        assert data.inputs == ()
        assert data.key["source"].startswith(f"{ARCHIVE} of ")
        unpack = next(act for act in data.recipe(PLACES) if getattr(act, "name", "") == "unpack")
        assert ARCHIVE in unpack.argv
        named = build.data(given(build, project="lua", source=str(here)))  # type: ignore[attr-defined]
        assert named.inputs == (str(here),)
    with programs.looking_in(IMAGE, files=(ARCHIVE,)):
        (lacking,) = build.missing(given(build, project="lua"))
        assert (lacking.reason, lacking.package) == ("stdio.h: no such header in the image", "libc6-dev")
    with programs.looking_in(IMAGE, packages={"libc6-dev": "2.36"}):
        assert "name an archive" in build.missing(given(build, project="lua"))[0].reason


def test_the_jobs_of_a_build_and_the_instances_of_a_server_go_by_the_guest() -> None:
    known = discover()
    build, redis = known["build"], known["redis"]
    with programs.looking_in(IMAGE, cpus=1):
        one = build.memory(BASE, given(build)), redis.memory(BASE, given(redis))
    with programs.looking_in(IMAGE, cpus=4):
        four = build.memory(BASE, given(build)), redis.memory(BASE, given(redis))
    assert four[0] == 4 * one[0]
    assert four[1] > one[1]


def test_database_servers_of_an_image_have_the_versions_of_their_packages() -> None:
    folder = "/usr/lib/postgresql/17/bin"
    postgres = [f"{folder}/{name}" for name in ("postgres", "initdb", "psql", "pg_isready")]
    maria = ["/usr/sbin/mariadbd", "/usr/bin/mariadb-install-db", "/usr/bin/mariadb"]
    told = {"postgresql-17": "17.5-1", "mariadb-server-core": "1:11.8.2-1"}
    with programs.looking_in([*postgres, *maria], packages=told):
        assert _postgres.missing() == ()
        assert _postgres.installed() == _postgres.PostgresPrograms(folder, 17, "17.5-1")
        assert _mariadb.installed().version == "1:11.8.2-1"
    with programs.looking_in(IMAGE):
        assert _postgres.missing()[0].package == "postgresql"
        assert _mariadb.missing()[0].package == "mariadb-server"


def test_what_root_runs_itself_is_not_looked_for_on_the_callers_path(
    reached: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_root()
    monkeypatch.delenv("SUDO_UID", raising=False)
    mine, theirs = reached / "mine", reached / "theirs"
    for folder in (mine, theirs):
        folder.mkdir()
        (folder / "ip").write_text("#!/bin/sh\n")
        (folder / "ip").chmod(0o755)
    monkeypatch.setenv("PATH", f"{theirs}:{mine}")
    assert programs.of_root("ip") not in (f"{theirs}/ip", f"{mine}/ip")
    monkeypatch.setattr(programs, "PATH", f"{theirs}:{mine}")
    assert programs.of_root("ip") == f"{theirs}/ip"
    os.chown(theirs, pwd.getpwnam("nobody").pw_uid, -1)
    with pytest.raises(UserError, match=f"ip is {theirs}/ip: {theirs} belongs to the account"):
        programs.of_root("ip")
    (mine / "ip").chmod(0o777)
    monkeypatch.setattr(programs, "PATH", str(mine))
    with pytest.raises(UserError, match=f"{mine}/ip can be written by others"):
        programs.of_root("ip")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("sh", "-c", "a"), "a"),
        (("bash", "--norc", "-o", "pipefail", "-ec", "a b", "name"), "a b"),
        (("sh", "-c", "--", "a"), "a"),
        (("sh", "script", "-c", "a"), None),
        (("sh",), None),
        (("sh", "-c"), None),
    ],
)
def test_the_text_of_a_call(words: tuple[str, ...], text: str | None) -> None:
    assert shell_text(words) == text


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("exec serve --port {port}", StartedProgram(("serve", "--port", "{port}"))),
        ("serve 'a b' \"$HOME\"", StartedProgram(("serve", "a b", "$HOME"))),
        ("A=1 exec -a name serve >log 2>&1", StartedProgram(("serve", "2"), (("A", "1"),))),
        ("A=1; export B=2; mkdir -p x && cd x; exec serve", StartedProgram(("serve",), (("B", "2"),), moved=True)),
        ("fill\nserve # with this", StartedProgram(("serve",))),
    ],
)
def test_plain_commands_are_followed(text: str, found: StartedProgram) -> None:
    assert program_started(text) == found


@pytest.mark.parametrize(
    "text",
    [
        *("", "serve & wait", "serve | tee log", "if true; then serve; fi", "{ serve; }", "exec $(which serve)"),
        *("exec `which serve`", "serve <<END\nEND", "(serve)", "serve || true", ". ./serve", "exec", "ulimit -n 9"),
        *("exec 'serve", "exec ~/serve", "x" * 100_000),
    ],
)
def test_what_only_a_shell_can_tell_is_not_told(text: str) -> None:
    assert program_started(text) is None


@hypothesis.given(st.text(st.sampled_from("a=1 ;&|'\"\\\n$(){}<>#-`exc"), max_size=60))
def test_any_text_ends_in_an_answer(text: str) -> None:
    found = program_started(text)
    assert found is None or found.words


def test_a_host_is_given_nothing_but_the_command(tmp_path: Path) -> None:
    need_program("ssh", "openssh-client")
    generous = tmp_path / "config"
    generous.write_text(
        "Host *\n ForwardAgent yes\n ForwardX11 yes\n RemoteForward 9000 localhost:9000\n"
        " PermitLocalCommand yes\n LocalCommand touch given\n RemoteCommand sh\n BatchMode no\n"
    )
    words = ssh_command(["-F", str(generous), "host"], "true", connect_s=7, alive_s=3)
    assert words[-3:] == ["--", "host", "true"]
    said = subprocess.run([words[0], "-G", *words[1:]], capture_output=True, text=True, check=True, timeout=120).stdout
    held = dict(line.split(" ", 1) for line in said.splitlines() if " " in line)
    named = ("forwardagent", "forwardx11", "clearallforwardings", "permitlocalcommand", "batchmode", "requesttty")
    assert [held[name] for name in named] == ["no", "no", "yes", "no", "yes", "false"]
    assert [held[name] for name in ("connecttimeout", "serveraliveinterval", "serveralivecountmax")] == ["7", "3", "3"]
    assert held.get("remotecommand", "none") == "none"
